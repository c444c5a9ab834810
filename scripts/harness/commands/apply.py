"""Call the layer through flashinfer_bench.apply, which picks the best recorded solution for each token count.

    FIB_ENABLE_APPLY=1 FIB_DATASET_PATH=. moebench apply 1 57 100

after `make pack`. Prints which solution FIB chose and compares its result with the reference's. Without a GPU it is
the small geometry. Without token counts nothing is called: it lists FIB's choice at every recorded one of the full
geometry. Exit status: 0, 1 for a wrong result or where nothing could be run, 2 where apply is off or has no data set.
"""

import argparse
import logging
import math
import sys

import torch
from flashinfer_bench import ApplyConfig, TraceSet, Workload, apply
from flashinfer_bench.apply import ApplyConfigRegistry, get_default_registry
from flashinfer_bench.apply.key import ApplyKeyFactory
from flashinfer_bench.apply.table import ApplyTable
from flashinfer_bench.bench.utils import compute_error_stats, gen_inputs
from flashinfer_bench.compile import BuilderRegistry, BuildError
from flashinfer_bench.env import get_fib_dataset_path, get_fib_enable_apply
from rich.console import Console

from definitions.moe_fp8_block_scale import definition
from harness.core.errors import CannotRun, UserError
from harness.core.provenance import of_trace
from harness.evaluation.tolerances import TOLERANCES
from harness.operators.moe_fp8_block_scale import ROUTED_SCALING_FACTOR
from harness.report.table import Cell, Table

FALLBACK = "the fallback"
TOLERANCE = TOLERANCES["relaxed"]
OFFSET = 64
CONFIG = ApplyConfig(max_atol=math.inf, max_rtol=math.inf, aot_ratio=0, on_miss_policy="use_def_best")


def accept_recorded(name: str) -> None:
    """Let apply choose for the definition `name` among all traces that PASSED; before the first call of apply.

    By default it also wants the largest errors of any element to be at most 1e-2 and 1e-5, which no FP8 kernel's are,
    and falls back at a token count that was not recorded. use_def_best takes the solution that won most instead.
    """
    get_default_registry().register(name, CONFIG, override=True)


def selection(trace_set: TraceSet, name: str) -> ApplyTable:
    """FIB's table of choices for the definition `name`, without building any solution."""
    config = CONFIG.model_copy(update={"on_miss_policy": "fallback_only"})
    return ApplyTable.load_or_build(trace_set, ApplyConfigRegistry(per_definition={name: config}))


def chosen(table: ApplyTable, trace_set: TraceSet, workload: Workload, name: str) -> tuple[str, bool]:
    """(solution that apply takes for the workload's axes, whether they were recorded)."""
    key = ApplyKeyFactory.specialize(trace_set.definitions[name]).build_from_workload(workload)
    exact = table.match_solution(name, key)
    solution = exact or table.def_best.get(name)
    # What is not packed cannot be built, and apply falls back silently.
    return (solution, exact is not None) if trace_set.get_solution(solution) else (FALLBACK, False)


def choices(trace_set: TraceSet, name: str) -> Table:
    """FIB's choice at every recorded token count of the definition `name`, and the trace that decides."""
    chooser, rows = selection(trace_set, name), []
    passed = [trace for trace in trace_set.traces.get(name, []) if trace.is_successful()]
    for key, solution in sorted(chooser.index.get(name, {}).items(), key=lambda item: item[0].axes):
        tokens = dict(key.axes)["seq_len"]
        own = [t for t in passed if t.solution == solution and t.workload.axes["seq_len"] == tokens]
        best = max(own, key=lambda trace: trace.evaluation.performance.speedup_factor)
        speedup, origin = best.evaluation.performance.speedup_factor, of_trace(best)
        rows.append([str(tokens), solution, f"{speedup:.1f}x", origin.hardware, origin.tolerance_name])
    head = ["T", "solution", "speed-up", "recorded on", "at tolerance"]
    other = ["other", chooser.def_best.get(name, FALLBACK), "", "", ""]
    return Table(head, [rows, [other]], f"{name}\nwhat flashinfer_bench.apply chooses", words=5)


def random_workload(geometry: str, tokens: int) -> Workload:
    scalars = {"local_expert_offset": OFFSET, "routed_scaling_factor": ROUTED_SCALING_FACTOR}
    inputs = {name: {"type": "random"} for name in definition(geometry).inputs}
    inputs |= {name: {"type": "scalar", "value": value} for name, value in scalars.items()}
    return Workload(axes={"seq_len": tokens}, inputs=inputs, uuid=f"T={tokens}")


def call_all(geometry: str, device: str, tokens: list[int], trace_set: TraceSet) -> tuple[Table, bool]:
    """Call the layer once at each token count; one row for each, and whether every result was right."""
    layer = definition(geometry)
    reference = BuilderRegistry.get_instance().build_reference(layer)
    table, rows, all_right = selection(trace_set, layer.name), [], True
    torch.manual_seed(0)
    for count in tokens:
        workload = random_workload(geometry, count)
        inputs = gen_inputs(layer, workload, device)
        output = apply(layer.name, args=tuple(inputs), fallback=reference)
        matched = compute_error_stats(output, reference(*inputs), TOLERANCE.config())[3]
        right = matched >= TOLERANCE.ratio
        all_right &= right
        solution, exact = chosen(table, trace_set, workload, layer.name)
        why = "fastest recorded at this T" if exact else "fastest at most of the recorded T"
        why = "nothing recorded passed" if solution == FALLBACK else why
        result = Cell("right", "good") if right else Cell("WRONG", "failed")
        rows.append([str(count), solution, why, f"{matched:.4f}", result])
    head = ["T", "solution", "chosen because", "matched", "result"]
    title = f"{layer.name}\nthrough flashinfer_bench.apply"
    return Table(head, [rows], title, words=5, caption=str(TOLERANCE)), all_right


def data_set(name: str) -> TraceSet:
    """The data set that FIB's settings name, with packed solutions of the definition `name`.

    Raises UserError where apply is off or the data set is none, CannotRun where it has no packed solution.
    """
    if not get_fib_enable_apply():
        raise UserError("apply is off: set FIB_ENABLE_APPLY=1 and FIB_DATASET_PATH to the data set, here .")
    root = get_fib_dataset_path()
    if not (root / "definitions").is_dir():
        raise UserError(f"FIB_DATASET_PATH={root}: not a FlashInfer-Trace data set: it has no definitions/")
    try:
        trace_set = TraceSet.from_path(str(root))
    except ValueError as error:
        raise UserError(f"FIB_DATASET_PATH={root}: FIB cannot read it: {str(error).splitlines()[0]}") from error
    if name not in trace_set.definitions:
        raise UserError(f"FIB_DATASET_PATH={root}: it has no definition {name}")
    if not trace_set.solutions.get(name):
        raise CannotRun(f"FIB_DATASET_PATH={root}: no solution of {name} is packed: run `make pack`")
    return trace_set


def token_count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"got {text!r}, want a token count, 1 or more")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tokens", nargs="*", type=token_count, metavar="T", help="token counts of the calls")


def main(args: argparse.Namespace) -> int:
    logging.getLogger("flashinfer_bench").setLevel(logging.ERROR)
    console = Console(width=None if sys.stdout.isatty() else 120)
    device, geometry = ("cuda:0", "full") if torch.cuda.is_available() or not args.tokens else ("cpu", "small")
    name = definition(geometry).name
    trace_set = data_set(name)
    if not args.tokens:
        console.print(choices(trace_set, name).terminal())
        return 0
    accept_recorded(name)
    try:
        shown, right = call_all(geometry, device, args.tokens, trace_set)
    except BuildError as error:
        raise CannotRun(f"a chosen solution does not build here: {str(error).splitlines()[0]}") from error
    console.print(shown.terminal())
    return 0 if right else 1
