"""Passes over all layers, captured and replayed or launched one by one; solutions are timed in
turns.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from flashinfer_bench import Solution
from flashinfer_bench.compile import BuilderRegistry, Runnable

from moebench.core.errors import CannotRun
from moebench.judging.calling import call, first_line, with_outputs
from moebench.judging.fib import normalize_result
from moebench.judging.tolerances import Tolerance, judged
from moebench.operators.catalogue import definition
from moebench.served.record import Point
from moebench.served.resident import Resident

Pass = Callable[[], torch.Tensor]  # runs all layers; the last one's output

TURN_MS = 60.0  # of replays in a turn, if that is neither under 3 nor over 20 of them
EAGER = 3  # passes in a turn of what cannot be captured


@dataclass
class Candidate:
    """A packed solution. kept: bytes that it has not given back after passes of earlier token
    counts.

    stream: None on a CPU. Two solutions that are one library would share what it keeps for a
    stream.
    """

    packed: Solution
    stream: torch.cuda.Stream | None
    kept: int = 0


def pass_of(runnable: Runnable, layers: list[list], geometry: str, device: str) -> Pass:
    """Layers write to one output after another, as in a model, where the next layer's input takes
    its place.

    Before the first pass it is all NaN.
    """
    full = definition(geometry)
    outputs = with_outputs(full, runnable, layers[0], device)[len(layers[0]) :]
    for output in outputs:
        output.fill_(float("nan"))

    @torch.no_grad()
    def run() -> torch.Tensor:
        for inputs in layers:
            result = runnable(*inputs, *outputs)
        return outputs[0] if outputs else normalize_result(full, result, device)[0]

    return run


def capture(run: Pass) -> Pass:
    """The replay of the pass as one CUDA graph. Raises whatever the solution or CUDA raises."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = run()

    def replay() -> torch.Tensor:
        graph.replay()
        return output

    output.fill_(float("nan"))
    return replay


def median_ms(run: Pass, count: int, device: str) -> float:
    """Median time of `count` passes between CUDA events, with no wait between passes; on a CPU the
    time of one.
    """
    if device == "cpu":
        begin = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - begin)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    marks[0].record()
    for mark in marks[1:]:
        run()
        mark.record()
    torch.cuda.synchronize()
    return statistics.median(before.elapsed_time(after) for before, after in pairwise(marks))


def prepare(
    one: Candidate,
    point: dict,
    run: Pass,
    expected: torch.Tensor,
    tolerance: Tolerance,
    device: str,
) -> Pass | None:
    """Run a pass and capture it; the replay, or None where the answer is wrong or nothing can be
    captured.

    Both answers are checked; what is found goes into `point`. Raises whatever the solution raises.
    """

    def check(output: torch.Tensor) -> None:
        matched, point["error"] = judged(output, expected, tolerance)
        point["matched"] = round(matched[tolerance.name], 6)

    if device == "cpu":
        check(run())
        point["not_captured"] = "no CUDA device"
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.cuda.stream(one.stream):
        output = run()
    torch.cuda.synchronize()
    point["scratch_mb"] = round((one.kept + torch.cuda.max_memory_allocated() - before) / 1e6, 1)
    one.kept += torch.cuda.memory_allocated() - before
    check(output)
    if point["error"]:
        return None
    try:
        replay = capture(run)
    except Exception as error:  # whatever forbids it is the result
        torch.cuda.synchronize()
        point["not_captured"] = first_line(error)
        return None
    check(replay())
    return replay


def in_turns(runs: dict[str, tuple[Pass, int]], turns: int, device: str) -> dict[str, list[float]]:
    """By name, the median ms of so many passes in each turn; another one begins each turn."""
    order, found = deque(runs.items()), {name: [] for name in runs}
    for _ in range(turns):
        for name, (run, count) in order:
            found[name].append(round(median_ms(run, count, device), 5))
        order.rotate(-1)
    return found


def measure(
    solutions: dict[str, Solution],
    model: Resident,
    tokens: list[int],
    turns: int,
    tolerance: Tolerance,
    device: str,
) -> Iterator[list[Point]]:
    """The points of all solutions, by name -> packed, at each token count.

    Raises CannotRun where the reference does not run.
    """
    stream = torch.cuda.Stream if device != "cpu" else lambda: None
    candidates = {name: Candidate(packed, stream()) for name, packed in solutions.items()}
    for num_tokens in tokens:
        found = at_tokens(
            candidates, model.inputs(num_tokens), model.geometry, turns, tolerance, device
        )
        torch.cuda.empty_cache()  # of this token count's graphs
        bound_ms = model.bound_ms(num_tokens)
        yield [
            Point(solution=name, tokens=num_tokens, bound_ms=bound_ms, **point)
            for name, point in found.items()
        ]


def at_tokens(
    candidates: dict[str, Candidate],
    layers: list[list],
    geometry: str,
    turns: int,
    tolerance: Tolerance,
    device: str,
) -> dict[str, dict]:
    """By solution its Point's fields at one token count. Raises as `measure` does."""
    full, registry = definition(geometry), BuilderRegistry.get_instance()
    try:
        (expected,) = call(full, registry.build_reference(full), layers[-1], device)
    except RuntimeError as error:
        raise CannotRun(f"the reference did not run: {first_line(error)}") from error
    points, runs = {name: {} for name in candidates}, {}
    for name, one in candidates.items():
        try:
            run = pass_of(registry.build(full, one.packed), layers, geometry, device)
            replay = prepare(one, points[name], run, expected, tolerance, device)
        except (Exception, SystemExit) as error:  # whatever a solution raises is its result
            points[name]["error"] = first_line(error)
            continue
        if replay and points[name]["error"] is None:
            runs[name] = replay, min(max(round(TURN_MS / median_ms(replay, 2, device)), 3), 20)
        elif points[name]["error"] is None:
            runs[name] = run, EAGER
    for name, times in in_turns(runs, 1 if device == "cpu" else turns, device).items():
        points[name]["eager" if points[name].get("not_captured") else "graph"] = times
    return points
