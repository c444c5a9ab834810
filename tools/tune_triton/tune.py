"""Find the tiles of triton_fused_v2's two grouped GEMMs on this GPU, for one definition.

Tiles are compiled first, on all cores; those that do not compile, spill or do not fit are left out.
The others are checked against the present tiles' result and timed, each GEMM apart. The best pair
is kept where it is faster than the present one, in solutions/common/triton/tiles.csv, where all
other lines stay. A run that was stopped continues from its records, tune_<sizes>_t<T>_<hash of GPU,
versions, kernels, routing>.json in the current folder. Exit status: 0, 1 without a GPU, 2 for bad
arguments.
"""

import argparse
import hashlib
import json
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import torch
import triton
from candidates import Candidate, best, best_pair, choice_of, grid, other_groups, useful_block_ms
from flashinfer_bench.compile import BuilderRegistry
from gemms import check, gemm1, gemm2, operands, prepare, times_us, values
from moebench.core import paths
from moebench.core.arguments import count
from moebench.core.atomic_file import write_atomically
from moebench.core.errors import CannotRun, exit_with
from moebench.judging.calling import first_line
from moebench.operators.catalogue import FP8_MOE, GEOMETRIES, definition, geometry_named
from moebench.packing.pack import pack
from pebble import ProcessPool
from prune import left_out, start
from routing import drawn, recorded

SOLUTION = "triton_fused_v2"
TABLE = paths.SOLUTIONS / "common" / "triton" / "tiles.csv"
TOKENS = [1, 8, 32, 128, 256, 1024, 4096, 14107]
REPEATS, ROUNDS = 3, 9  # runs of a candidate with each routing; of the last comparison


def measured(candidate: Candidate, times: dict[Candidate, float | str], prepared: list) -> float:
    """Microseconds of one GEMM, the median over routings; gemm2 works on what the best gemm1 of its
    BLOCK_M gave.

    Raises ValueError where it is wrong, or no such gemm1 is right.
    """
    stage, calls = candidate.stage, []
    first = candidate if stage == "gemm1" else best(times, "gemm1", candidate.block_m)
    if first is None:
        raise ValueError("no gemm1 of its BLOCK_M is right")
    choice = choice_of(first, candidate)
    for given in prepared:
        check(values(stage, given, choice), given.expected[stage])
        run_gemm1 = partial(gemm1, given, choice)
        calls.append(run_gemm1 if stage == "gemm1" else partial(gemm2, given, choice, run_gemm1()))
    return round(median(times_us(calls, REPEATS)), 2)


def tune(prepared: list, present, candidates: list[Candidate], record: Path, pool: ProcessPool):
    """Print what is found for a token count, and return the faster choice, `present` or the best
    pair's.

    prepared: for each routing. present: the solution's Choice now. pool: see `left_out`. record:
    JSON file of what was timed at this token count, [candidate, microseconds or why there are
    none].
    """
    text = record.read_text(encoding="utf-8") if record.exists() else "[]"
    times = {Candidate(*candidate): found for candidate, found in json.loads(text)}
    in_expert_order = present._replace(tma=True)
    for given in prepared:
        given.expected = {
            stage: values(stage, given, in_expert_order) for stage in ("gemm1", "gemm2")
        }
    for wanted in (lambda: candidates, lambda: other_groups(best_pair(times))):
        todo = [candidate for candidate in wanted() if candidate not in times]
        for candidate, found in left_out(pool, todo).items():
            try:
                found = found or measured(candidate, times, prepared)
            except (
                Exception
            ) as error:  # out of resources, or a tile that breaks: it is out, the others go on
                found = first_line(error)
            times[candidate] = found
            write_atomically(record, json.dumps(list(times.items())))
            # raises where the device is lost; the next run goes on after this candidate
            torch.cuda.synchronize()
    num_tokens, pair = len(prepared[0].expert), best_pair(times)
    if not pair:
        raise CannotRun(f"T={num_tokens}: no gemm1 and gemm2 that are right; {record} says why")
    choices = present, choice_of(*pair)
    us = times_us(
        [partial(gemm2, given, choice) for given in prepared for choice in choices], ROUNDS
    )
    present_us, found_us = median(us[::2]), median(us[1::2])
    print(
        f"T={num_tokens}: present {present_us:.1f} us, found {found_us:.1f} us: {pair[0]}, {pair[1]}",
        flush=True,
    )
    return choices[1] if found_us < present_us else present


def with_row(table: str, gpu: str, sizes: str, num_tokens: int, choice) -> str:
    """The text of tiles.csv with this line for a GPU, sizes and token count, sorted by these."""
    header, *lines = (line.split(",") for line in table.splitlines())
    rest = {(line[0], line[1], int(line[2])): line[3:] for line in lines}
    tiles = (*choice.gemm1[:6], *choice.gemm2[:6])
    rest[gpu, sizes, num_tokens] = [
        triton.__version__,
        *map(int, (choice.fused, choice.tma, *tiles)),
    ]
    lines = [header, *((*key, *rest[key]) for key in sorted(rest))]
    return "".join(",".join(map(str, line)) + "\n" for line in lines)


def main(argv: list[str]) -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("tune.py", description=__doc__, formatter_class=form)
    add, layer = parser.add_argument, "FP8 MoE with the router inside; default: full"
    add(
        "--definition",
        type=geometry_named,
        choices=FP8_MOE,
        default="full",
        metavar="KEY",
        help=layer,
    )
    add("--tokens", nargs="+", type=count(), default=TOKENS, metavar="T", help=f"default: {TOKENS}")
    add(
        "--routing",
        type=Path,
        metavar="FOLDER",
        help="expert ids recorded in an engine; default: as the workloads'",
    )
    add(
        "--layers",
        type=count(),
        default=4,
        metavar="N",
        help="routings for each T, at most; default: 4",
    )
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        raise CannotRun("tuning takes times and needs a CUDA device; torch sees none")
    of, packed = GEOMETRIES[args.definition], pack(SOLUTION)[args.definition]
    built = BuilderRegistry.get_instance().build(definition(args.definition), packed)
    solution = import_module(built.metadata.misc["module_name"])
    gpu = solution.gpu_of(torch.device("cuda", torch.cuda.current_device()))
    sizes, top_k = (
        (of["num_local_experts"], of["hidden_size"], of["intermediate_size"]),
        of["top_k"],
    )
    name = import_module(solution.choose.__module__).sizes_of(*sizes)

    layers = partial(recorded, args.routing) if args.routing else drawn
    routings = {
        num_tokens: layers(args.definition, num_tokens, args.layers) for num_tokens in args.tokens
    }
    code = [(each.path, each.content) for each in packed.sources if not each.path.endswith(".csv")]
    alike = repr((gpu, torch.__version__, triton.__version__, code, args.routing, args.layers))
    alike = hashlib.sha1(alike.encode()).hexdigest()[:8]
    tensors = operands(sizes, max(routings), "cuda")
    known = gpu.architecture, Path(solution.__file__).parent, sizes, top_k
    with ProcessPool(context=get_context("spawn"), initializer=start, initargs=known) as pool:
        for num_tokens, experts in routings.items():
            rows = median(
                float((ids >= 0).sum()) / max(1, len(ids[ids >= 0].unique())) for ids in experts
            )
            candidates = grid(useful_block_ms(rows), gpu.multiprocessors)
            prepared = [prepare(solution.__package__, tensors, ids) for ids in experts]
            present = solution.choose(*gpu, sizes, top_k / of["num_experts"], num_tokens)
            choice = tune(
                prepared, present, candidates, Path(f"tune_{name}_t{num_tokens}_{alike}.json"), pool
            )
            write_atomically(
                TABLE,
                with_row(TABLE.read_text(encoding="utf-8"), gpu.name, name, num_tokens, choice),
            )
    print(f"{TABLE.relative_to(paths.ROOT)} written; times are in tune_{name}_t*_{alike}.json")
    return 0


if __name__ == "__main__":
    exit_with(main)
