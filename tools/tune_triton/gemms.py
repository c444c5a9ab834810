"""Run triton_fused_v2's grouped GEMMs with one tile at a time: what they compute, and how long the
device takes.

choice: the solution's Choice, or what `choice_of` puts in its place. given: modules and tensors,
made by `prepare`.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from statistics import median
from types import SimpleNamespace

import torch
from candidates import BLOCK_MS
from moebench.judging.calling import random_fp8

FLUSH_BYTES = (
    2**29
)  # ten times the L2 of an H200; writing it also hides the host's part of a launch
TOLERANCE = (
    0.05  # of a row's norm; a row has 256 values or more, of which a wrong tile spoils 64 or more
)


def operands(
    sizes: tuple[int, int, int], num_tokens: int, device: str
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Tokens [T, H], w13 [E, 2I, H] and w2 [E, H, I], each with its scales; normal values, the same
    in every run.
    """
    local, hidden, inter = sizes
    fp8, fp32 = partial(random_fp8, device=device, source=None), partial(torch.randn, device=device)
    torch.manual_seed(0)
    return [
        (fp8((num_tokens, hidden)), fp32(hidden // 128, num_tokens)),
        (fp8((local, 2 * inter, hidden)), fp32(local, 2 * inter // 128, hidden // 128)),
        (fp8((local, hidden, inter)), fp32(local, hidden // 128, inter // 128)),
    ]


def prepare(package: str, tensors: list, expert: torch.Tensor) -> SimpleNamespace:
    """What is given with one routing, expert [T, top-k] int32 on the CPU: local numbers, -1 for
    another rank's.

    package: of a solution that FIB has built. tensors: `operands` of at least T tokens.
    """
    layer, permute = (
        import_module(f"{package}.common.triton.{name}") for name in ("layer", "permute")
    )
    (x, x_scale), w13, w2 = tensors
    permutations = {}
    for block_m in (
        BLOCK_MS
    ):  # by the plain statement: its kernels are not what is timed, and take seconds to compile
        *found, _ = permute.permute_ref(expert, len(w13[0]), block_m)
        permutations[block_m] = permute.Permutation(*(part.to(x.device) for part in found), None)
    x = x[: len(expert)], x_scale[:, : len(expert)].contiguous()
    return SimpleNamespace(
        layer=layer, expert=expert, x=x, w13=w13, w2=w2, permutations=permutations
    )


def gemm1(given: SimpleNamespace, choice) -> tuple[torch.Tensor, torch.Tensor]:
    """h [rows, I] fp8 and its scales [rows, I/128] fp32."""
    return given.layer.gemm1_swiglu(
        *given.x, *given.w13, given.permutations[choice.gemm1.block_m], choice
    )


def gemm2(given: SimpleNamespace, choice, h: tuple | None = None) -> torch.Tensor:
    """y [slices, rows, H/slices] bf16. h: what gemm1 gave; without it gemm1 is run first."""
    h = h or gemm1(given, choice)
    permutation, hidden = given.permutations[choice.gemm1.block_m], given.w2[0].shape[1]
    rows = len(permutation.pair_of_row)
    slices = given.layer.column_slices(rows, hidden)
    y = torch.empty(slices, rows, hidden // slices, dtype=torch.bfloat16, device=h[0].device)
    for at, part in enumerate(y):
        given.layer.gemm2_columns(*h, *given.w2, permutation, at * hidden // slices, part, choice)
    return y


def values(stage: str, given: SimpleNamespace, choice) -> torch.Tensor:
    """h or y of the local pairs, [pairs, columns] fp32 in pair order; choice: with TMA, so that h
    is in expert order.

    Until `times_us` fresh memory is NaN: a tile that writes nothing cannot pass with the previous
    one's result.
    """
    torch.use_deterministic_algorithms(True, warn_only=True)
    if stage == "gemm1":
        h, scale = gemm1(given, choice)
        found = [h.float() * scale.repeat_interleave(128, 1)]
    else:
        found = gemm2(given, choice)
    place = given.permutations[choice.gemm1.block_m].row_of_pair.flatten().long()
    return torch.cat([part[place[place >= 0]] for part in found], 1).float()


def check(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Raise ValueError where rows [N, columns] differ by more than TOLERANCE of the wanted norm, or
    are not finite.
    """
    wrong = ~((got - wanted).norm(dim=1) <= TOLERANCE * wanted.norm(dim=1))
    if wrong.any():
        raise ValueError(f"{int(wrong.sum())} of {len(wanted)} rows differ from the present tiles'")


def times_us(calls: list[Callable], repeats: int) -> list[float]:
    """Median microseconds of each call: device time alone, calls interleaved, L2 flushed before
    each.
    """
    torch.use_deterministic_algorithms(False)
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in calls * repeats]
    for call, (start, end) in zip(calls * repeats, events, strict=True):
        flush.zero_()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    found = [1000 * start.elapsed_time(end) for start, end in events]
    return [median(found[at :: len(calls)]) for at in range(len(calls))]
