"""The search space: tiles of the two grouped GEMMs, their names, and which of them can run together.

Rows are padded once, so gemm1's BLOCK_M is a multiple of gemm2's. A variant of gemm2 therefore names the padding, and
the two are chosen as a pair: the least sum of times among those with one padding and one order of h.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, NamedTuple

from pydantic import ConfigDict

from harness.core.errors import UserError

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
    """One GEMM with one tile in one mode; a field of this type in a pydantic model is checked like a model.

    padded_to: rows that an expert's rows are padded to a multiple of: gemm1's BLOCK_M, a multiple of gemm2's.
    tma: gemm2 reads h through TMA, and gemm1 stores it in expert order; else in pair order, gathered by index.
    fused: gemm1 applies SwiGLU itself; meaningless for gemm2.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    stage: Literal["gemm1", "gemm2"]
    tile: TileSize
    padded_to: int
    tma: bool
    fused: bool = False

    def __str__(self) -> str:
        mode = f"{'fused' if self.fused else 'apart'}" if self.stage == "gemm1" else f"of{self.padded_to}"
        return f"{self.stage} {self.tile} {mode} {'tma' if self.tma else 'index'}"


Pair = tuple[Variant, Variant]  # of gemm1 and of gemm2


def parse_configuration(text: str) -> TileSize:
    """A tile from its name, as m64-n128-g16-p2-w4-s3. Raises UserError."""
    match = CONFIGURATION.fullmatch(text)
    if not match:
        wanted = "BLOCK_M, BLOCK_N, group, programs, warps, stages as in m64-n128-g16-p2-w4-s3"
        raise UserError(f"configuration {text!r}: want {wanted}")
    tile = TileSize(*map(int, match.groups()))
    for field, values in (("block_m", BLOCK_MS), ("block_n", GEMM2_BLOCK_NS), ("num_warps", WARPS)):
        if (got := getattr(tile, field)) not in values:
            raise UserError(f"configuration {text!r}: {field} is {got}, want one of {', '.join(map(str, values))}")
    if 0 in tile:
        raise UserError(f"configuration {text!r}: has a zero, want 1 or more everywhere")
    return tile


def useful_block_ms(rows_per_expert: float) -> list[int]:
    """BLOCK_Ms from a quarter to twice what would hold an active expert's rows in one tile."""
    holds = next((m for m in BLOCK_MS if m >= rows_per_expert), BLOCK_MS[-1])
    return [m for m in BLOCK_MS if holds // 4 <= m <= 2 * holds]


def modes(tile: TileSize, block_ms: Iterable[int]) -> list[Variant]:
    """Every variant with this tile: of gemm1 if BLOCK_N is 128, of gemm2 for each padding that it divides."""
    found = []
    if tile.block_n == 128:
        found += [Variant("gemm1", tile, tile.block_m, tma, fused) for tma in (True, False) for fused in (True, False)]
    paddings = sorted({m for m in (*block_ms, tile.block_m) if m % tile.block_m == 0})
    return found + [Variant("gemm2", tile, padded_to, tma) for tma in (True, False) for padded_to in paddings]


def variants(block_ms: list[int], group: int) -> list[Variant]:
    """All variants with one group; groups are searched last, for the best pairs alone (see other_groups)."""
    fields = product(block_ms, GEMM2_BLOCK_NS, [group], PER_SM, WARPS, STAGES)
    return [variant for tile in map(TileSize._make, fields) for variant in modes(tile, block_ms)]


# What a search with a budget tries: (BLOCK_M, BLOCK_N, group, per_sm, warps, stages), SwiGLU fused in gemm1 or not. For
# each BLOCK_M, what was within 5% of the best somewhere in the H200's full search (docs/data/tune), gemm2 through TMA,
# and for fewer columns and steps of K than were searched there one tile that launches more programs or fuses SwiGLU.
COARSE_GEMM1 = [
    ((16, 128, 8, 1, 4, 6), False),
    ((16, 128, 8, 3, 4, 4), False),
    ((16, 128, 8, 1, 4, 5), True),
    ((16, 128, 8, 2, 4, 3), True),
    ((32, 128, 8, 2, 4, 3), True),
    ((32, 128, 32, 2, 4, 3), True),
    ((32, 128, 8, 1, 4, 4), True),
    ((32, 128, 8, 2, 4, 4), False),
    ((64, 128, 8, 2, 4, 3), False),
    ((64, 128, 16, 2, 4, 3), False),
    ((64, 128, 32, 2, 4, 3), False),
    ((64, 128, 16, 2, 4, 4), False),
    ((64, 128, 16, 1, 8, 3), True),
]
COARSE_GEMM2 = [
    (16, 64, 8, 1, 4, 6),
    (16, 64, 8, 3, 4, 6),
    (16, 128, 8, 3, 4, 3),
    (16, 128, 8, 3, 4, 4),
    (16, 128, 8, 2, 4, 5),
    (32, 64, 8, 3, 4, 5),
    (32, 128, 8, 3, 4, 3),
    (32, 128, 8, 2, 4, 5),
    (32, 128, 16, 2, 4, 5),
    (64, 128, 8, 2, 4, 3),
    (64, 128, 16, 2, 4, 3),
    (64, 128, 32, 2, 4, 3),
    (64, 128, 16, 2, 4, 4),
    (64, 64, 16, 3, 4, 3),
]


def coarse(rows_per_expert: float) -> list[Variant]:
    """At most ten or so of each GEMM for each BLOCK_M from half to three times an active expert's rows."""

    def fits(size: tuple) -> bool:
        return min(rows_per_expert, 64) / 2 <= size[0] <= 3 * max(rows_per_expert, 8)

    first = [Variant("gemm1", TileSize(*size), size[0], True, fused) for size, fused in COARSE_GEMM1 if fits(size)]
    return first + [Variant("gemm2", TileSize(*size), size[0], True) for size in COARSE_GEMM2 if fits(size)]


def other_groups(variant: Variant) -> list[Variant]:
    """The variant with every other group."""
    return [replace(variant, tile=variant.tile._replace(group=g)) for g in GROUPS if g != variant.tile.group]


def compiled_as(variant: Variant) -> Variant:
    """Stands for all variants that compile to the same code: per_sm only sizes the grid."""
    return replace(variant, tile=variant.tile._replace(per_sm=1))


def go_together(gemm1: Variant, gemm2: Variant) -> bool:
    """Whether they are a gemm1 and a gemm2 with one padding, a multiple of both BLOCK_Ms, and one order of h."""
    if (gemm1.stage, gemm2.stage) != ("gemm1", "gemm2") or gemm1.tma != gemm2.tma:
        return False
    return gemm1.tile.block_m == gemm1.padded_to == gemm2.padded_to and gemm1.padded_to % gemm2.tile.block_m == 0


def best_pair(times: dict[Variant, float]) -> Pair | None:
    """gemm1 and gemm2 with the least sum of times among those that go together; None without any."""
    best = {}
    for variant in sorted(times, key=times.get):
        best.setdefault((variant.stage, variant.padded_to, variant.tma), variant)
    pairs = [pair for pair in product(best.values(), repeat=2) if go_together(*pair)]
    return min(pairs, key=lambda pair: times[pair[0]] + times[pair[1]], default=None)
