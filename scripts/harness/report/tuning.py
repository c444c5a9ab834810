"""What a tuning record says, as tables: in the terminal and in docs/tune.md."""

from itertools import product
from pathlib import Path

from harness.core import paths
from harness.report.table import Table
from harness.results import staleness
from harness.tuning.prune import counts_by_kind
from harness.tuning.record import STAGES, Record
from harness.tuning.space import TileSize, Variant, best_pair

SHOWN = 6  # configurations of each column and T in the terminal: the best
SHOWN_ON_PAGE = 3
STAGE_NAMES = ("gemm1", "gemm2")
COLUMNS = tuple(product(STAGE_NAMES, (True, False)))  # stage, TMA in gemm2


def best_by_tile(times: dict[Variant, float], stage: str, tma: bool) -> dict[TileSize, str]:
    """A tile's best time in a stage and mode as a cell, over all fused and padded_to; the fastest tile first."""
    found = {}
    for variant in sorted(times, key=times.get):
        if (variant.stage, variant.tma) == (stage, tma):
            swiglu = f" {'fused' if variant.fused else 'apart'}" if stage == "gemm1" else ""
            found.setdefault(variant.tile, f"{times[variant]:.1f}{swiglu}")
    return found


def tuned_tokens(record: Record) -> list[int]:
    return sorted({tokens for tokens, _ in record.timed})


def times_table(record: Record, num_tokens: int, shown: int | None = SHOWN) -> Table:
    """Each column's best tiles at one T, in the order of the first column that has them; shown=None: all."""
    columns = [best_by_tile(record.times(num_tokens), *column) for column in COLUMNS]
    tiles = dict.fromkeys(tile for column in columns for tile in list(column)[:shown])
    rows = [[str(tile), str(num_tokens), *(column.get(tile, "-") for column in columns)] for tile in tiles]
    failed = [line for (tokens, _), line in record.timed.items() if tokens == num_tokens and line.error]
    modes = [f"{stage} us {'with TMA' if tma else 'without'}" for stage, tma in COLUMNS]
    title = f"{record.head.provenance.hardware}, T={num_tokens}"
    return Table(["configuration", "T", *modes], [rows], title, warnings=[f"{x.what}: {x.error}" for x in failed])


def kept_table(record: Record) -> Table:
    """The tiles that are kept; the present ones' time beside the best found, gemm1 (with SwiGLU) and gemm2 in sequence.

    Microseconds.
    """
    rows = []
    for num_tokens, line in sorted(record.compared.items()):
        first, second = line.kept
        tiles = [str(first.tile), "inside gemm1" if first.fused else "after gemm1"]
        tiles += [str(second.tile), "TMA" if first.tma else "by index"]
        times = [f"{us:.1f}" for us in (line.present_us, line.found_us, line.noise_us)]
        gain = "as before" if line.kept == line.present else f"{line.present_us / line.found_us:.2f}x"
        rows.append([*tiles, str(num_tokens), str(line.layers), *times, gain])
    head = ["gemm1", "SwiGLU", "gemm2", "h", "T", "layers", "before us", "best found us", "noise us", "gain"]
    return Table(head, [rows], "Tiles that are kept", words=4)


def gain_table(record: Record) -> Table:
    """What TMA is worth: the best of each GEMM in either mode, and of both together; only T where all were timed."""
    rows = []
    for num_tokens in tuned_tokens(record):
        times = record.times(num_tokens)
        modes = [{v: us for v, us in times.items() if v.tma == tma} for tma in (False, True)]
        pairs = [best_pair(mode) for mode in modes]
        if None in pairs:
            continue
        gemm1, gemm2 = ([min(mode[v] for v in mode if v.stage == stage) for mode in modes] for stage in STAGE_NAMES)
        both = [times[first] + times[second] for first, second in pairs]
        cells = [[f"{us:.1f}" for us in found] for found in (gemm2, gemm1, both)]
        gains = [f"{without / with_:.2f}x" for without, with_ in (gemm2, both)]
        rows.append([str(num_tokens), *cells[0], gains[0], *cells[1], *cells[2], gains[1]])
    head = ["T", "gemm2 us without TMA", "with", "gain", "gemm1 us in pair order", "in expert order"]
    return Table([*head, "both us without", "both with", "gain"], [rows], "What TMA in gemm2 is worth", words=0)


def tables(record: Record, tokens: list[int], shown: int | None) -> list[Table]:
    """All tables for the terminal: times at these T and, once something was compared, what is kept and TMA's worth."""
    found = [times_table(record, at, shown) for at in tuned_tokens(record) if at in tokens]
    return found + ([kept_table(record), gain_table(record)] if record.compared else [])


def record_markdown(record: Record) -> str:
    """Routing, versions, whether it is stale, how many candidates were left out and timed; then all tables."""
    head, reasons = record.head, record.left_out.values()
    stale = "" if staleness.of_stages(head.provenance, STAGES) == "current" else " **Stale: the kernels have changed.**"
    wrong = sum(line.error is not None for line in record.timed.values())
    lines = [
        f"## {head.provenance.hardware}, hidden {head.hidden}, intermediate {head.intermediate}",
        f"Routing: {head.routing}. {head.versions_text}.{stale} Left out before timing: {len(reasons)} "
        f"({counts_by_kind(reasons)}). Timed: {len(record.timed)}, of which {wrong} failed the check or did not run.",
    ]
    shown = [times_table(record, num_tokens, SHOWN_ON_PAGE) for num_tokens in tuned_tokens(record)]
    tables = [kept_table(record), gain_table(record), *shown]
    return "\n\n".join([*lines, *(table.markdown(titled=True) for table in tables)])


def block(folder: Path = paths.TUNING) -> str:
    """Markdown of every record in the folder. Raises UserError for a file that is no record."""
    records = [record_markdown(Record(path)) for path in sorted(folder.glob("*.jsonl"))]
    return "\n\n".join(records) or "Nothing has been recorded yet: run the command above on a GPU."
