"""Solutions' forward passes at each token count: run eagerly, checked, captured as a CUDA graph,
checked again, and timed in rounds, in each of which every solution has a turn. `moebench served`
calls `measure`.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

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
class Trial:
    """A solution at one token count. point: its line of the record, which is filled in.

    timed: what is timed in rounds, the replay of a graph or an eager pass; None where the answer is
    wrong. count: passes in a round.
    """

    point: Point
    timed: Forward | None = None
    count: int = EAGER_PASSES

    def is_right(
        self, output: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance
    ) -> bool:
        """Return whether the last layer's output is right, and note that in the point. Raises
        ValueError where its shape or dtype is not the expected one's.
        """
        share, self.point.error = compared_at(tolerance, output, expected)
        self.point.matched = round(share, 6)
        return self.point.error is None


def measure(solutions: Solutions, request: Request) -> Iterator[list[Point]]:
    """Yield the points of all solutions at each token count. solutions: packed, by name.

    Raises CannotRun where the reference does not run.
    """
    candidates = {}
    for name, packed in solutions.items():
        stream = None if request.device == "cpu" else torch.cuda.Stream()
        candidates[name] = Candidate(packed, stream)

    for num_tokens in request.tokens:
        yield points_at(candidates, num_tokens, request)
        torch.cuda.empty_cache()  # of this token count's graphs


def points_at(
    candidates: dict[str, Candidate], num_tokens: int, request: Request
) -> list[Point]:
    """Return each solution's point at one token count. Raises as `measure` does."""
    layers = request.model.inputs(num_tokens)
    expected = expected_output(layers[-1], request)
    bound_ms = request.model.bound_ms(num_tokens)

    trials = []
    for name, candidate in candidates.items():
        trial = Trial(Point(solution=name, tokens=num_tokens, bound_ms=bound_ms))
        prepare(trial, candidate, layers, expected, request)
        trials.append(trial)

    rounds = 1 if request.device == "cpu" else request.rounds
    to_time = [trial for trial in trials if trial.timed is not None]
    run_rounds(to_time, rounds, request.device)
    return [trial.point for trial in trials]


def expected_output(inputs: list, request: Request) -> torch.Tensor:
    """Return the reference's output of a layer. Raises CannotRun where it does not run."""
    full = definition(request.model.layer_key)
    reference = BuilderRegistry.get_instance().build_reference(full)
    try:
        (expected,) = call(full, reference, inputs, request.device)
    except RuntimeError as error:
        raise CannotRun(f"the reference did not run: {first_line(error)}") from error
    return expected


def prepare(
    trial: Trial,
    candidate: Candidate,
    layers: list[list],
    expected: torch.Tensor,
    request: Request,
) -> None:
    """Build, run, check and capture a solution. Whatever it raises becomes its point's error."""
    layer_key = request.model.layer_key
    try:
        layer = definition(layer_key)
        runnable = BuilderRegistry.get_instance().build(layer, candidate.packed)
        forward = forward_of(runnable, layers, layer_key, request.device)
        if request.device == "cpu":
            trial.point.not_captured = "no CUDA device"
            if trial.is_right(forward(), expected, request.tolerance):
                trial.timed = forward
        else:
            prepare_on_gpu(trial, candidate, forward, expected, request)
    except (Exception, SystemExit) as error:
        trial.point.error = first_line(error)
        trial.timed = None


def prepare_on_gpu(
    trial: Trial,
    candidate: Candidate,
    forward: Forward,
    expected: torch.Tensor,
    request: Request,
) -> None:
    """Run a forward pass, then capture and replay it; both answers are checked.

    Raises whatever the solution raises outside a capture.
    """
    output = run_eagerly(trial.point, candidate, forward)
    if not trial.is_right(output, expected, request.tolerance):
        return

    try:
        replay = capture(forward)
    except Exception as error:  # of any kind, as solutions and CUDA have many
        torch.cuda.synchronize()
        trial.point.not_captured = first_line(error)
        trial.timed = forward
        return

    if trial.is_right(replay(), expected, request.tolerance):
        count = round(REPLAYS_MS / median_ms(replay, 2, request.device))
        trial.count = min(max(count, LEAST_REPLAYS), MOST_REPLAYS)
        trial.timed = replay


def run_eagerly(point: Point, candidate: Candidate, forward: Forward) -> torch.Tensor:
    """Run a forward pass on the solution's stream; return the output, and note the memory that it
    took in the point.
    """
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()

    with torch.cuda.stream(candidate.stream):
        output = forward()
    torch.cuda.synchronize()

    peak = candidate.kept_bytes + torch.cuda.max_memory_allocated() - before
    point.scratch_mb = round(peak / 1e6, 1)
    candidate.kept_bytes += torch.cuda.memory_allocated() - before
    return output


def run_rounds(trials: list[Trial], rounds: int, device: str) -> None:
    """Add the median ms of each round to the points; another solution begins each round."""
    order = deque(trials)
    for _ in range(rounds):
        for trial in order:
            ms = median_ms(trial.timed, trial.count, device)
            trial.point.add_round(round(ms, 5))
        order.rotate(-1)
