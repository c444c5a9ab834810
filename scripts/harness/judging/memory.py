"""How much GPU memory FIB's benchmark takes on a workload: counted from what FIB 0.1.2 allocates, not measured.

Two processes hold memory at once. For n trials, with I the bytes of one trial's inputs:

this process: the inputs and expected outputs of all trials, n I. While the last trial's largest weights are drawn, in
    fp32 first: (n - 1) I and 5 bytes an element. While the reference is timed: n I, a clone of its inputs in use, the
    next clone, and the reference's temporaries.
the worker: clones of all trials' inputs, n I. While a solution is timed: a clone in use, the next one, its scratch.
    While the next solution's clones are made: 2 n I, as those of the solution before are dropped only then.

The allocators keep what they once had. `workers.running` gives this process's back; a worker's peak stays for as long
as it lives, and so do, here, the inputs of the workload before, which it drops when it gets the next. Where this does
not fit, a worker for each workload does with less.
"""

from dataclasses import dataclass
from math import prod

import torch
from flashinfer_bench import Definition, Workload
from flashinfer_bench.utils import dtype_str_to_torch_dtype

from harness.core.errors import CannotRun
from harness.operators.catalogue import GEOMETRIES, definition

L2_FLUSH = 256 << 20  # FIB's buffer in each process that takes times
CONTEXTS = 2_000_000_000  # both processes' CUDA contexts, code and libraries' workspaces; a guess

Todo = list[tuple[str, Workload]]  # with labels


@dataclass(frozen=True)
class Needs:
    """Bytes at the peak of a run. kept: with one worker for all workloads; renewed: with a worker for each."""

    kept: int
    renewed: int


def sizes(full: Definition, seq_len: int) -> dict[str, tuple[int, int]]:
    """Input -> (elements, bytes each); scalars are left out."""
    shapes = dict(zip(full.inputs, full.get_input_shapes({"seq_len": seq_len}), strict=True))
    widths = {name: dtype_str_to_torch_dtype(spec.dtype).itemsize for name, spec in full.inputs.items()}
    return {name: (prod(shape), widths[name]) for name, shape in shapes.items() if shape is not None}


def input_bytes(full: Definition, seq_len: int) -> int:
    """Of one trial."""
    return sum(count * width for count, width in sizes(full, seq_len).values())


def draw_bytes(full: Definition, seq_len: int) -> int:
    """The largest random FP8 tensor while it is drawn: fp32 and its FP8 form."""
    return max((5 * count for count, width in sizes(full, seq_len).values() if width == 1), default=0)


def reference_bytes(full: Definition, geometry: str, seq_len: int) -> int:
    """The reference's temporaries: three fp32 copies of the weights that it dequantises at once, and of the tokens."""
    of = GEOMETRIES[geometry]
    at_once = of.get("experts_at_once", 1) / of.get("num_local_experts", 1)
    largest = max(count for count, _ in sizes(full, seq_len).values())
    row = of.get("hidden_size", of.get("k", 0)) + of.get("intermediate_size", of.get("n", 0))
    return int(12 * at_once * largest) + 24 * seq_len * row


def scratch_bytes(geometry: str, seq_len: int) -> int:
    """What a solution may take: for each chosen expert of a token a row of gemm1's output, of h and of y, in bf16."""
    of = GEOMETRIES[geometry]
    row = of.get("hidden_size", of.get("k", 0)) + 3 * of.get("intermediate_size", of.get("n", 0))
    return 2 * seq_len * of.get("top_k", 1) * row


def needs(geometry: str, seq_len: int, trials: int, solutions: int = 2) -> Needs:
    """Of a run of at least that many solutions on workloads of at most seq_len tokens."""
    full = definition(geometry)
    each = input_bytes(full, seq_len)
    inputs, timing = trials * each, 2 * each + L2_FLUSH
    drawing = inputs - each + draw_bytes(full, seq_len)
    here = max(drawing, inputs + timing + reference_bytes(full, geometry, seq_len))
    first = inputs + timing + scratch_bytes(geometry, seq_len)
    next_one = max(first, 2 * inputs)  # another solution, or the next workload's first
    worker = first if solutions == 1 else next_one
    return Needs(CONTEXTS + next_one + inputs + here, CONTEXTS + max(here, inputs + worker))


def gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"


def free() -> int:
    """Bytes that are free on the current CUDA device."""
    return torch.cuda.mem_get_info()[0]


def refusal(seq_len: int, free: int, geometry: str, trials: int, solutions: int) -> str | None:
    """Why a workload cannot be run with this much free memory, and with how many trials it could; None if it can."""
    needed = needs(geometry, seq_len, trials, solutions).renewed
    if needed <= free:
        return None
    text = f"needs {gigabytes(needed)} of GPU memory with {trials} trials of inputs, {gigabytes(free)} are free"
    fewer = [n for n in range(trials - 1, 0, -1) if needs(geometry, seq_len, n, solutions).renewed <= free]
    if fewer:
        return f"{text}: --num-trials {fewer[0]}"
    return f"{text}; with one trial and one solution {gigabytes(needs(geometry, seq_len, 1, 1).renewed)}"


def fitting(todo: Todo, free: int, geometry: str, trials: int, solutions: int) -> tuple[Todo, list[str]]:
    """The labelled workloads that fit, and a line for each of the others. Raises CannotRun if none fits."""
    fits, skipped = [], []
    for label, workload in todo:
        reason = refusal(workload.axes["seq_len"], free, geometry, trials, solutions)
        if reason:
            skipped.append(f"{label}: SKIPPED: {reason}")
        else:
            fits.append((label, workload))
    if not fits:
        raise CannotRun(f"no workload fits on this GPU: {skipped[0]}")
    return fits, skipped


def keeps_worker(todo: Todo, free: int, geometry: str, trials: int, solutions: int) -> bool:
    """Whether one worker can judge these workloads one after the other."""
    longest = max(workload.axes["seq_len"] for _, workload in todo)
    return len(todo) == 1 or needs(geometry, longest, trials, solutions).kept <= free
