"""Time and check solutions where nobody tuned: many token counts, four kinds of routing, full geometry.

Kinds: real (as the workloads), uniform, one (all rows on one local expert), none (no local expert). Times are
FIB's, with 3 warm-up runs and 20 iterations. Exit status: 0, 1 for a wrong result, 2 when nothing could be run.
"""

import argparse
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import torch
from flashinfer_bench import Definition, Solution, Workload
from flashinfer_bench.bench.evaluators.utils import normalize_result
from flashinfer_bench.bench.utils import gen_inputs
from flashinfer_bench.compile import BuilderRegistry
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from definitions import moe_fp8_block_scale
from definitions.moe_fp8_block_scale import definition
from harness.core.environment import environment
from harness.evaluation import sweep_point
from harness.evaluation.sweep_point import TARGETS, in_words
from harness.evaluation.sweep_record import SweepPoint
from harness.evaluation.tolerances import TOLERANCES, Tolerance
from harness.operators.moe_fp8_block_scale import ROUTED_SCALING_FACTOR, routing_bound
from harness.operators.routing_kinds import KINDS, OFFSET, TOKENS
from harness.packing import eligibility, manifest, pack

GEOMETRY = "full"


def token_count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no token count, want 0 or more")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--solutions", nargs="+", default=[], metavar="NAME", help="default: every solution")
    add("--tokens", nargs="+", type=token_count, default=TOKENS, metavar="T", help="default: 41 counts from 0 to 32768")
    add("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS), help="default: all")
    add(
        "--tolerance", choices=list(TOLERANCES), default="relaxed", help="a result is wrong beyond it; default: relaxed"
    )
    add("--target", choices=list(TARGETS), default="loose", help="loose: 1.5 x bound + 0.03 ms; tight: the workloads'")
    add("--output", type=Path, metavar="FILE", help="write a JSON line for each measurement")


def runnable_here(names: list[str], console: Console) -> list[Solution]:
    """The solutions that can run on this machine, packed; says which cannot. Raises PackingError."""
    found = []
    for name in manifest.choose(names or manifest.solutions_of(moe_fp8_block_scale.GEOMETRIES)):
        solution = pack.pack(name).get(GEOMETRY)
        reason = "does not serve the full geometry"
        if solution is not None:
            reason = eligibility.why_skipped(solution, eligibility.here())
        if reason:
            console.print(f"{name}: SKIPPED: {reason}", style="yellow")
        else:
            found.append(solution)
    return found


def random_inputs(full: Definition, num_tokens: int, device: str) -> list:
    """FIB's random inputs for num_tokens, in the definition's order; routing still has to be put in."""
    scalars = {"local_expert_offset": OFFSET, "routed_scaling_factor": ROUTED_SCALING_FACTOR}
    inputs = {name: {"type": "random"} for name in full.inputs}
    inputs |= {name: {"type": "scalar", "value": value} for name, value in scalars.items()}
    torch.manual_seed(0)
    workload = Workload(axes={"seq_len": num_tokens}, inputs=inputs, uuid="sweep")
    return gen_inputs(full, workload, device)


def with_routing(inputs: list, logits, bias, device: str) -> list:
    """inputs cut to the routing's tokens; the weights are the same tensors, not copies."""
    num_tokens = len(logits)
    _, _, hidden_states, hidden_states_scale, *rest = inputs
    return [
        torch.from_numpy(logits).to(device),
        torch.from_numpy(bias).to(device, torch.bfloat16),
        hidden_states[:num_tokens],
        hidden_states_scale[:, :num_tokens].contiguous(),
        *rest,
    ]


def measure(
    solution: Solution, full: Definition, inputs: list, expected: torch.Tensor, tolerance: Tolerance, device: str
) -> dict:
    """ms, matched and repeatable, where known, and error: one line, or None for a right result."""
    try:
        runnable = BuilderRegistry.get_instance().build(full, solution)
        verdict = sweep_point.judge(full, runnable, inputs, expected, device)
        ms = sweep_point.time_ms(full, runnable, inputs, device)
    except Exception as error:  # whatever a solution raises is its result
        return {"error": f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]}
    return {"ms": ms, **asdict(verdict), "error": verdict.why_wrong(tolerance)}


def sweep(solutions: list[Solution], args: argparse.Namespace, console: Console, device: str) -> list[SweepPoint]:
    """A point for each kind, token count and solution, in that order; written to args.output as they come."""
    full = definition(GEOMETRY)
    reference = BuilderRegistry.get_instance().build_reference(full)
    tokens = sorted(set(args.tokens))
    points = [(kind, num_tokens) for kind in dict.fromkeys(args.kinds) for num_tokens in tokens]
    everything = random_inputs(full, max(tokens), device)
    hardware, libs = environment(device)
    results = []
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    clocks = TimeElapsedColumn(), TimeRemainingColumn()
    # drawn between points only: a thread that draws holds Python up in the middle of a call that is timed
    bar = Progress(*columns, *clocks, console=console, transient=True, auto_refresh=False)
    file = args.output.open("w") if args.output else None
    try:
        with bar:
            task = bar.add_task("", total=len(points))
            for at, (kind, num_tokens) in enumerate(points, start=1):
                label = f"T={num_tokens} {kind}"
                bar.update(task, description=label, refresh=True)
                routing = KINDS[kind](num_tokens)
                least = routing_bound(*routing, OFFSET, GEOMETRY)
                inputs = with_routing(everything, *routing, device)
                try:
                    with torch.no_grad():
                        (expected,) = normalize_result(full, reference(*inputs), device)
                except RuntimeError as error:  # out of memory, or a solution has broken the device
                    raise SystemExit(f"{label}: the reference did not run: {str(error).splitlines()[0]}") from error
                for solution in solutions:
                    found = SweepPoint(
                        solution=solution.name,
                        solution_sha1=solution.hash(),
                        hardware=hardware,
                        libs=libs,
                        timestamp=datetime.now(UTC).isoformat(timespec="seconds"),
                        tolerance=args.tolerance,
                        target=args.target,
                        tokens=num_tokens,
                        kind=kind,
                        rows=least.rows,
                        active=least.active,
                        bound_ms=least.ms,
                        target_ms=TARGETS[args.target](least),
                        **measure(solution, full, inputs, expected, TOLERANCES[args.tolerance], device),
                    )
                    results.append(found)
                    if file:
                        file.write(found.model_dump_json() + "\n")
                        file.flush()
                    text = found.error or f"{found.ms:.4f} ms"
                    console.print(f"[{at}/{len(points)}] {label}  {solution.name}  {text}", markup=False)
                bar.advance(task)
    finally:
        if file:
            file.close()
    return results


def table(name: str, results: list[SweepPoint]) -> Table:
    """One solution's results; a row is red when the result is wrong, yellow when the target is missed."""
    met = sum(r.met for r in results)
    wrong = sum(r.error is not None for r in results)
    summary = f"{met} of {len(results)} at most {in_words(results[0].target)}; {wrong} wrong"
    out = Table(title=name, caption=summary)
    for heading in (
        "T",
        "kind",
        "rows",
        "active",
        "ms",
        "bound ms",
        "ms/bound",
        "target ms",
        "met",
        *TOLERANCES,
        "error",
    ):
        out.add_column(heading, justify="left" if heading in ("kind", "error") else "right")
    for r in results:
        timed = r.ms is not None
        over = f"{r.ms / r.bound_ms:.2f}" if timed and r.rows else "-"  # without rows the bound is next to nothing
        out.add_row(
            *map(str, (r.tokens, r.kind, r.rows, r.active)),
            f"{r.ms:.4f}" if timed else "-",
            f"{r.bound_ms:.4f}",
            over,
            f"{r.target_ms:.4f}",
            "yes" if r.met else "no",
            *(f"{r.matched[t]:.4f}" if timed else "-" for t in TOLERANCES),
            r.error or "",
            style="bold red" if r.error else "" if r.met else "yellow",
        )
    return out


def main(args: argparse.Namespace) -> int:
    console = Console(width=None if sys.stdout.isatty() else 180)
    try:
        manifest.choose(args.solutions)
        if not torch.cuda.is_available():
            print("a sweep takes times and needs a CUDA device; torch sees none", file=sys.stderr)
            return 2
        solutions = runnable_here(args.solutions, console)
        if not solutions:
            print("no solution can run on this machine", file=sys.stderr)
            return 2
        results = sweep(solutions, args, console, f"cuda:{torch.cuda.current_device()}")
    except (manifest.PackingError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    for solution in solutions:
        console.print(table(solution.name, [r for r in results if r.solution == solution.name]))
    return 1 if any(r.error for r in results) else 0
