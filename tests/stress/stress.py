"""Every solution under load, each result held against the same call alone, to the last bit.

    python tests/stress/stress.py [--solutions NAME ...] [--layers KEY ...] [--streams N ...]
                                  [--calls N] [--seconds S]

One command on a machine with a GPU. It prints a line a solution, layer and load, and exits with 1
if any call differs. Loads:

    streams    calls of mixed token counts on 1 to 4 streams
    graphs     replays of graphs beside eager calls on other streams
    beside     the same beside kernels that hold 60 to 120 SMs for a while
    delayed    the same in a build whose CTAs and barriers wait at random (delays.py); CUDA sources

The held-out layer is nobody's model: 128 experts, top-8 in one group, two ranks, I 1408.
"""

import argparse
import collections
import importlib
import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "tests" / "support" / "solutions"
for folder in (ROOT / "scripts", SUPPORT, Path(__file__).parent):
    sys.path.insert(0, str(folder))

import torch  # noqa: E402
from moebench.operators import layers  # noqa: E402

layers.models()["held-out"] = {  # before the catalogue asks for it
    "name": "held-out",
    "layers": 1,
    "routing": "sigmoid-bias",
    "num_experts": 128,
    "top_k": 8,
    "hidden_size": 4096,
    "intermediate_size": 1408,
    "ranks": {"held-out": 2},
}

import delays  # noqa: E402
import layer_inputs  # noqa: E402
from loaded import SOLUTIONS  # noqa: E402
from moebench.packing import eligibility, pack  # noqa: E402
from packed_sources import packed_texts, write_texts  # noqa: E402

LAYERS = ("full", "held-out", "qwen3-30b-routed")
TOKENS = (1, 7, 33, 200, 230, 1000, 5000)  # a count for each regime of each solution
HELD_SMS = (60, 90, 120)
SPIN_SECONDS = 0.002
SPIN = r"""
extern "C" __global__ void spin(long long cycles) {
  extern __shared__ char all_of_an_sm[];
  const long long end = clock64() + cycles;
  while (clock64() < end) {}
}
"""


@dataclass
class Call:
    """A layer's arguments for a token count, and the output alone."""

    num_tokens: int
    arguments: list
    expected: torch.Tensor


@dataclass
class Load:
    """What runs at once."""

    name: str
    streams: int
    graphs: bool = False
    held_sms: int = 0


def loads(streams):
    some = [Load(f"{count} streams", count) for count in streams]
    some.append(Load("graphs", 3, graphs=True))
    some += [Load(f"beside {sms} SMs", 3, held_sms=sms) for sms in HELD_SMS]
    return some


# ---- solutions ----


@dataclass(frozen=True)
class Build:
    """A packed solution for a layer, written as a package. title: "delayed ", or none as it is."""

    title: str
    module: str
    function: str

    def load(self):
        """Return the solution's function."""
        return getattr(importlib.import_module(self.module), self.function)


def builds_of(name, layer, folder):
    """Write the builds of a solution for a layer below folder, and return them."""
    packed = pack.pack(name)[layer]
    texts = packed_texts(name, layer)
    sources = {"": texts}
    if delays.can_be_delayed(packed):
        sources["delayed "] = delays.delayed(texts)

    builds = []
    for title, build_texts in sources.items():
        package = re.sub(r"\W", "_", f"{title}{name}_{layer}")
        write_texts(folder / package, build_texts)
        file, _, function = packed.spec.entry_point.partition("::")
        entry = file.removesuffix(".py").replace("/", ".")
        builds.append(Build(title, f"{package}.{entry}", function))
    return builds


def build_all(options, folder):
    """Return layer and solution -> builds, for all that run here.

    All are built at once, each in its own process.
    """
    builds = {}
    for layer in options.layers:
        for name in options.solutions:
            reason = why_not_here(name, layer)
            if reason:
                print(f"{layer} {name}: not here: {reason}", flush=True)
            else:
                builds[layer, name] = builds_of(name, layer, folder)

    processes = {}
    for build in itertools.chain(*builds.values()):
        command = [sys.executable, "-c", f"import {build.module}"]
        processes[build.module] = subprocess.Popen(command, cwd=folder)
    failed = [module for module, process in processes.items() if process.wait() != 0]
    if failed:
        raise SystemExit(f"{', '.join(failed)}: the import fails, see above")
    return builds


def why_not_here(name, layer):
    """Return why the solution does not serve the layer on this machine, or None."""
    packed = pack.pack(name)
    if layer not in packed:
        return "does not serve the layer"
    return eligibility.why_skipped(packed[layer], eligibility.target_here())


# ---- calls ----


def arguments_of(layer, num_tokens, weights):
    """Return the inputs of a call in the definition's order; weights are shared by all calls."""
    inputs = layer_inputs.arguments(layer, num_tokens, "cuda", seed=num_tokens)
    inputs |= weights
    return [inputs[name] for name in layer_inputs.catalogue.definition(layer).inputs]


def fresh_output(call):
    return torch.full_like(call.expected, torch.nan)


def run(solution, call):
    output = fresh_output(call)
    solution(*call.arguments, output)
    return output


def differs(output, call):
    bits = output.view(torch.int16)
    expected_bits = call.expected.view(torch.int16)
    return not torch.equal(bits, expected_bits)


def calls_alone(solution, layer, weights):
    """Return a call for each token count with what the solution makes of it alone, twice alike."""
    hidden_size = layer_inputs.catalogue.layer_sizes()[layer]["hidden_size"]
    calls = []
    for num_tokens in TOKENS:
        shape = (num_tokens, hidden_size)
        output = torch.full(shape, torch.nan, dtype=torch.bfloat16, device="cuda")
        call = Call(num_tokens, arguments_of(layer, num_tokens, weights), output)
        solution(*call.arguments, call.expected)
        torch.cuda.synchronize()
        calls.append(call)
    return calls


def captured(solution, call):
    """Return a graph of a call, and its output."""
    output = fresh_output(call)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        solution(*call.arguments, output)
    return graph, output


class Spinner:
    """Kernels whose CTAs each take an SM for a while, on a stream of their own."""

    def __init__(self):
        shared = torch.cuda.get_device_properties(0).shared_memory_per_block_optin
        self.kernel = torch.cuda._compile_kernel(SPIN, "spin")
        self.kernel.set_shared_memory_config(shared)
        self.shared = shared
        self.stream = torch.cuda.Stream()
        self.cycles = int(SPIN_SECONDS * 1.7e9)

    def hold(self, sms):
        self.kernel(
            grid=(sms, 1, 1),
            block=(32, 1, 1),
            args=(self.cycles,),
            shared_mem=self.shared,
            stream=self.stream,
        )


class LoadedSolution:
    """A solution, its calls, and what runs beside each of them."""

    def __init__(self, solution, calls, load):
        self.solution = solution
        self.calls = calls
        self.load = load
        self.streams = [torch.cuda.Stream() for _ in range(load.streams)]
        self.spinner = Spinner() if load.held_sms else None
        self.graphs = []
        if load.graphs:
            self.graphs = [captured(solution, call) for call in calls]

    def run(self, number, turn):
        """Return the output of a call; the first stream replays graphs, where there are some."""
        stream = (number + turn) % len(self.streams)
        number %= len(self.calls)
        with torch.cuda.stream(self.streams[stream]):
            if not self.graphs or stream > 0:
                return run(self.solution, self.calls[number])
            graph, output = self.graphs[number]
            graph.replay()
            return output.clone()

    def run_all(self, turn):
        """Run every call once a stream. Return the outputs."""
        if self.spinner:
            self.spinner.hold(self.load.held_sms)
        count = len(self.calls) * len(self.streams)
        outputs = [self.run(number, turn) for number in range(count)]
        torch.cuda.synchronize()
        return outputs


def under_load(solution, calls, load, total, deadline):
    """Return how many calls were made, and token count -> how many of them differ from alone."""
    loaded = LoadedSolution(solution, calls, load)
    wrong = collections.Counter()
    num_calls = 0
    turn = 0
    torch.cuda.synchronize()

    while num_calls < total and time.monotonic() < deadline:
        for number, output in enumerate(loaded.run_all(turn)):
            call = calls[number % len(calls)]
            if differs(output, call):
                wrong[call.num_tokens] += 1
            num_calls += 1
        turn += 1
    return num_calls, dict(wrong)


def stress(layer, name, builds, options):
    """Run every load on a solution's builds; print a line each. Return how many calls differ."""
    drawn = layer_inputs.arguments(layer, 1, "cuda")
    weights = {weight: drawn[weight] for weight in layer_inputs.WEIGHTS_AND_SCALES}
    as_it_is, *_ = builds
    calls = calls_alone(as_it_is.load(), layer, weights)

    bad = 0
    for build in builds:
        solution = build.load()
        for load in loads(options.streams):
            begin = time.monotonic()
            deadline = begin + options.seconds
            num_calls, wrong = under_load(
                solution, calls, load, options.calls, deadline
            )
            seconds = time.monotonic() - begin

            differing = sum(wrong.values())
            line = f"{layer} {name} {build.title}{load.name}: {differing} of {num_calls} differ"
            print(f"{line} {wrong or ''} {seconds:.1f} s", flush=True)
            bad += differing
    return bad


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--solutions", nargs="+", default=SOLUTIONS)
    parser.add_argument("--layers", nargs="+", default=LAYERS)
    parser.add_argument("--streams", nargs="+", type=int, default=(1, 2, 3, 4))
    parser.add_argument("--calls", type=int, default=2000, help="of each load")
    parser.add_argument(
        "--seconds", type=float, default=60, help="of each load at most"
    )
    options = parser.parse_args()

    bad = 0
    with tempfile.TemporaryDirectory(prefix="stress") as folder:
        sys.path.insert(0, folder)
        begin = time.monotonic()
        builds = build_all(options, Path(folder))
        print(f"built in {time.monotonic() - begin:.0f} s", flush=True)
        for (layer, name), builds_here in builds.items():
            bad += stress(layer, name, builds_here, options)
    return 1 if bad else 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
