"""What a tuning record says, as tables: for the terminal, for docs/tune.md, and as the file that the solution loads."""

from harness.profiling.profile_tables import Grid
from harness.tuning.tune_record import Described, Record
from harness.tuning.tune_space import TileSize, Variant, best_pair

SHOWN = 6  # configurations of each column and T that are printed: the best
COLUMNS = (("gemm1", True), ("gemm1", False), ("gemm2", True), ("gemm2", False))
HEADINGS = ("configuration", "T", "gemm1 us with TMA", "gemm1 us without", "gemm2 us with TMA", "gemm2 us without")


def best_by_tile(times: dict[Variant, float], stage: str, tma: bool) -> dict[TileSize, tuple[float, Variant]]:
    """A tile's best time in a stage and mode, over SwiGLU inside or after gemm1 and over the paddings of gemm2."""
    found: dict[TileSize, tuple[float, Variant]] = {}
    for variant, us in times.items():
        if (variant.stage, variant.tma) == (stage, tma) and us < found.get(variant.tile, (float("inf"),))[0]:
            found[variant.tile] = us, variant
    return found


def cell(found: tuple[float, Variant] | None) -> str:
    if found is None:
        return "-"
    us, variant = found
    return f"{us:.1f} {'fused' if variant.fused else 'apart'}" if variant.stage == "gemm1" else f"{us:.1f}"


def rows(record: Record, num_tokens: int, shown: int | None = SHOWN) -> list[list[str]]:
    """Rows under HEADINGS for one T: each column's best tiles, the first column's order; None shows all."""
    times = record.times(num_tokens)
    columns = [best_by_tile(times, *column) for column in COLUMNS]
    tiles: dict[TileSize, None] = {}
    for column in columns:
        tiles |= dict.fromkeys(sorted(column, key=lambda tile: column[tile][0])[:shown])
    return [[str(tile), str(num_tokens), *(cell(column.get(tile)) for column in columns)] for tile in tiles]


def tuned_tokens(record: Record) -> list[int]:
    return sorted({tokens for tokens, _ in record.timed})


def times_grid(record: Record, num_tokens: int, shown: int | None = SHOWN) -> Grid:
    """The best tiles at one T, each product with TMA in gemm2 and without."""
    failed = [line for (tokens, _), line in record.timed.items() if tokens == num_tokens and line.error]
    wrong = [f"{line.what.variant()}: {line.error}" for line in failed]
    return Grid(f"{record.head.gpu}, T={num_tokens}", list(HEADINGS), rows(record, num_tokens, shown), 1, [], wrong)


def pair_name(pair: list[Described]) -> list[str]:
    """Cells: gemm1's tile, gemm2's, and how h goes between them."""
    first, second = (described.variant() for described in pair)
    swiglu = "inside gemm1" if first.fused else "after gemm1"
    return [str(first.tile), swiglu, str(second.tile), "TMA" if first.tma else "by index"]


def compared_grid(record: Record) -> Grid:
    """The tiles that the solution had beside the best found, gemm1 (with SwiGLU) and gemm2 in sequence."""
    found = []
    for num_tokens, line in sorted(record.compared.items()):
        times = [f"{us:.1f}" for us in (line.present_us, line.found_us, line.noise_us)]
        kept = "as before" if line.kept == line.present else f"{line.present_us / line.found_us:.2f}x"
        found.append([*pair_name(line.kept), str(num_tokens), str(line.layers), *times, kept])
    headings = ["gemm1", "SwiGLU", "gemm2", "h", "T", "layers", "before us", "best found us", "noise us", "gain"]
    return Grid("Tiles that are kept", headings, found, 4)


def best_us(record: Record, num_tokens: int, stage: str, tma: bool) -> float | None:
    return min((us for v, us in record.times(num_tokens).items() if (v.stage, v.tma) == (stage, tma)), default=None)


def gain_grid(record: Record) -> Grid:
    """What TMA is worth: the best of each product in either mode, and of both together."""
    found = []
    for num_tokens in tuned_tokens(record):
        figures = [best_us(record, num_tokens, *column) for column in COLUMNS]
        if None in figures:
            continue
        times = record.times(num_tokens)
        sums = {}
        for tma in (True, False):
            pair = best_pair({variant: us for variant, us in times.items() if variant.tma == tma})
            sums[tma] = sum(times[variant] for variant in pair)
        first_with, first_without, second_with, second_without = figures
        found.append(
            [
                str(num_tokens),
                *(f"{us:.1f}" for us in (second_without, second_with)),
                f"{second_without / second_with:.2f}x",
                *(f"{us:.1f}" for us in (first_without, first_with, sums[False], sums[True])),
                f"{sums[False] / sums[True]:.2f}x",
            ]
        )
    headings = ["T", "gemm2 us without TMA", "with", "gain", "gemm1 us in pair order", "in expert order"]
    return Grid("What TMA in gemm2 is worth", [*headings, "both us without", "both with", "gain"], found, 0)


def table_source(record: Record) -> str:
    """The solution's table of what was kept, as Python. Raises ValueError where nothing was compared yet."""
    if not record.compared:
        raise ValueError("nothing has been chosen yet: no T was tuned to its end")
    head = record.head
    versions = ", ".join(f"{name} {version}" for name, version in sorted(head.libs.items()))
    lines = [
        f'"""{record.head.gpu}: tiles by token count, {head.local_experts} local experts, hidden {head.hidden}, '
        f"intermediate {head.intermediate}.",
        "",
        f"Written by moebench tune from {record.path.name if record.path else 'a record'}: {versions}.",
        '"""',
        "",
        "TABLE = (",
    ]
    for num_tokens, line in sorted(record.compared.items()):
        first, second = (described.variant() for described in line.kept)
        lines += ["    {", f'        "T": {num_tokens},', f'        "gemm1_fused": {first.fused},']
        lines += [f'        "gemm2_tma": {first.tma},']
        for stage, variant in (("gemm1", first), ("gemm2", second)):
            fields = ", ".join(f'"{field}": {value}' for field, value in variant.tile._asdict().items())
            lines.append(f'        "{stage}": {{{fields}}},')
        lines.append("    },")
    return "\n".join([*lines, ")", ""])
