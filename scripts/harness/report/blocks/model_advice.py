"""What the user of a model reads: which solution, how fast, how far from the bound, and how to call it."""

from harness.core.errors import UserError
from harness.core.names import unknown
from harness.operators.roofline import MEASURED_ON
from harness.packing.eligibility import GPUS, architecture
from harness.packing.manifest import read_manifest, solutions_of
from harness.report.comparison import decimal
from harness.results.comparison import TOLERANCE_ORDER, Comparison
from harness.results.model_names import Layer
from harness.results.models import Verdict, verdict


def is_named(hardware: str, gpu: str) -> bool:
    """Whether a user who says `gpu` (NVIDIA H200, H200 or sm_90) means this machine of the traces."""
    return gpu.lower() in (architecture(hardware), hardware.lower(), *hardware.lower().split())


def measured(of: Verdict) -> str:
    """'hopper_fused, 45.1 times as fast as the torch reference, ...': the solution to use, in a line."""
    best, lengths = of.best, [row.workload.seq_len for row in of.group.rows]
    said = [f"{best.solution}, {decimal(best.mean, 1)} times as fast as the torch reference (mean)"]
    if best.over_bound:
        said.append(f"{decimal(best.over_bound, 2)} times the roofline bound")
    if of.peers:
        said.append(f"{of.peers[0].geometric_mean:.2f} times as fast as {of.peers[0].b}")
    counts = ", ".join(f"{t} {decimal(of.passed(t), 0)}" for t in TOLERANCE_ORDER)
    return f"{', '.join(said)}; T = {min(lengths)} to {max(lengths)}; passed of {best.workloads}: {counts}"


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
        lines.append(f"{subject} on {name}: {of.missing or measured(of)}")
    called = dict.fromkeys(of.best.solution for of in verdicts.values() if of.best)
    lines += [f"  call it: moebench pack {name} --package moe --definition {layer.geometry}" for name in called]
    return lines if called else [*lines, f"  measure it: moebench run --definition {layer.geometry}"]
