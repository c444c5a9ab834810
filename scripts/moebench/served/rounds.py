"""Solutions' forward passes at each token count: run eagerly, checked, captured as a CUDA graph,
checked again, and timed in rounds, in each of which every solution has a turn. `moebench served`
calls `measure`.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from flashinfer_bench import Solution
from flashinfer_bench.compile import BuilderRegistry

from moebench.core.errors import CannotRun, first_line
from moebench.judging.building import Solutions
from moebench.judging.calling import call
from moebench.judging.tolerances import Tolerance, compared_at
from moebench.operators.catalogue import definition
from moebench.served.forward import Forward, capture, forward_of, median_ms
from moebench.served.record import Point
from moebench.served.resident import Resident

# a round has as many replays as take so long, but between these numbers
REPLAYS_MS = 60.0
LEAST_REPLAYS = 3
MOST_REPLAYS = 20
EAGER_PASSES = 3  # in a round of a solution that cannot be captured


@dataclass(frozen=True)
class Request:
    """What is measured. rounds: how often each solution is timed at each token count."""

    model: Resident
    tokens: list[int]
    rounds: int
    tolerance: Tolerance
    device: str


@dataclass
class Candidate:
    """A packed solution, over all token counts.

    stream: for this solution alone, as a library keeps memory for a stream, which two solutions
    with the same library would share; None on a CPU. kept_bytes: memory that the solution has not
    given back after earlier token counts.
    """

    packed: Solution
    stream: torch.cuda.Stream | None
    kept_bytes: int = 0


@dataclass
class Result:
    """What a solution gives at one token count. Fields that a Point has are explained there.

    timed: what is timed in rounds, the replay of a graph or an eager pass; None where the answer is
    wrong. count: passes in a round. times_ms: the median of each round.
    """

    error: str | None = None
    matched: float | None = None
    not_captured: str | None = None
    scratch_mb: float | None = None
    timed: Forward | None = None
    count: int = EAGER_PASSES
    times_ms: list[float] = field(default_factory=list)

    def check(
        self, output: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance
    ) -> None:
        """Set matched and error by the last layer's output. Raises ValueError where its shape or
        dtype is not the expected one's.
        """
        share, self.error = compared_at(tolerance, output, expected)
        self.matched = round(share, 6)

    def point(self, solution: str, num_tokens: int, bound_ms: float) -> Point:
        """Return the line of the record."""
        is_graph = self.not_captured is None
        return Point(
            solution=solution,
            tokens=num_tokens,
            bound_ms=bound_ms,
            graph=self.times_ms if is_graph else [],
            eager=[] if is_graph else self.times_ms,
            not_captured=self.not_captured,
            scratch_mb=self.scratch_mb,
            matched=self.matched,
            error=self.error,
        )


def measure(solutions: Solutions, request: Request) -> Iterator[list[Point]]:
    """Yield the points of all solutions at each token count. solutions: packed, by name.

    Raises CannotRun where the reference does not run.
    """
    candidates = {}
    for name, packed in solutions.items():
        stream = None if request.device == "cpu" else torch.cuda.Stream()
        candidates[name] = Candidate(packed, stream)

    for num_tokens in request.tokens:
        results = results_at(candidates, num_tokens, request)
        torch.cuda.empty_cache()  # of this token count's graphs
        bound_ms = request.model.bound_ms(num_tokens)
        points = []
        for name, result in results.items():
            points.append(result.point(name, num_tokens, bound_ms))
        yield points


def results_at(
    candidates: dict[str, Candidate], num_tokens: int, request: Request
) -> dict[str, Result]:
    """Return each solution's result at one token count. Raises as `measure` does."""
    layers = request.model.inputs(num_tokens)
    expected = expected_output(layers[-1], request)

    results = {}
    for name, candidate in candidates.items():
        results[name] = prepared(candidate, layers, expected, request)

    rounds = 1 if request.device == "cpu" else request.rounds
    to_time = [result for result in results.values() if result.timed is not None]
    run_rounds(to_time, rounds, request.device)
    for result in to_time:
        result.timed = None  # which frees the graph
    return results


def expected_output(inputs: list, request: Request) -> torch.Tensor:
    """Return the reference's output of a layer. Raises CannotRun where it does not run."""
    full = definition(request.model.layer_key)
    reference = BuilderRegistry.get_instance().build_reference(full)
    try:
        (expected,) = call(full, reference, inputs, request.device)
    except RuntimeError as error:
        raise CannotRun(f"the reference did not run: {first_line(error)}") from error
    return expected


def prepared(
    candidate: Candidate, layers: list[list], expected: torch.Tensor, request: Request
) -> Result:
    """Build, run, check and capture a solution, and return the result, which has as its error
    whatever the solution raises.
    """
    result = Result()
    layer_key = request.model.layer_key
    try:
        layer = definition(layer_key)
        runnable = BuilderRegistry.get_instance().build(layer, candidate.packed)
        forward = forward_of(runnable, layers, layer_key, request.device)
        if request.device == "cpu":
            result.not_captured = "no CUDA device"
            result.check(forward(), expected, request.tolerance)
            result.timed = None if result.error else forward
        else:
            prepare_on_gpu(candidate, forward, expected, request, result)
    except (Exception, SystemExit) as error:
        result.error = first_line(error)
        result.timed = None
    return result


def prepare_on_gpu(
    candidate: Candidate,
    forward: Forward,
    expected: torch.Tensor,
    request: Request,
    result: Result,
) -> None:
    """Run a forward pass, then capture and replay it; both answers are checked.

    Raises whatever the solution raises outside a capture.
    """
    output = run_eagerly(candidate, forward, result)
    result.check(output, expected, request.tolerance)
    if result.error:
        return

    try:
        replay = capture(forward)
    except Exception as error:  # of any kind, as solutions and CUDA have many
        torch.cuda.synchronize()
        result.not_captured = first_line(error)
        result.timed = forward
        return

    result.check(replay(), expected, request.tolerance)
    if result.error is None:
        count = round(REPLAYS_MS / median_ms(replay, 2, request.device))
        result.count = min(max(count, LEAST_REPLAYS), MOST_REPLAYS)
        result.timed = replay


def run_eagerly(candidate: Candidate, forward: Forward, result: Result) -> torch.Tensor:
    """Run a forward pass on the solution's stream; return the output, and note the memory that it
    took in the result.
    """
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()

    with torch.cuda.stream(candidate.stream):
        output = forward()
    torch.cuda.synchronize()

    peak = candidate.kept_bytes + torch.cuda.max_memory_allocated() - before
    result.scratch_mb = round(peak / 1e6, 1)
    candidate.kept_bytes += torch.cuda.memory_allocated() - before
    return output


def run_rounds(results: list[Result], rounds: int, device: str) -> None:
    """Add the median ms of each round to the results; another solution begins each round."""
    order = deque(results)
    for _ in range(rounds):
        for result in order:
            ms = median_ms(result.timed, result.count, device)
            result.times_ms.append(round(ms, 5))
        order.rotate(-1)
