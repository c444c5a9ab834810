"""Call the layer through flashinfer_bench.apply, which picks the best recorded solution for each token count.

    FIB_ENABLE_APPLY=1 FIB_DATASET_PATH=. moebench apply 1 57 100

after `make pack`. Prints which solution FIB chose and compares its result with the reference's. Without a GPU it is
the small geometry, which needs a trace first: `moebench run --solutions triton_fused_v2 --workloads 1 --save`. Without
token counts nothing is called: it lists FIB's choice at every recorded one of the full geometry. Exit status: 0, 1 for
a wrong result or where nothing could be run, 2 where apply is off or has no data set.
"""

import argparse
import logging
import math
import sys

import torch
from flashinfer_bench import ApplyConfig, Definition, TraceSet, apply
from flashinfer_bench.apply import ApplyConfigRegistry, get_default_registry
from flashinfer_bench.apply.table import ApplyTable
from flashinfer_bench.compile import BuilderRegistry, BuildError
from flashinfer_bench.env import get_fib_dataset_path, get_fib_enable_apply
from rich.console import Console

from harness.core.arguments import check_cache, count
from harness.core.errors import CannotRun, UserError
from harness.core.provenance import of_trace
from harness.judging.selection import choose_geometry
from harness.judging.sweep import random_inputs
from harness.judging.tolerances import TOLERANCES, matched_ratios
from harness.operators.arguments import add_definition
from harness.operators.catalogue import FP8_MOE, definition
from harness.report.table import Cell, Table

TOLERANCE = TOLERANCES["relaxed"]
# What docs/apply.md explains: accept whatever PASSED, build what is called, serve token counts that were not recorded.
CONFIG = ApplyConfig(max_atol=math.inf, max_rtol=math.inf, aot_ratio=0, on_miss_policy="use_def_best")


def winners(trace_set: TraceSet, name: str) -> tuple[dict[int, str], str]:
    """FIB's choices among packed solutions: by recorded token count, and at any other. No solution is built."""
    config = CONFIG.model_copy(update={"on_miss_policy": "fallback_only"})
    table = ApplyTable.load_or_build(trace_set, ApplyConfigRegistry(per_definition={name: config}))
    chosen = {dict(key.axes)["seq_len"]: solution for key, solution in table.index.get(name, {}).items()}
    other = table.def_best.get(name, "")
    if not trace_set.get_solution(other):
        raise CannotRun(f"{name}: no packed solution has a trace that passed; record some: `moebench run --save`")
    return {tokens: solution for tokens, solution in chosen.items() if trace_set.get_solution(solution)}, other


def choices(trace_set: TraceSet, name: str) -> Table:
    """FIB's choice at every recorded token count of the definition `name`, and the trace that decides."""
    recorded, other = winners(trace_set, name)
    rows = []
    for tokens, solution in sorted(recorded.items()):
        best = trace_set.get_best_trace(name, {"seq_len": tokens}, math.inf, math.inf)
        speedup, origin = best.evaluation.performance.speedup_factor, of_trace(best)
        rows.append([str(tokens), solution, f"{speedup:.1f}x", origin.hardware, origin.tolerance_name])
    head = ["T", "solution", "speed-up", "recorded on", "at tolerance"]
    sections = [rows, [["other", other, "", "", ""]]]
    return Table(head, sections, f"{name}\nwhat flashinfer_bench.apply chooses", words=5)


def call_all(layer: Definition, device: str, tokens: list[int], trace_set: TraceSet) -> tuple[Table, bool]:
    """Call the layer once at each token count; one row for each, and whether every result was right."""
    reference = BuilderRegistry.get_instance().build_reference(layer)
    recorded, other = winners(trace_set, layer.name)
    rows, all_right = [], True
    for num_tokens in tokens:
        inputs = random_inputs(layer, num_tokens, device)
        matched = matched_ratios(apply(layer.name, args=tuple(inputs)), reference(*inputs))[TOLERANCE.name]
        right = matched >= TOLERANCE.ratio
        all_right &= right
        why = "fastest recorded at this T" if num_tokens in recorded else "fastest at most of the recorded T"
        result = Cell("right", "good") if right else Cell("WRONG", "failed")
        rows.append([str(num_tokens), recorded.get(num_tokens, other), why, f"{matched:.4f}", result])
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
    if not trace_set.solutions.get(name):
        raise CannotRun(f"FIB_DATASET_PATH={root}: no solution of {name} is packed: run `make pack`")
    return trace_set


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tokens", nargs="*", type=count(), metavar="T", help="token counts of the calls")
    add_definition(parser, help="an FP8 MoE layer; default: full; for calls without a GPU: small")


def main(args: argparse.Namespace) -> int:
    logging.getLogger("flashinfer_bench").setLevel(logging.ERROR)
    console = Console(width=None if sys.stdout.isatty() else 120)
    check_cache()
    on_gpu = torch.cuda.is_available()
    if args.definition not in (None, *FP8_MOE):
        raise UserError(f"--definition: got {args.definition}, want an FP8 MoE layer")
    layer = definition(choose_geometry(args.definition, on_gpu, []) if args.tokens else args.definition or "full")
    trace_set, right = data_set(layer.name), True
    if args.tokens:
        get_default_registry().register(layer.name, CONFIG, override=True)  # before apply's first call
        try:
            shown, right = call_all(layer, "cuda:0" if on_gpu else "cpu", args.tokens, trace_set)
        except BuildError as error:
            raise CannotRun(f"a chosen solution does not build here: {str(error).splitlines()[0]}") from error
    else:
        shown = choices(trace_set, layer.name)
    console.print(shown.terminal())
    return 0 if right else 1
