"""What the user of a model reads: which solution, how fast, how far from the bound, and how to call it."""

from harness.core.errors import UserError
from harness.core.names import unknown
from harness.operators.roofline import MEASURED_ON
from harness.packing.eligibility import GPUS, architecture, words
from harness.packing.manifest import read_manifest, solution_names, solutions_of
from harness.packing.pack import packed_name
from harness.report.blocks.models import GPU_GB, model_gb
from harness.report.blocks.results import SGLANG
from harness.report.table import decimal
from harness.results.comparison import TOLERANCE_ORDER, Comparison
from harness.results.model_names import Layer
from harness.results.models import Verdict, verdict


def is_named(hardware: str, gpu: str) -> bool:
    """Whether a user who says `gpu` (NVIDIA H200, H200 or sm_90) means this machine of the traces."""
    return gpu.lower() == architecture(hardware) or words(gpu) <= words(hardware)


def measured(of: Verdict) -> list[str]:
    """Lines: the solution to use and its times; how far ahead it is, and of what; who passes which tolerance."""
    best, rows = of.best, of.group.rows
    shown = rows[0], rows[len(rows) // 2], rows[-1]
    times = (f"{row.ms(best.solution):.3f} ms at T = {row.workload.seq_len}" for row in shown)
    means = [f"{best.over_bound:.2f} times the roofline bound"] if best.over_bound else []
    peers = {peer.b: peer for peer in of.peers if peer in of.peers[:1] or peer.b == SGLANG}
    means += [f"{peer.geometric_mean:.2f} times as fast as {name}" for name, peer in peers.items()]
    said = [f"{best.solution} at {of.group.tolerance_name} tolerance: {', '.join(times)}"]
    if means:
        said.append(f"  geometric means over {len(rows)} workloads: {', '.join(means)}")
    else:
        said.append("  neither another source's solution nor the roofline bound was measured there")
    judged = {group.tolerance_name for section in of.sections for group in section.groups}
    for tolerance in TOLERANCE_ORDER:
        if tolerance != of.group.tolerance_name:
            other = of.at(tolerance)
            known = "none is known to pass" if tolerance in judged else "not judged there"
            if other:
                ratio = decimal(of.least_matched(other.solution, tolerance), 3)
                known = f"{other.solution}, lowest matched ratio {ratio}"
            said.append(f"  at {tolerance} tolerance: {known}")
    return said


def limits(layer: Layer) -> list[str]:
    """Lines: why the layer as it is defined does not serve the model on one GPU; none where it does."""
    if layer.is_part:
        known = f"{layer.sizes['num_experts']} of the model's {layer.experts} experts"
        return [f"  it cannot serve the model: the definition has {known}, and routes among these alone"]
    if (needed := model_gb(layer)) > GPU_GB:
        return [f"  does not fit: weights of {layer.count} layers take {needed:.0f} GB, one {MEASURED_ON} has {GPU_GB}"]
    return []


def call(layer: Layer, solution: str) -> list[str]:
    """Lines: the package, and how a program imports it."""
    first = read_manifest(solution).definitions[0] if solution in solution_names() else "full"
    return [
        f"  call it: moebench pack {solution} --package moe --definition {layer.geometry}",
        f"           from moe.{packed_name(solution, layer.geometry, first)} import run",
    ]


def written_for(layer: Layer, target: str) -> str:
    """Solutions that serve the layer on an architecture, measured or not."""
    names = [name for name in solutions_of([layer.geometry]) if target in read_manifest(name).target_hardware]
    return f"written for {target}: {', '.join(names)}" if names else f"no solution is written for {target}"


def advice(layer: Layer, found: Comparison, gpu: str | None) -> list[str]:
    """Lines: for each machine the solution to use, or why there is none; then how to call it, or to measure.

    gpu: H200, sm_90 or the like; without one every machine that was recorded. Raises UserError for an unknown one.
    """
    if (target := architecture(gpu or MEASURED_ON)) is None:
        raise UserError(unknown("GPU", gpu, [*GPUS, *dict.fromkeys(GPUS.values())]))
    recorded = dict.fromkeys(section.hardware for section in found.sections if section.definition == layer.definition)
    verdicts = {name: verdict(layer, found, name) for name in recorded if not gpu or architecture(name) == target}
    shown = {name: of for name, of in verdicts.items() if not gpu or is_named(name, gpu)}
    lines, subject = [], f"{layer.name} ({layer.geometry})"
    if not shown:
        lines.append(f"{subject} on {gpu or MEASURED_ON}: not measured; {written_for(layer, target)}")
    for name, of in (shown or verdicts).items():
        first, *rest = [of.missing] if of.missing else measured(of)
        lines += [f"{subject} on {name}: {first}", *rest]
    lines += limits(layer)
    called = dict.fromkeys(of.best.solution for of in verdicts.values() if of.best)
    if not called:
        return [*lines, f"  measure it: moebench run --definition {layer.geometry}"]
    return lines if layer.is_part else [*lines, *(line for name in called for line in call(layer, name))]
