"""The table of the solutions in docs/backends.md, made from each solution.toml and from traces/."""

from collections import defaultdict

from definitions import moe_fp8_block_scale
from harness.packing import manifest
from harness.packing.manifest import Facts
from harness.report.table import Table
from harness.results.comparison import Comparison

TOLERANCE = "relaxed"
NOISE = 1.05  # as fast as the fastest, within a run's scatter


def fastest_at(found: Comparison) -> dict[str, dict[str, list[int]]]:
    """Solution -> machine -> token counts at which none of its run group at TOLERANCE is faster by more than NOISE.

    Every solution that was timed there with its current source has an entry, be it without a token count.
    """
    out = defaultdict(lambda: defaultdict(list))
    for section in found.sections:
        for group in section.groups:
            if group.tolerance_name != TOLERANCE:
                continue
            for row in group.rows:
                for name, cell in row.cells.items():
                    if cell.counts:
                        at = out[name][section.hardware]
                        if cell.latency_ms <= NOISE * row.ms(row.winner) and row.workload.seq_len not in at:
                            at.append(row.workload.seq_len)
    return out


def block(found: Comparison) -> str:
    """Markdown, one row per solution with [facts]. Raises PackingError for one that was measured without."""
    facts = [field.description for field in Facts.model_fields.values()]
    head = ["solution", "runs on", *facts, f"within {NOISE - 1:.0%} of the fastest at T ({TOLERANCE})", "imports"]
    rows = []
    fastest = fastest_at(found)
    for name in manifest.solutions_of(moe_fp8_block_scale.GEOMETRIES):
        stated = manifest.read_manifest(name)
        if stated.facts is None and name not in fastest:
            continue  # a solution that somebody has begun
        if stated.facts is None:
            raise manifest.refusal(name, "[facts]", None, f"a table of {', '.join(Facts.model_fields)}")
        at = [f"{gpu}: {', '.join(map(str, lengths)) or 'nowhere'}" for gpu, lengths in fastest.get(name, {}).items()]
        row = [
            f"`{name}`",
            ", ".join(stated.target_hardware),
            *stated.facts.model_dump().values(),
            "; ".join(at) or "not measured",
            ", ".join(f"`{module}`" for module in stated.dependencies),
        ]
        rows.append(row)
    return Table(head, [rows], words=len(head)).markdown()
