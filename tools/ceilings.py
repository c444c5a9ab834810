"""Measure the memory bandwidth and the dense GEMM rates that this GPU reaches, and print them.

With --record they are added to operators/ceilings.jsonl, from which the roofline bound takes the
best. Needs 10 GiB of GPU memory.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import torch
import triton
import triton.language as tl
from moebench.core.provenance import cuda_driver
from moebench.operators.roofline import RATES, READINGS, Reading

WORDS = 1 << 31  # 4-byte words that are read
GEMM_SIZE = 8192
ROUNDS = 7
CALLS = 20


@dataclass(frozen=True)
class Reader:
    """A shape of the kernel that reads memory."""

    block: int  # words in a load
    loads: int  # loads of a program
    warps: int  # warps of a program


READERS = [
    Reader(4096, 8, 8),
    Reader(8192, 8, 8),
    Reader(8192, 16, 16),
    Reader(16384, 4, 16),
]


@dataclass(frozen=True)
class Task:
    """A call to be timed."""

    kind: str  # of RATES
    name: str
    call: Callable[[], object]
    work: int  # bytes or floating-point operations of a call


@triton.jit
def read(words, sums, BLOCK: tl.constexpr, LOADS: tl.constexpr):
    """Read BLOCK * LOADS words [WORDS] int32 a program; write one number of each to sums."""
    program = tl.program_id(0)
    first = program.to(tl.int64) * BLOCK * LOADS
    block = words + first + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.int32)
    for step in range(LOADS):
        total |= tl.load(block + step * BLOCK)
    tl.store(sums + program, tl.sum(total))


def seconds(call: Callable[[], object]) -> float:
    """Return the seconds of a call, measured over too few calls for the GPU to throttle."""
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(CALLS):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / CALLS


def gemm_tasks() -> list[Task]:
    """Return tasks: products of random square matrices, in FP8 and in bf16."""
    a, b = torch.randn(2, GEMM_SIZE, GEMM_SIZE, device="cuda")
    a_fp8 = a.to(torch.float8_e4m3fn)
    b_fp8 = b.to(torch.float8_e4m3fn)
    operations = 2 * GEMM_SIZE**3
    scale = torch.ones((), device="cuda")
    options = {"out_dtype": torch.bfloat16, "use_fast_accum": True}
    fp8_product = partial(torch._scaled_mm, a_fp8, b_fp8.t(), scale, scale, **options)

    a_bf16 = a.bfloat16()
    b_bf16 = b.bfloat16()
    bf16_product = partial(torch.mm, a_bf16, b_bf16.t())
    return [
        Task("fp8", "fp8", fp8_product, operations),
        Task("bf16", "bf16", bf16_product, operations),
    ]


def read_tasks() -> list[Task]:
    """Return tasks: a read of the same memory by each of READERS."""
    words = torch.zeros(WORDS, dtype=torch.int32, device="cuda")
    tasks = []
    for reader in READERS:
        programs = WORDS // (reader.block * reader.loads)
        call = partial(
            read[(programs,)],
            words,
            words.new_empty(programs),
            BLOCK=reader.block,
            LOADS=reader.loads,
            num_warps=reader.warps,
        )
        name = f"bytes, {reader.block} x {reader.loads} words, {reader.warps} warps"
        tasks.append(Task("bytes", name, call, 4 * WORDS))
    return tasks


def best_rates(tasks: list[Task]) -> dict[Task, float]:
    """Return each task's best rate of all rounds, in units of its work per second."""
    best = dict.fromkeys(tasks, 0.0)
    for _ in range(ROUNDS + 1):  # the first one compiles
        for task in tasks:
            rate = task.work / seconds(task.call)
            best[task] = max(best[task], rate)
    return best


def reading_of(rates: dict[Task, float]) -> Reading:
    """Return a Reading of this GPU: the best rate of each kind of task, to four digits."""
    best = {}
    for kind in RATES:
        rates_of_kind = [rate for task, rate in rates.items() if task.kind == kind]
        best[kind] = float(f"{max(rates_of_kind):.4g}")

    today = datetime.now(UTC).date()
    return Reading(
        hardware=torch.cuda.get_device_name(),
        date=today.isoformat(),
        driver=cuda_driver(),
        of="tools/ceilings.py",
        **best,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--record", action="store_true", help="add a line to ceilings.jsonl"
    )
    args = parser.parse_args()

    rates = best_rates([*gemm_tasks(), *read_tasks()])
    reading = reading_of(rates)
    print(reading.hardware)
    for task, rate in rates.items():
        print(f"{task.name}: {rate:.4g} /s")
    if args.record:
        with READINGS.open("a", encoding="utf-8") as file:
            file.write(f"{reading.model_dump_json(exclude_none=True)}\n")


if __name__ == "__main__":
    main()
