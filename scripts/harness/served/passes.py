"""Passes over all layers, captured and replayed or launched one by one; solutions are timed in turns."""

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from flashinfer_bench import Solution
from flashinfer_bench.bench.evaluators.utils import normalize_result
from flashinfer_bench.compile import BuilderRegistry, Runnable

from harness.core.errors import CannotRun
from harness.judging.calling import call, first_line, with_outputs
from harness.judging.tolerances import Tolerance, judged
from harness.operators.catalogue import definition
from harness.served import nvml
from harness.served.record import Point
from harness.served.resident import Resident

Pass = Callable[[], torch.Tensor]  # runs all layers; the last one's output

TURN_MS = 60.0  # of replays in a turn, if that is neither under 3 nor over 20 of them
EAGER = 3  # eager passes in a turn


@dataclass
class Candidate:
    """A solution at one token count. eager, replay: its passes, None where it has none. point: what is known of it."""

    name: str
    eager: Pass | None = None
    replay: Pass | None = None
    point: dict = field(default_factory=dict)


@dataclass
class Own:
    """What a solution has for all its passes. kept: bytes that it has not given back after earlier ones.

    stream: None on a CPU. Two solutions that are one library would share what it keeps for a stream.
    """

    stream: torch.cuda.Stream | None
    kept: int = 0


def pass_of(runnable: Runnable, layers: list[list], geometry: str, device: str) -> Pass:
    """Layers write to one output after another, as in a model, where the next layer's input takes its place.

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
    """Median time of a pass; on a GPU between CUDA events, with no wait between passes."""
    if device == "cpu":
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            run()
            times.append(1e3 * (time.perf_counter() - begin))
        return statistics.median(times)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    marks[0].record()
    for mark in marks[1:]:
        run()
        mark.record()
    torch.cuda.synchronize()
    return statistics.median(before.elapsed_time(after) for before, after in pairwise(marks))


def verdict(output: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance) -> dict:
    """A Point's matched and error. Raises as `judged` does."""
    matched, error = judged(output, expected, tolerance)
    return {"matched": round(matched[tolerance.name], 6), "error": error}


def prepare(
    one: Candidate,
    run: Pass,
    expected: torch.Tensor,
    tolerance: Tolerance,
    own: Own,
    device: str,
) -> None:
    """Run a pass, capture it and check the last layer's answer of both; what cannot be done is said in one.point.

    Raises whatever the solution raises.
    """
    if device != "cpu":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    with torch.cuda.stream(own.stream):
        output = run()
    if device != "cpu":
        torch.cuda.synchronize()
        one.point["scratch_mb"] = round((own.kept + torch.cuda.max_memory_allocated() - before) / 1e6, 1)
        own.kept += torch.cuda.memory_allocated() - before
    one.eager = run
    one.point |= verdict(output, expected, tolerance)
    if device == "cpu":
        one.point["not_captured"] = "no CUDA device"
    elif one.point["error"] is None:
        try:
            one.replay = capture(run)
        except Exception as error:  # whatever forbids it is the result
            torch.cuda.synchronize()
            one.point["not_captured"] = first_line(error)
    if one.replay:
        one.point |= verdict(one.replay(), expected, tolerance)


def take_turns(candidates: list[Candidate], of: str, turns: int, device: str) -> None:
    """Time each candidate's passes `of` a kind, eager or graph, in every turn; another one begins each turn."""
    able = deque(
        (one, run, EAGER) for one in candidates if (run := one.eager if of == "eager" else one.replay) is not None
    )
    if of == "graph":
        able = deque((one, run, passes_in(TURN_MS, median_ms(run, 2, device), 3, 20)) for one, run, _ in able)
    elif device == "cpu":
        able, turns = deque((one, run, 1) for one, run, _ in able), 1
    for _ in range(turns):
        for one, run, count in able:
            one.point.setdefault(of, []).append(round(median_ms(run, count, device), 5))
        able.rotate(-1)


def passes_in(ms: float, each_ms: float, least: int, most: int) -> int:
    return min(max(round(ms / each_ms), least), most)


def add_energy(one: Candidate, gpu) -> None:
    """Joules and clock of a replay, where NVML tells them."""
    count = passes_in(TURN_MS, min(one.point["graph"]), 1, 1000)

    def some() -> int:
        for _ in range(count):
            one.replay()
        torch.cuda.synchronize()
        return count

    if found := nvml.energy(gpu, some):
        one.point |= {"joules": round(found[0], 5), "sm_mhz": found[1]}


def at_tokens(
    solutions: dict[str, Solution],
    layers: list[list],
    geometry: str,
    turns: int,
    tolerance: Tolerance,
    own: dict[str, Own],
    device: str,
    gpu,
) -> list[dict]:
    """Each solution's Point, but for the tokens and the bound. own: by solution. gpu: NVML's handle, or None.

    Raises CannotRun where the reference does not run: the device is out of memory, or a solution has broken it.
    """
    full, registry = definition(geometry), BuilderRegistry.get_instance()
    try:
        expected = call(full, registry.build_reference(full), layers[-1], device)
    except RuntimeError as error:
        raise CannotRun(f"the reference did not run: {first_line(error)}") from error
    candidates = [Candidate(name) for name in solutions]
    for one in candidates:
        try:
            run = pass_of(registry.build(full, solutions[one.name]), layers, geometry, device)
            prepare(one, run, expected, tolerance, own[one.name], device)
        except Exception as error:  # whatever a solution raises is its result
            one.point["error"] = first_line(error)
    right = [one for one in candidates if one.point["error"] is None]
    for kind in ("graph", "eager"):
        take_turns(right, kind, turns, device)
    for one in right:
        if gpu and one.replay:
            add_energy(one, gpu)
    return [{"solution": one.name} | one.point for one in candidates]


def measure(
    solutions: dict[str, Solution],
    model: Resident,
    tokens: list[int],
    turns: int,
    tolerance: Tolerance,
    device: str,
    energy: bool,
    started: Callable[[int, str], None],
) -> Iterator[list[Point]]:
    """The points of all solutions, by name -> packed, at each token count.

    started: called before each with the number of those that are done and a label. Raises CannotRun, see `at_tokens`.
    """
    gpu = nvml.handle(device) if energy and device != "cpu" else None
    own = {name: Own(torch.cuda.Stream() if device != "cpu" else None) for name in solutions}
    for done, num_tokens in enumerate(tokens):
        started(done, f"T={num_tokens}")
        layers = model.inputs(num_tokens)
        found = at_tokens(solutions, layers, model.geometry, turns, tolerance, own, device, gpu)
        if device != "cpu":
            torch.cuda.empty_cache()  # of this token count's graphs
        yield [Point(tokens=num_tokens, bound_ms=model.bound_ms(num_tokens), **point) for point in found]
