"""Find the tiles of triton_fused_v2's grouped GEMMs on this GPU, on the routing of real batches.

Tiles are first compiled without a GPU; those that do not fit or spill are left out (--only-prune stops there and needs
no GPU). The others are checked against the present tiles' result and timed as they would run: with TMA in gemm2 and
gemm1 storing in expert order for it, and without both. The best pair of one padding is kept where it is faster than the
present one, in solutions/triton_fused_v2/tiles_<GPU>_<sizes>.py. A run that was stopped continues from its record.
--budget-seconds makes it coarse: at few T the few tiles that were good before. All kernels are compiled first, the
definitions then share the time that is left, and what was compared by the end of it is kept. Exit status: 0, 1 when a
candidate was wrong, did not run, or nothing could be tuned, 2 for bad arguments.
"""

import argparse
import math
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType

import torch
from rich.console import Console

from harness.core import paths, provenance
from harness.core.arguments import check_cache, count, output_file, writable
from harness.core.atomic_file import write_atomically
from harness.core.errors import CannotRun, UserError
from harness.core.names import unknown
from harness.judging.calling import device_here
from harness.operators import catalogue
from harness.operators.arguments import add_definitions
from harness.operators.moe_fp8_block_scale_routed import ROUTER_INSIDE
from harness.packing.manifest import read_manifest
from harness.report import tuning
from harness.report.progress import progress
from harness.results import staleness
from harness.tuning import bench, prune, routing
from harness.tuning.plan import Plan, summary
from harness.tuning.record import STAGES, Head, Record, table_source
from harness.tuning.search import Search, to_try
from harness.tuning.space import Variant, parse_configuration

TOKENS = [1, 7, 57, 901, 8192, 14107]
COARSE_TOKENS = [1024, 1, 32, 4096, 256, 8, 128]  # ordered so that a table that is cut short serves every T
LAYERS, COARSE_LAYERS = 8, 2
WITHOUT_GPU = "sm_90", "any sm_90", 132  # what is compiled for, and its multiprocessors, where there is no GPU


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_definitions(parser, default=["full"], help="one after the other; default: full")
    budget = "a coarse search that begins no further T after N seconds"
    add("--budget-seconds", type=count(), metavar="N", help=budget)
    listed = (" ".join(map(str, tokens)) for tokens in (TOKENS, sorted(COARSE_TOKENS)))
    tokens = "default: of {} (with a budget {}) those that a batch has".format(*listed)
    add("--tokens", nargs="+", type=count(), metavar="T", help=tokens)
    add("--routing", type=Path, metavar="FOLDER", help="expert ids recorded in an engine; default: the workloads'")
    layers = f"routings for each T, at most; default: {LAYERS}, with a budget {COARSE_LAYERS}"
    add("--layers", type=count(), metavar="N", help=layers)
    alone = "time this one alone, m64-n128-g16-p2-w4-s3 for instance; keeps nothing"
    add("--configuration", type=parse_configuration, metavar="C", help=alone)
    record = "of one definition; default: docs/data/tune/<GPU>_<sizes>.jsonl"
    add("--record", type=output_file, metavar="FILE", help=record)
    add("--only-prune", action="store_true", help="compile, say what is left out and why, and stop")


def geometries(args: argparse.Namespace) -> list[str]:
    """The definitions to tune. Raises UserError for one that the solution does not serve, and for a routed one."""
    served = read_manifest(bench.SOLUTION).definitions
    for geometry in args.definition:
        if geometry not in served:
            raise UserError(f"--definition: {unknown(f'definition of {bench.SOLUTION}', geometry, served)}")
        if inside := ROUTER_INSIDE.get(geometry):
            raise UserError(f"--definition: {geometry} has the tiles of {inside}: --definition {inside}")
    if args.record and (number := len(args.definition)) > 1:
        raise UserError(f"--record: got {number} definitions, want one: a record holds one definition's times")
    return args.definition


def tokens_of(args: argparse.Namespace) -> list[int]:
    return sorted(set(args.tokens)) if args.tokens else COARSE_TOKENS if args.budget_seconds else TOKENS


def batches_of(names: list[str], args: argparse.Namespace) -> list[list[routing.Batch]]:
    """Of each definition, the batches that routings are taken from."""
    drawn = partial(routing.of_workloads, num_tokens=max(tokens_of(args)))
    with ThreadPoolExecutor() as threads:
        return list(threads.map(partial(routing.of_folder, args.routing) if args.routing else drawn, names))


def plan_of(geometry: str, batches: list[routing.Batch], args: argparse.Namespace) -> Plan:
    """What to try for a definition on the current device. Raises UserError for more tokens than a batch has."""
    few, solution, of = bool(args.budget_seconds), bench.built(geometry), catalogue.GEOMETRIES[geometry]
    tokens = [t for t in tokens_of(args) if args.tokens or t <= routing.longest(batches)]
    limit = args.layers or (COARSE_LAYERS if few else LAYERS)
    layers = {t: routing.layers_of(batches, t, geometry, limit) for t in tokens}
    head, multiprocessors = head_of(solution, of, args, limit)
    share = of["top_k"] / of["num_experts"]
    present = {t: bench.present(solution, head, multiprocessors, share, t) for t in tokens}
    wanted = {t: to_try(layers[t], present[t], args.configuration, few) for t in tokens}
    target = prune.Target(Path(solution.__file__).parent, *head.sizes, of["top_k"])
    return Plan(geometry, solution, head, target, layers, present, wanted)


def head_of(solution: ModuleType, of: dict, args: argparse.Namespace, layers: int) -> tuple[Head, int]:
    """What the measurements of this run have in common, on the current device, and that one's multiprocessors."""
    device, (architecture, gpu, multiprocessors) = device_here(), WITHOUT_GPU
    if torch.cuda.is_available():
        architecture, gpu, multiprocessors = solution.gpu_of(torch.device(device))
    origin = provenance.here(device, command=args.command_line, source_sha1=staleness.stages_sha1(STAGES))
    source = f"recorded, {args.routing.resolve().name}" if args.routing else "the workloads"
    head = Head(
        architecture=architecture,
        local_experts=of["num_local_experts"],
        hidden=of["hidden_size"],
        intermediate=of["intermediate_size"],
        routing=f"{source}, up to {layers} layers and ranks",
        provenance=origin.model_copy(update={"hardware": gpu}),
    )
    return head, multiprocessors


def tracked(items: list, what: str, console: Console) -> Iterator:
    """The items, with a bar while they last and a line in the end, since a log has no bar."""
    began = time.perf_counter()
    with progress(console, len(items), ticking=False) as shown:
        for done, item in enumerate(items):
            shown(done, what)
            yield item
    if items:
        console.print(f"{what}: {len(items)} in {time.perf_counter() - began:.0f} s")


def left_out(
    wanted: dict[prune.Target, list[Variant]], architecture: str, console: Console
) -> dict[prune.Target, dict[Variant, str | None]]:
    """As `prune.left_out`, with a bar and a line that says how many are."""
    found = prune.left_out(wanted, architecture, partial(tracked, what="compiling", console=console))
    every = [reason for reasons in found.values() for reason in reasons.values()]
    reasons = [reason for reason in every if reason]
    console.print(f"{len(every)} candidates, {len(reasons)} left out: {prune.counts_by_kind(reasons)}")
    return found


def search_of(plan: Plan, args: argparse.Namespace, console: Console) -> Search:
    """The search that continues a definition's record, or with --only-prune one that leaves nothing behind."""
    name = bench.table_name(plan.solution, plan.head).removeprefix("tiles_")
    path = None if args.only_prune else writable(args.record or paths.TUNING / f"{name}.jsonl")

    def why(variants: list[Variant]) -> dict[Variant, str | None]:
        return left_out({plan.target: variants}, plan.head.architecture, console)[plan.target]

    return Search(Record(path, plan.head), why, partial(tracked, console=console))


def prune_all(plans: list[Plan], searches: list[Search], console: Console) -> None:
    """Compile for all definitions at once: the cores are never idle."""
    wanted = {
        plan.target: search.unknown(variant for found in plan.wanted.values() for variant in found)
        for plan, search in zip(plans, searches, strict=True)
    }
    if any(wanted.values()):
        found = left_out(wanted, plans[0].head.architecture, console)
        for plan, search in zip(plans, searches, strict=True):
            search.learn(found[plan.target])


def tune_one(plan: Plan, search: Search, args: argparse.Namespace, deadline: float, console: Console) -> bool:
    """Time a definition's variants and keep the best in its table. Returns whether the deadline left time for all."""
    record, table = search.record, bench.table_name(plan.solution, plan.head)
    written = paths.SOLUTIONS / bench.SOLUTION / f"{table}.py"
    operands = bench.random_operands(plan.head.sizes, plan.target.top_k, max(plan.wanted), device_here())
    benches = [bench.Bench(plan.solution, operands, plan.layers[t], plan.present[t]) for t in plan.wanted]
    wanted = {at: plan.wanted[at.num_tokens] for at in benches}
    try:
        with torch.no_grad():
            if args.configuration:
                search.time_all(wanted, str(args.configuration))
                return True
            write = lambda: write_atomically(written, table_source(record))  # noqa: E731
            done = search.tune(wanted, not args.budget_seconds, deadline, write)
            console.print(f"tiles written to {written.relative_to(paths.SOLUTIONS.parent)}", soft_wrap=True)
            return done
    finally:  # after Ctrl-C, too
        for found in tuning.tables(record, list(plan.wanted), tuning.SHOWN):
            console.print(found.terminal())


def main(args: argparse.Namespace) -> int:
    began, console = time.monotonic(), Console(width=None if sys.stdout.isatty() else 180)
    names = geometries(args)
    if not torch.cuda.is_available() and not args.only_prune:
        raise CannotRun("tuning takes times and needs a CUDA device; torch sees none (--only-prune needs none)")
    plans = [plan_of(name, found, args) for name, found in zip(names, batches_of(names, args), strict=True)]
    console.print(summary(plans), markup=False, highlight=False, soft_wrap=True)
    check_cache()
    searches = [search_of(plan, args, console) for plan in plans]
    prune_all(plans, searches, console)
    if args.only_prune:
        for plan, search in zip(plans, searches, strict=True):
            for variant, reason in search.record.left_out.items():
                console.print(f"{plan.geometry} {variant}  {reason}", markup=False, highlight=False, soft_wrap=True)
        return 0
    end, done = began + (args.budget_seconds or math.inf), True
    for at, (plan, search) in enumerate(zip(plans, searches, strict=True)):
        now = time.monotonic()
        console.rule(f"{plan.geometry}, {now - began:.0f} s after the start")
        done &= tune_one(plan, search, args, now + (end - now) / (len(plans) - at), console)
        torch.cuda.empty_cache()
    ended = "" if done else "; the budget ended first, run again to go on"
    console.print(f"{time.monotonic() - began:.0f} s in all{ended}")
    return 1 if any(line.error for search in searches for line in search.record.timed.values()) else 0
