"""Find the tiles of triton_fused_v2's two grouped GEMMs on this GPU, for one definition.

candidates.py has the tiles. All are compiled first, on all cores; those that do not compile, spill
registers or do not fit are left out. The others are checked against the result of the tiles that
the solution has now, and timed, each GEMM by itself. Where the best pair is faster than the present
one, its line in solutions/common/triton/gemms/tiles.csv is written; all other lines stay. A run
that was stopped continues from its records, tune_<sizes>_t<T>_<hash of GPU, versions, kernels,
routing>.json in the current folder. Exit status: 0, 1 without a GPU, 2 for bad arguments.
"""

import argparse
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from types import ModuleType

import torch
import triton
from candidates import (
    Candidate,
    Times,
    best,
    best_pair,
    choice_of,
    grid,
    other_groups,
    useful_block_ms,
)
from flashinfer_bench import Solution
from flashinfer_bench.compile import BuilderRegistry
from gemms import (
    PreparedLayer,
    check,
    gemm1,
    gemm2,
    operands,
    prepare,
    times_us,
    values,
)
from moebench.core import paths
from moebench.core.arguments import count
from moebench.core.atomic_file import write_atomically
from moebench.core.errors import CannotRun, exit_with, first_line
from moebench.operators import catalogue
from moebench.operators.catalogue import definition, layer_key_named
from moebench.packing.pack import pack
from pebble import ProcessPool
from prune import left_out, start
from routing import drawn, recorded

SOLUTION = "triton_fused_v2"
TABLE = paths.SOLUTIONS / "common" / "triton" / "gemms" / "tiles.csv"
TOKENS = [1, 8, 32, 128, 256, 1024, 4096, 14107]
REPEATS = 3  # runs of a candidate with each routing
ROUNDS = 9  # runs of the best and the present pair with each routing, at the end
# fields of the solution's Tile in tiles.csv, with which a Candidate begins
TILE_FIELDS = 6


def measured(
    candidate: Candidate, times: Times, prepared: list[PreparedLayer]
) -> float:
    """Return the microseconds of a candidate's GEMM, the median over routings.

    gemm2 gets the result of the best gemm1 with its BLOCK_M. Raises ValueError where the
    candidate's result is wrong, or no gemm1 with its BLOCK_M is right.
    """
    is_gemm1 = candidate.stage == "gemm1"
    first = candidate if is_gemm1 else best(times, "gemm1", candidate.block_m)
    if first is None:
        raise ValueError("no gemm1 of its BLOCK_M is right")

    choice = choice_of(first, candidate)
    calls = []
    for layer in prepared:
        output = values(candidate.stage, layer, choice)
        check(output, layer.expected[candidate.stage])
        if is_gemm1:
            calls.append(partial(gemm1, layer, choice))
        else:
            h = gemm1(layer, choice)
            calls.append(partial(gemm2, layer, choice, h))
    return round(median(times_us(calls, REPEATS)), 2)


def tune(
    prepared: list[PreparedLayer],
    present,
    candidates: list[Candidate],
    record: Path,
    pool: ProcessPool,
):
    """Return the faster of `present` and the best pair for a number of tokens; print both times.

    prepared: a layer for each routing, all with that number of tokens. present: the solution's
    Choice now. record: JSON file of the times, a list of [candidate, microseconds or reason]. pool:
    as `left_out` takes it.
    """
    times = recorded_times(record)
    in_expert_order = present._replace(tma=True)
    for layer in prepared:
        for stage in ("gemm1", "gemm2"):
            layer.expected[stage] = values(stage, layer, in_expert_order)

    time_candidates(candidates, times, prepared, record, pool)
    regrouped = other_groups(best_pair(times))
    time_candidates(regrouped, times, prepared, record, pool)

    num_tokens = len(prepared[0].expert)
    pair = best_pair(times)
    if not pair:
        raise CannotRun(
            f"T={num_tokens}: no gemm1 and gemm2 that are right; {record} says why"
        )

    best_choice = choice_of(*pair)
    present_us, best_us = both_times_us(prepared, present, best_choice)
    result = f"present {present_us:.1f} us, found {best_us:.1f} us"
    print(f"T={num_tokens}: {result}: {pair[0]}, {pair[1]}", flush=True)
    return best_choice if best_us < present_us else present


def both_times_us(prepared: list[PreparedLayer], first, second) -> tuple[float, float]:
    """Return the microseconds of gemm1 and gemm2 together with each Choice, medians."""
    calls = []
    for layer in prepared:
        calls += [partial(gemm2, layer, first), partial(gemm2, layer, second)]
    us = times_us(calls, ROUNDS)
    first_us = median(us[::2])
    second_us = median(us[1::2])
    return first_us, second_us


def recorded_times(record: Path) -> Times:
    """Return the times in a record, {} where there is no such file."""
    if not record.exists():
        return {}
    pairs = json.loads(record.read_text(encoding="utf-8"))
    return {Candidate(*candidate): us for candidate, us in pairs}


def time_candidates(
    candidates: list[Candidate],
    times: Times,
    prepared: list[PreparedLayer],
    record: Path,
    pool: ProcessPool,
) -> None:
    """Time the candidates that have no entry in `times`, and write the record after each."""
    untimed = [candidate for candidate in candidates if candidate not in times]
    for candidate, reason in left_out(pool, untimed).items():
        try:
            times[candidate] = reason or measured(candidate, times, prepared)
        except Exception as error:
            # out of resources, or a wrong result; the others go on
            times[candidate] = first_line(error)
        pairs = list(times.items())
        write_atomically(record, json.dumps(pairs))
        # raises where the device is lost; the next run continues after this candidate
        torch.cuda.synchronize()


def with_row(table: str, gpu: str, sizes: str, num_tokens: int, choice) -> str:
    """Return the text of tiles.csv with a line for a GPU, sizes and number of tokens, sorted.

    table: the text as it is, which may have a line for them already. choice: what the line says.
    """
    header, *lines = table.splitlines()
    rows = {}
    for line in lines:
        line_gpu, line_sizes, tokens, *values = line.split(",")
        rows[line_gpu, line_sizes, int(tokens)] = values

    numbers = [choice.fused, choice.tma]
    for tile in (choice.gemm1, choice.gemm2):
        numbers += tile[:TILE_FIELDS]
    rows[gpu, sizes, num_tokens] = [triton.__version__, *map(int, numbers)]

    new_lines = [header]
    for key, values in sorted(rows.items()):
        cells = map(str, [*key, *values])
        new_lines.append(",".join(cells))
    return "\n".join([*new_lines, ""])


@dataclass(frozen=True)
class Tuning:
    """What is tuned: the solution, built for one definition."""

    packed: Solution
    solution: ModuleType  # its main.py
    layer_key: str  # of the definition
    sizes: tuple[int, int, int]  # local experts, hidden size, intermediate size
    name: str  # of the sizes, in tiles.csv

    @property
    def top_k(self) -> int:
        return catalogue.layer_sizes()[self.layer_key]["top_k"]

    @property
    def gpu(self):
        """Return the solution's `Gpu` of the current device (gpu_of.py)."""
        device = torch.device("cuda", torch.cuda.current_device())
        return self.solution.gpu_of(device)

    def present_choice(self, num_tokens: int):
        """Return the Choice that the solution makes now for a number of tokens."""
        layer = catalogue.layer_sizes()[self.layer_key]
        share = layer["top_k"] / layer["num_experts"]
        return self.solution.choose(*self.gpu, self.sizes, share, num_tokens)

    def digest(self, routing_folder: Path | None, layer_count: int) -> str:
        """Return a hash of GPU, versions, code and routing; records are shared by equal hash."""
        code = []
        for source in self.packed.sources:
            if not source.path.endswith(".csv"):
                code.append((source.path, source.content))

        versions = (torch.__version__, triton.__version__)
        conditions = (self.gpu, *versions, code, routing_folder, layer_count)
        text = repr(conditions).encode()
        return hashlib.sha1(text).hexdigest()[:8]


def tuning_of(layer_key: str) -> Tuning:
    """Build the solution for a definition."""
    packed = pack(SOLUTION)[layer_key]
    built = BuilderRegistry.get_instance().build(definition(layer_key), packed)
    solution = import_module(built.metadata.misc["module_name"])
    layer = catalogue.layer_sizes()[layer_key]
    sizes = (
        layer["num_local_experts"],
        layer["hidden_size"],
        layer["intermediate_size"],
    )
    tiles = import_module(solution.choose.__module__)
    return Tuning(packed, solution, layer_key, sizes, tiles.sizes_of(*sizes))


def rows_per_expert(routings: list[torch.Tensor]) -> float:
    """Return the mean rows of the experts that have any, the median over routings."""
    means = []
    for ids in routings:
        local_ids = ids[ids >= 0]
        active = len(local_ids.unique())
        means.append(len(local_ids) / max(active, 1))
    return median(means)


def tuned_choices(
    tuning: Tuning, routings: dict[int, list[torch.Tensor]], digest: str
) -> Iterator[tuple[int, object]]:
    """Yield (number of tokens, Choice). routings: number of tokens -> experts of each layer."""
    tensors = operands(tuning.sizes, max(routings), "cuda")
    package = Path(tuning.solution.__file__).parent
    compiler_args = (tuning.gpu.architecture, package, tuning.sizes, tuning.top_k)
    spawn = get_context("spawn")
    with ProcessPool(context=spawn, initializer=start, initargs=compiler_args) as pool:
        for num_tokens, layers in routings.items():
            block_ms = useful_block_ms(rows_per_expert(layers))
            candidates = grid(block_ms, tuning.gpu.multiprocessors)
            prepared = []
            for ids in layers:
                layer = prepare(tuning.solution.__package__, tensors, ids)
                prepared.append(layer)
            record = Path(f"tune_{tuning.name}_t{num_tokens}_{digest}.json")
            present = tuning.present_choice(num_tokens)
            yield num_tokens, tune(prepared, present, candidates, record, pool)


def parsed(argv: list[str]) -> argparse.Namespace:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "tune.py", description=__doc__, formatter_class=layout
    )
    add = parser.add_argument
    add(
        "--definition",
        type=layer_key_named,
        choices=catalogue.fp8_moe(),
        default="full",
        metavar="KEY",
        help="FP8 MoE with the router inside; default: full",
    )
    tokens_help = f"default: {TOKENS}"
    add(
        "--tokens",
        nargs="+",
        type=count(),
        default=TOKENS,
        metavar="T",
        help=tokens_help,
    )
    routing_help = "expert ids recorded in an engine; default: as the workloads'"
    add("--routing", type=Path, metavar="FOLDER", help=routing_help)
    layers_help = "routings for each T, at most; default: 4"
    add("--layers", type=count(), default=4, metavar="N", help=layers_help)
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    args = parsed(argv)
    if not torch.cuda.is_available():
        raise CannotRun("tuning takes times and needs a CUDA device; torch sees none")

    tuning = tuning_of(args.definition)
    layers_of = partial(recorded, args.routing) if args.routing else drawn
    routings = {}
    for num_tokens in args.tokens:
        routings[num_tokens] = layers_of(args.definition, num_tokens, args.layers)

    digest = tuning.digest(args.routing, args.layers)
    for num_tokens, choice in tuned_choices(tuning, routings, digest):
        table = TABLE.read_text(encoding="utf-8")
        new_table = with_row(table, tuning.gpu.name, tuning.name, num_tokens, choice)
        write_atomically(TABLE, new_table)

    shown = TABLE.relative_to(paths.ROOT)
    print(f"{shown} written; times are in tune_{tuning.name}_t*_{digest}.json")
    return 0


if __name__ == "__main__":
    exit_with(main)
