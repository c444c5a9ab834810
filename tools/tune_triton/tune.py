"""Find the tiles of triton_fused_v2's two grouped GEMMs on this GPU, for one definition.

Tiles are compiled first, on all cores; those that do not compile, spill or do not fit are left out. The others are
checked against the present tiles' result and timed, each GEMM apart. The best pair is kept where it is faster than the
present one, in solutions/common/triton/tiles.csv, where all other lines stay. A run that was stopped continues from its
record, tune_<sizes>_<hash of GPU, versions, kernels, routing>.jsonl in the current folder.
Exit status: 0, 1 without a GPU, 2 for bad arguments.
"""

import argparse
import csv
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import torch
import triton
from candidates import Candidate, best, best_pair, grid, other_groups, useful_block_ms
from flashinfer_bench.compile import BuilderRegistry
from gemms import Gemms, difference, operands, times_us
from harness.core import paths
from harness.core.arguments import count
from harness.core.atomic_file import write_atomically
from harness.core.errors import CannotRun, UserError, exit_with
from harness.operators.catalogue import FP8_MOE, GEOMETRIES, definition, geometry_named
from harness.packing.pack import pack
from pebble import ProcessPool
from prune import left_out, start
from rich.progress import track
from routing import drawn, recorded

SOLUTION = "triton_fused_v2"
TABLE = paths.SOLUTIONS / "common" / "triton" / "tiles.csv"
TOKENS = [1, 8, 32, 128, 256, 1024, 4096, 14107]
REPEATS, ROUNDS = 3, 9  # runs of a candidate with each routing; of the last comparison


class Record:
    """What was timed, a file of JSON lines: [T, candidate, microseconds or null, error or null]."""

    def __init__(self, path: Path):
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        lines = text[: text.rfind("\n") + 1]  # a stopped run may leave half a last line
        self.path, timed = path, map(json.loads, lines.splitlines())
        self.known = {(num_tokens, Candidate(*what)): us for num_tokens, what, us, _ in timed}
        write_atomically(path, lines)

    def add(self, num_tokens: int, candidate: Candidate, us: float | None, error: str | None) -> None:
        self.known[num_tokens, candidate] = us
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([num_tokens, candidate, us, error]) + "\n")

    def times(self, num_tokens: int) -> dict[Candidate, float]:
        """Of those that were right."""
        return {what: us for (at, what), us in self.known.items() if at == num_tokens and us is not None}


def measured(stage: str, choice, gemms: list[Gemms], expected: list) -> tuple[float | None, str | None]:
    """Microseconds of one GEMM of a choice, the median over routings, or why there are none; gemm2 has gemm1's h."""
    calls = []
    for each, wanted in zip(gemms, expected, strict=True):
        calls.append(each.first(choice) if stage == "gemm1" else each.second(choice, each.first(choice)()))
        if wrong := difference(each.values(stage, calls[-1], choice), wanted):
            return None, wrong
    return round(median(times_us(calls, REPEATS)), 2), None


def time_stage(stage: str, candidates: Iterable[Candidate], gemms: list[Gemms], present, record: Record) -> None:
    """Check and time one GEMM's candidates at a token count; gemm2's on the best gemm1 of their BLOCK_M."""
    num_tokens = len(gemms[0].expert)
    todo = [each for each in candidates if each.stage == stage and (num_tokens, each) not in record.known]
    calls = [each.first(present) if stage == "gemm1" else each.both(present) for each in gemms]
    expected = [each.values(stage, call, present) for each, call in zip(gemms, calls, strict=True) if todo]
    for candidate in track(todo, f"T={num_tokens} {stage}", disable=not sys.stdout.isatty()):
        first = candidate if stage == "gemm1" else best(record.times(num_tokens), "gemm1", candidate.block_m)
        if first is None:
            continue
        try:
            found = measured(stage, gemms[0].choice(first, candidate), gemms, expected)
        except Exception as error:  # out of resources, or a tile that breaks: it is out, the others go on
            found = None, f"{type(error).__name__}: {error}".splitlines()[0]
        record.add(num_tokens, candidate, *found)
        torch.cuda.synchronize()  # raises where the device is lost; the next run goes on after this candidate


def tune(gemms: list[Gemms], present, record: Record, reasons: Callable) -> tuple[object, str]:
    """The faster Choice, present or found, for a token count; and a line that says what was found.

    present: the solution's Choice now. reasons: candidates -> why each is left out, None where it stays.
    """
    num_tokens = len(gemms[0].expert)
    rows = median(int((each.expert >= 0).sum()) / len(each.expert[each.expert >= 0].unique()) for each in gemms)
    for wanted in (lambda: grid(useful_block_ms(rows)), lambda: other_groups(best_pair(record.times(num_tokens)))):
        todo = [candidate for candidate in wanted() if (num_tokens, candidate) not in record.known]
        for candidate, reason in reasons(todo).items():
            if reason:
                record.add(num_tokens, candidate, None, reason)
        for stage in ("gemm1", "gemm2"):
            time_stage(stage, todo, gemms, present, record)
    if not (pair := best_pair(record.times(num_tokens))):
        raise CannotRun(f"T={num_tokens}: no gemm1 and gemm2 that are right; {record.path} says why")
    found = gemms[0].choice(*pair)
    times = times_us([each.both(choice) for each in gemms for choice in (present, found)], ROUNDS)
    present_us, found_us = median(times[::2]), median(times[1::2])
    said = f"T={num_tokens}: present {present_us:.1f} us, found {found_us:.1f} us: {pair[0]}; {pair[1]}"
    return found if found_us < present_us else present, said


def with_row(table: str, gpu: str, sizes: str, num_tokens: int, choice) -> str:
    """The text of tiles.csv with this line for a GPU, sizes and token count, sorted by these."""
    header, *rows = csv.reader(table.splitlines())
    rows = [row for row in rows if row[:3] != [gpu, sizes, str(num_tokens)]]
    tiles = (*choice.gemm1[:6], *choice.gemm2[:6])
    rows.append([gpu, sizes, num_tokens, triton.__version__, *map(int, (choice.fused, choice.tma, *tiles))])
    rows.sort(key=lambda row: (*row[:2], int(row[2])))
    return "".join(",".join(map(str, row)) + "\n" for row in [header, *rows])


def main(argv: list[str]) -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("tune.py", description=__doc__, formatter_class=form)
    add = parser.add_argument
    add("--definition", default="full", metavar="KEY", help="FP8 MoE with the router inside; default: full")
    add("--tokens", nargs="+", type=count(), default=TOKENS, metavar="T", help=f"default: {TOKENS}")
    add("--routing", type=Path, metavar="FOLDER", help="expert ids recorded in an engine; default: as the workloads'")
    add("--layers", type=count(), default=4, metavar="N", help="routings for each T, at most; default: 4")
    args = parser.parse_args(argv)
    geometry = geometry_named(args.definition)
    if geometry not in FP8_MOE:
        raise UserError(f"--definition: got {args.definition}, want one of {', '.join(FP8_MOE)}")
    if not torch.cuda.is_available():
        raise CannotRun("tuning takes times and needs a CUDA device; torch sees none")
    of, packed = GEOMETRIES[geometry], pack(SOLUTION)[geometry]
    built = BuilderRegistry.get_instance().build(definition(geometry), packed)
    solution = import_module(built.metadata.misc["module_name"])
    tiles = import_module(solution.choose.__module__)
    sizes, top_k = (of["num_local_experts"], of["hidden_size"], of["intermediate_size"]), of["top_k"]
    architecture, gpu, multiprocessors = machine = solution.gpu_of(torch.device("cuda", torch.cuda.current_device()))
    name = tiles.sizes_of(*sizes)

    layers = partial(recorded, args.routing) if args.routing else drawn
    routings = {num_tokens: layers(geometry, num_tokens, args.layers) for num_tokens in sorted(set(args.tokens))}
    code = sorted(each.path + each.content for each in packed.sources if not each.path.endswith(".csv"))
    alike = gpu, torch.__version__, triton.__version__, code, args.routing, args.layers
    record = Record(Path(f"tune_{name}_{hashlib.sha1(repr(alike).encode()).hexdigest()[:8]}.jsonl"))
    tensors = operands(sizes, max(routings), "cuda")
    known = architecture, Path(solution.__file__).parent, sizes, top_k
    pool = ProcessPool(os.cpu_count(), context=get_context("spawn"), initializer=start, initargs=known)
    with pool, torch.no_grad():
        for num_tokens, experts in routings.items():
            gemms = [Gemms(solution, tensors, expert, multiprocessors) for expert in experts]
            present = tiles.choose(*machine, sizes, top_k / of["num_experts"], num_tokens)
            choice, said = tune(gemms, present, record, partial(left_out, pool))
            print(said, flush=True)
            write_atomically(TABLE, with_row(TABLE.read_text(encoding="utf-8"), gpu, name, num_tokens, choice))
    print(f"{TABLE.relative_to(paths.ROOT)} written; times are in {record.path}")
    return 0


if __name__ == "__main__":
    exit_with(main)
