"""Which tiles are tried for the grouped products, what they are called, and which of them go together.

gemm1's BLOCK_M is a multiple of gemm2's, as rows are padded once. A variant of gemm2 therefore says to how many rows it
was padded, and the two are chosen together: those of one padding and one order of h with the least sum.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

BLOCK_MS = (16, 32, 64, 128)
GROUPS = (1, 4, 8, 16, 32)
PER_SM = (1, 2, 3)
WARPS = (4, 8)
STAGES = (3, 4, 5, 6)
GEMM2_BLOCK_NS = (64, 128)  # gemm1's column tile is one quantisation group of h, 128

CONFIGURATION = re.compile(r"m(\d+)-n(\d+)-g(\d+)-p(\d+)-w(\d+)-s(\d+)")


class TileSize(NamedTuple):
    """As triton_fused_v2's Tile, before the device is known."""

    block_m: int
    block_n: int
    group: int
    per_sm: int
    num_warps: int
    num_stages: int

    def __str__(self) -> str:
        return "m{}-n{}-g{}-p{}-w{}-s{}".format(*self)


@dataclass(frozen=True)
class Variant:
    """One product with one tile in one mode.

    stage: "gemm1" or "gemm2". padded_to: rows of a padded tile: gemm1's BLOCK_M, a multiple of gemm2's.
    tma: gemm2 reads through TMA, and gemm1 stores in expert order for it; else pair order and no TMA in gemm2.
    fused: gemm1 applies SwiGLU itself; of no meaning for gemm2.
    """

    stage: str
    tile: TileSize
    padded_to: int
    tma: bool
    fused: bool = False

    def __str__(self) -> str:
        mode = f"{'fused' if self.fused else 'apart'}" if self.stage == "gemm1" else f"of{self.padded_to}"
        return f"{self.stage} {self.tile} {mode} {'tma' if self.tma else 'index'}"


def parse_configuration(text: str) -> TileSize:
    """A tile from its name, m64-n128-g16-p2-w4-s3. Raises ValueError, one line, for what is none."""
    match = CONFIGURATION.fullmatch(text)
    if not match:
        raise ValueError(f"configuration {text!r}: want BLOCK_M, BLOCK_N, group, programs, warps, stages as in "
                         "m64-n128-g16-p2-w4-s3")  # fmt: skip
    tile = TileSize(*map(int, match.groups()))
    allowed = {"block_m": BLOCK_MS, "block_n": GEMM2_BLOCK_NS, "num_warps": WARPS}
    for field, values in allowed.items():
        if getattr(tile, field) not in values:
            listed = ", ".join(map(str, values))
            raise ValueError(f"configuration {text!r}: {field} is {getattr(tile, field)}, want one of {listed}")
    if 0 in tile:
        raise ValueError(f"configuration {text!r}: has a zero, want 1 or more everywhere")
    return tile


def useful_block_ms(rows_per_expert: float) -> list[int]:
    """BLOCK_Ms from a quarter to twice what would hold an active expert's rows in one tile."""
    holds = next((m for m in BLOCK_MS if m >= rows_per_expert), BLOCK_MS[-1])
    return [m for m in BLOCK_MS if holds // 4 <= m <= 2 * holds]


def modes(tile: TileSize, block_ms: Iterable[int]) -> list[Variant]:
    """Every variant that a tile may be: of gemm1 if its columns allow, of gemm2 for each padding that it divides."""
    found = []
    if tile.block_n == 128:
        found += [Variant("gemm1", tile, tile.block_m, tma, fused) for tma in (True, False) for fused in (True, False)]
    paddings = sorted({m for m in (*block_ms, tile.block_m) if m % tile.block_m == 0})
    return found + [Variant("gemm2", tile, padded_to, tma) for tma in (True, False) for padded_to in paddings]


def variants(block_ms: list[int], group: int) -> list[Variant]:
    """All that is tried with one group; groups come last, for the best of the rest (see other_groups)."""
    tiles = (
        TileSize(m, n, group, p, w, s) for m, n, p, w, s in product(block_ms, GEMM2_BLOCK_NS, PER_SM, WARPS, STAGES)
    )
    return [variant for tile in tiles for variant in modes(tile, block_ms)]


def other_groups(variant: Variant) -> list[Variant]:
    """The variant with every other group."""
    return [replace(variant, tile=variant.tile._replace(group=g)) for g in GROUPS if g != variant.tile.group]


def compiled_as(variant: Variant) -> Variant:
    """Stands for all variants that are the same code: programs a multiprocessor only size the grid."""
    return replace(variant, tile=variant.tile._replace(per_sm=1))


def go_together(gemm1: Variant, gemm2: Variant) -> bool:
    """Whether the constraint holds: one padding, a multiple of both BLOCK_Ms, and one order of h."""
    padding = gemm1.tile.block_m == gemm1.padded_to == gemm2.padded_to and gemm1.padded_to % gemm2.tile.block_m == 0
    return padding and gemm1.tma == gemm2.tma


def best_pair(times: dict[Variant, float]) -> tuple[Variant, Variant]:
    """gemm1 and gemm2 with the least sum of times among those that go together. Raises ValueError without any."""
    best = {}
    for variant, us in times.items():
        key = variant.stage, variant.padded_to, variant.tma
        if us < times.get(best.get(key), float("inf")):
            best[key] = variant
    firsts = [variant for variant in best.values() if variant.stage == "gemm1"]
    pairs = [(first, second) for first in firsts for second in best.values() if second.stage == "gemm2"]
    pairs = [pair for pair in pairs if go_together(*pair)]
    if not pairs:
        raise ValueError("no timed gemm1 goes with a timed gemm2: want one padding and one order of h for both")
    return min(pairs, key=lambda pair: times[pair[0]] + times[pair[1]])
