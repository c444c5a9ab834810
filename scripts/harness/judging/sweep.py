"""Time and check solutions at token counts and routings that nobody tuned them for, on a CUDA device.

Each point is run twice and must give the same bits both times. Times are FIB's: L2 flushed, inputs cloned, host time
included.
"""

import time
from collections.abc import Callable, Iterator

import torch
from flashinfer_bench import Definition, Solution, Workload
from flashinfer_bench.bench.timing import time_runnable
from flashinfer_bench.bench.utils import gen_inputs
from flashinfer_bench.compile import BuilderRegistry, Runnable

from harness.core.errors import CannotRun
from harness.judging.calling import call, first_line, first_tokens, with_outputs
from harness.judging.sweep_record import TARGETS, Point
from harness.judging.tolerances import Tolerance, judged
from harness.operators import routing_kinds
from harness.operators.catalogue import BY_NAME, definition
from harness.operators.moe_fp8_block_scale import ROUTED_SCALING_FACTOR
from harness.operators.workloads import bound_of

WARMUP_RUNS = 3
ITERATIONS = 20
PROTOCOL = f"warmup={WARMUP_RUNS} iterations={ITERATIONS}"


def random_inputs(full: Definition, num_tokens: int, device: str) -> list:
    """FIB's random inputs for num_tokens, in the definition's order; `with_routing` puts the routing in."""
    torch.manual_seed(0)
    return gen_inputs(full, random_workload(full, num_tokens), device)


def random_workload(full: Definition, num_tokens: int) -> Workload:
    """Everything random but the scalars, which are of the rank that the kinds of routing are made for."""
    offset = routing_kinds.offset_of(BY_NAME[full.name])
    scalars = {"local_expert_offset": offset, "routed_scaling_factor": ROUTED_SCALING_FACTOR}
    inputs = {name: {"type": "random"} for name in full.inputs}
    inputs |= {name: {"type": "scalar", "value": value} for name, value in scalars.items() if name in full.inputs}
    return Workload(axes={"seq_len": num_tokens}, inputs=inputs, uuid="sweep")


def with_routing(full: Definition, inputs: list, routing: dict[str, torch.Tensor], device: str) -> list:
    """inputs with this routing, cut to its tokens; the weights are the same tensors, not copies.

    routing: by input name, the first one [T, ...].
    """
    num_tokens = len(next(iter(routing.values())))
    return [
        routing[name].to(device) if name in routing else first_tokens(value, spec.shape, num_tokens)
        for (name, spec), value in zip(full.inputs.items(), inputs, strict=True)
    ]


def judge(
    full: Definition, runnable: Runnable, inputs: list, expected: torch.Tensor, tolerance: Tolerance, device: str
) -> dict:
    """Call twice and compare with expected and with each other: a Point's matched, repeatable and error.

    Raises ValueError for an output of another shape or dtype than expected, and whatever the solution raises.
    """
    first, second = (call(full, runnable, inputs, device) for _ in range(2))
    matched, error = judged(first, expected, tolerance)
    repeatable = torch.equal(first.view(torch.int16), second.view(torch.int16))
    error = error or (None if repeatable else "two runs differ")
    return {"matched": matched, "repeatable": repeatable, "error": error}


def time_ms(full: Definition, runnable: Runnable, inputs: list, device: str) -> float:
    """Mean latency."""
    with torch.no_grad():
        arguments = with_outputs(full, runnable, inputs, device)
        return time_runnable(runnable, arguments, WARMUP_RUNS, ITERATIONS, device)


def measure(
    solution: Solution, full: Definition, inputs: list, expected: torch.Tensor, tolerance: Tolerance, device: str
) -> dict:
    """A Point's ms, matched and repeatable, where known, and error."""
    try:
        runnable = BuilderRegistry.get_instance().build(full, solution)
        verdict = judge(full, runnable, inputs, expected, tolerance, device)
        return verdict | {"ms": time_ms(full, runnable, inputs, device)}
    except Exception as error:  # whatever a solution raises is its result
        return {"error": first_line(error)}


def sweep(
    solutions: dict[str, Solution],
    geometry: str,
    routings: list[tuple[str, int]],
    tolerance: Tolerance,
    target: str,
    device: str,
    started: Callable[[int, str], None],
) -> Iterator[tuple[str, Point]]:
    """(solution's name, point) for each routing, given as kind and token count, and each solution, in that order.

    started: called before each routing with the number of those that are done and a label. target: a key of TARGETS.
    Raises CannotRun where the reference does not run: the device is out of memory, or a solution has broken it.
    """
    begin = time.monotonic()
    full = definition(geometry)
    reference = BuilderRegistry.get_instance().build_reference(full)
    everything = random_inputs(full, max(num_tokens for _, num_tokens in routings), device)
    for done, (kind, num_tokens) in enumerate(routings):
        started(done, f"T={num_tokens} {kind}")
        routing = routing_kinds.tensors(kind, num_tokens, geometry)
        least = bound_of(random_workload(full, num_tokens), routing, geometry)
        inputs = with_routing(full, everything, routing, device)
        try:
            expected = call(full, reference, inputs, device)
        except RuntimeError as error:
            raise CannotRun(f"T={num_tokens} {kind}: the reference did not run: {first_line(error)}") from error
        for name, solution in solutions.items():
            found = measure(solution, full, inputs, expected, tolerance, device)
            point = Point(
                tokens=num_tokens,
                kind=kind,
                rows=least.rows,
                active=least.active,
                bound_ms=least.ms,
                target_ms=TARGETS[target].ms(least),
                after_s=int(time.monotonic() - begin),
                **found,
            )
            yield name, point
