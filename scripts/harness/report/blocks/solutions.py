"""The tables of the solutions in docs/backends.md, made from each solution.toml and from traces/."""

from collections import defaultdict
from itertools import groupby

from definitions import moe_fp8_block_scale
from harness.packing import manifest
from harness.packing.manifest import Facts
from harness.report.table import Table
from harness.results.comparison import Comparison
from harness.results.summary import LEVEL

TOLERANCE = "relaxed"
TABLES = {"Numerics": ("input", "intermediate", "granularity"), "Kernels": ("launches", "activation", "layout")}


def level_at(found: Comparison) -> dict[str, dict[str, list[int]]]:
    """Solution -> machine -> token counts at which it is level with the fastest of its run group at TOLERANCE.

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
                        if cell.level and row.workload.seq_len not in at:
                            at.append(row.workload.seq_len)
    return out


def spans(chosen: list[int], among: list[int]) -> str:
    """'1 to 59, 901': neighbours in the sorted list `among` as one span; 'nowhere' for none."""
    places = enumerate(among.index(item) for item in chosen)
    runs = [[place for _, place in run] for _, run in groupby(places, key=lambda pair: pair[1] - pair[0])]
    ends = [dict.fromkeys((among[run[0]], among[run[-1]])) for run in runs]
    return ", ".join(" to ".join(map(str, pair)) for pair in ends) or "nowhere"


def block(found: Comparison) -> str:
    """Markdown, one row per solution with [facts]. Raises PackingError for one that was measured without."""
    fastest, stated = level_at(found), {}
    for name in manifest.solutions_of(moe_fp8_block_scale.GEOMETRIES):
        read = manifest.read_manifest(name)
        if read.facts is None and name in fastest:
            raise manifest.refusal(name, "[facts]", None, f"a table of {', '.join(Facts.model_fields)}")
        if read.facts is not None:  # else a solution that somebody has begun
            stated[name] = read
    tested = sorted({t for machines in fastest.values() for lengths in machines.values() for t in lengths})
    use = [
        [
            f"`{name}`",
            ", ".join(read.target_hardware),
            read.facts.best,
            "; ".join(f"{gpu}: {spans(at, tested)}" for gpu, at in fastest.get(name, {}).items()) or "not measured",
            ", ".join(module for module in read.dependencies if module != "torch"),
        ]
        for name, read in stated.items()
    ]
    within = f"T within {LEVEL - 1:.0%} of the fastest ({TOLERANCE})"
    head = ["solution", "runs on", Facts.model_fields["best"].description, within, "imports, with torch"]
    parts = [Table(head, [use], words=len(head)).markdown()]
    for title, fields in TABLES.items():
        rows = [[f"`{name}`", *(getattr(read.facts, field) for field in fields)] for name, read in stated.items()]
        head = ["solution", *(Facts.model_fields[field].description for field in fields)]
        parts.append(Table(head, [rows], title, words=len(head)).markdown(titled=True))
    return "\n\n".join(parts)
