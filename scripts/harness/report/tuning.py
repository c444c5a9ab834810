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
STAGE_NAMES = ("gemm1", "gemm2")
COLUMNS = tuple(product(STAGE_NAMES, (True, False)))  # stage, TMA in gemm2


def best_by_tile(times: dict[Variant, float], stage: str, tma: bool) -> dict[TileSize, str]:
    """A tile's best time in a stage and mode as a cell, over all fused and padded_to; the fastest tile first."""
    found = {}
    for variant in sorted(times, key=times.get):
        if (variant.stage, variant.tma) == (stage, tma):
            swiglu = f" {'fused' if variant.fused else 'separate'}" if stage == "gemm1" else ""
            found.setdefault(variant.tile, f"{times[variant]:.1f}{swiglu}")
    return found


def tuned_tokens(record: Record) -> list[int]:
    return sorted({tokens for tokens, _ in record.timed})


def times_table(record: Record, num_tokens: int, shown: int | None) -> Table:
    """Each column's best tiles at one T, in the order of the first column that has them; shown=None: all."""
    columns = [best_by_tile(record.times(num_tokens), *column) for column in COLUMNS]
    tiles = dict.fromkeys(tile for column in columns for tile in list(column)[:shown])
    rows = [[tile, *(column.get(tile) for column in columns)] for tile in tiles]
    failed = [line for (tokens, _), line in record.timed.items() if tokens == num_tokens and line.error]
    modes = [f"{stage} us {'with TMA' if tma else 'without'}" for stage, tma in COLUMNS]
    title = f"{record.head.provenance.hardware}, T={num_tokens}"
    return Table(["configuration", *modes], [rows], title, warnings=[f"{x.what}: {x.error}" for x in failed])


def kept_table(record: Record) -> Table:
    """The kept tiles; time of gemm1 (with SwiGLU) and gemm2 in sequence, with previous tiles and the best found."""
    rows = []
    for num_tokens, line in sorted(record.compared.items()):
        first, second = line.kept
        tiles = [first.tile, "in gemm1" if first.fused else "separate", second.tile, "TMA" if first.tma else "by index"]
        times = [f"{us:.1f}" for us in (line.present_us, line.found_us, line.noise_us)]
        gain = "unchanged" if line.kept == line.present else f"{line.present_us / line.found_us:.2f}x"
        rows.append([num_tokens, *tiles, *times, gain])
    head = ["T", "gemm1", "SwiGLU", "gemm2", "h", "previous us", "found us", "noise us", "gain"]
    return Table(head, [rows], "Tiles that are kept", words=5)


def gain_table(record: Record) -> Table:
    """The best of each GEMM, and of both, without and with TMA in gemm2; only T where all were timed."""
    rows = []
    for num_tokens in tuned_tokens(record):
        times = record.times(num_tokens)
        modes = [{v: us for v, us in times.items() if v.tma == tma} for tma in (False, True)]
        pairs = [best_pair(mode) for mode in modes]
        if None in pairs:
            continue
        best = [[min(mode[v] for v in mode if v.stage == stage) for mode in modes] for stage in STAGE_NAMES]
        best.append([times[first] + times[second] for first, second in pairs])
        cells = [f"{without:.1f} / {with_:.1f} ({without / with_:.2f}x)" for without, with_ in best]
        rows.append([num_tokens, *cells])
    title = "TMA in gemm2: us without / with (gain)"
    return Table(["T", *STAGE_NAMES, "best pair"], [rows], title, words=0)


def tables(record: Record, tokens: list[int], shown: int | None) -> list[Table]:
    """For the terminal: times at these T and, once tiles were compared, those that are kept and the effect of TMA."""
    found = [times_table(record, at, shown) for at in tuned_tokens(record) if at in tokens]
    compared = [kept_table(record), gain_table(record)] if record.compared else []
    return found + [table for table in compared if any(table.sections)]


def record_markdown(record: Record) -> str:
    """Routing, versions, whether it is stale, how many candidates were pruned and timed; what is kept; TMA's effect."""
    head, reasons = record.head, record.left_out.values()
    stale = "" if staleness.of_stages(head.provenance, STAGES) == "current" else " **Stale: the kernels have changed.**"
    wrong = sum(line.error is not None for line in record.timed.values())
    lines = [
        f"### {head.provenance.hardware}, {head.local_experts} local experts, hidden {head.hidden}, "
        f"intermediate {head.intermediate}",
        f"Routing: {head.routing}. {head.versions_text}.{stale} Pruned before timing: {len(reasons)} "
        f"({counts_by_kind(reasons)}). Timed: {len(record.timed)}, of which {wrong} wrong or failed.",
    ]
    shown = [table for table in (kept_table(record), gain_table(record)) if any(table.sections)]
    return "\n\n".join([*lines, *(table.markdown(titled=True) for table in shown)])


def block(folder: Path = paths.TUNING) -> str:
    """Markdown of every record in the folder. Raises UserError for a file that is no record."""
    records = [record_markdown(Record(path)) for path in sorted(folder.glob("*.jsonl"))]
    return "\n\n".join(records) or "Nothing has been recorded yet: run the command above on a GPU."
