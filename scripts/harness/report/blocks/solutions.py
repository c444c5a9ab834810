"""The tables of the solutions in docs/backends.md and of GPUs in README.md, from each solution.toml and traces/."""

from collections import defaultdict
from itertools import groupby
from typing import get_args

from definitions import moe_fp8_block_scale
from harness.operators.catalogue import FP8_MOE
from harness.packing import manifest
from harness.packing.eligibility import GPUS, architecture
from harness.packing.manifest import Facts
from harness.report.table import Table
from harness.results.comparison import Comparison, cell_table
from harness.results.summary import LEVEL

TOLERANCE = "relaxed"
TABLES = {"Numerics": ("input", "intermediate", "granularity"), "Kernels": ("launches", "activation", "layout")}
NAMED = 2  # GPUs of an architecture that stand for it


def level_at(found: Comparison) -> dict[str, dict[str, list[int]]]:
    """Solution -> machine -> token counts at which it is level with the fastest of its run group at TOLERANCE.

    Every solution that was timed there with its current source has an entry, be it without a token count.
    """
    cells, out = cell_table(found), defaultdict(dict)
    timed = cells[cells.counts & (cells.tolerance_name == TOLERANCE)]
    for (name, hardware), of in timed.groupby(["solution", "hardware"]):
        out[name][hardware] = sorted(set(of.seq_len[of.level]))
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


def gpus(found: Comparison) -> str:
    """README's table of GPUs: a row for architectures with the same solutions; those of no solution are left out."""
    cells = cell_table(found)
    judged = set(zip(cells.solution, cells.hardware.map(architecture), strict=True))  # be it with an older source
    written = {name: manifest.read_manifest(name).target_hardware for name in manifest.solutions_of(FP8_MOE)}
    rows = defaultdict(list)
    for target in get_args(manifest.Hardware):
        names = [name for name, targets in written.items() if target in targets]
        if names and target in GPUS.values():
            of_target = [gpu for gpu, architecture_of in GPUS.items() if architecture_of == target]
            there = tuple(name for name in names if (name, target) in judged)
            others = tuple(name for name in names if name not in there)
            rows[there, others].append(f"{target} ({', '.join(of_target[:NAMED])})")
    shown = [
        [", ".join(targets), *(", ".join(f"`{name}`" for name in names) or "none" for names in columns)]
        for columns, targets in rows.items()
    ]
    head = ["GPU", "solutions judged there", "written for it, **not judged** there"]
    return Table(head, [shown], words=len(head)).markdown()
