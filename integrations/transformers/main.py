"""Run Hugging Face's DeepSeek-V3 with a solution in its MoE layers: check logits, time prefill and
decode.

The model has a few layers of real sizes with random weights, on one GPU; nothing is downloaded.
Without a GPU it is a small model through Triton's interpreter, which shows what is correct, not
what is fast. Needs transformers from 5.12 on, before 5.40.
"""

import argparse
import importlib
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from deepseek_v3 import BF16, build, use
from moebench.core import interpreter  # noqa: F401  before anything imports Triton
from moebench.core.errors import exit_with
from moebench.packing import manifest, python_package
from moebench.served.forward import median_ms
from rich.console import Console
from rich.table import Table
from steps import decode, decode_graph, prefill, prompt
from transformers import DeepseekV3ForCausalLM

# A solution passes if the relative error of a token's logits, in the median of the tokens, is at
# most this. To round tokens and h to FP8 makes an error of about half of it.
LARGEST_MEDIAN_ERROR = 0.08


@dataclass(frozen=True)
class Phase:
    """A kind of forward pass that is timed."""

    begin: Callable  # begin(model, batch, tokens) returns the call to time; see Point
    calls: int  # timed calls in a round


PHASES = {
    "prefill": Phase(prefill, 3),
    "decode": Phase(decode, 16),
    "decode, graph": Phase(decode_graph, 20),
}


@dataclass(frozen=True)
class Point:
    """A row of the table of times."""

    phase: str  # a key of PHASES
    batch: int  # sequences
    tokens: int  # of each prompt; for decode, of each sequence before the step


@dataclass(frozen=True)
class Setting:
    """The defaults on a machine."""

    solution: str
    layer_key: str
    rounds: int
    points: list[Point]


ON_GPU = Setting(
    "hopper_fused",
    "deepseek-v3-ep1-routed",
    3,
    [
        Point("prefill", 1, 4096),
        *(Point("decode", batch, 256) for batch in (1, 8, 32)),
        *(Point("decode, graph", batch, 256) for batch in (1, 8, 32)),
    ],
)
ON_CPU = Setting(
    "triton_fused_v2",
    "small-routed",
    1,
    [Point("prefill", 1, 3), Point("decode", 1, 2)],
)


def registered(name: str, layer_key: str, folder: Path) -> str:
    """Pack a solution for a layer into a folder, import it as an engine would, and register it.

    Return the name of the implementation that transformers knows it by.
    """
    (package,) = python_package.pack_packages([name], folder, [layer_key])
    sys.path.insert(0, str(folder))
    adapter = importlib.import_module(f"{package.name}.for_transformers")
    return adapter.register()


@torch.inference_mode()
def errors(
    model: DeepseekV3ForCausalLM, implementation: str, length: int
) -> torch.Tensor:
    """Return the relative error of each token's logits, [length], against bf16 experts."""
    ids = prompt(model, 1, length)
    use(model, BF16)
    expected = logits_of(model, ids)
    use(model, implementation)
    difference = logits_of(model, ids) - expected
    return difference.norm(dim=-1) / expected.norm(dim=-1)


def logits_of(model: DeepseekV3ForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    """Return the logits of one sequence, [length, vocabulary] float32."""
    output = model(ids, use_cache=False)
    return output.logits[0].float()


@torch.inference_mode()
def measure(
    model: DeepseekV3ForCausalLM, implementations: list[str], rounds: int, point: Point
) -> list[float]:
    """Return for each implementation the ms of a call, the least of the medians of its rounds."""
    phase = PHASES[point.phase]
    times = {name: [] for name in implementations}
    for _ in range(rounds):
        for name in implementations:
            use(model, name)
            step = phase.begin(model, point.batch, point.tokens)
            step()
            times[name].append(median_ms(step, phase.calls, model.device.type))
            del step  # with its cache and graph
    return [min(ms) for ms in times.values()]


def check(
    model: DeepseekV3ForCausalLM,
    implementations: dict[str, str],
    length: int,
    table: Table,
) -> bool:
    """Add a row of errors for each solution, and return whether all pass.

    implementations: solution -> name that transformers knows it by.
    """
    all_pass = True
    for solution, implementation in implementations.items():
        error = errors(model, implementation, length)
        median = error.median().item()
        largest = error.max().item()

        is_right = median <= LARGEST_MEDIAN_ERROR  # False for NaN
        result = "PASSED" if is_right else "FAILED"
        table.add_row(solution, f"{median:.4f}", f"{largest:.4f}", result)
        all_pass = all_pass and is_right
    return all_pass


def time_points(
    model: DeepseekV3ForCausalLM,
    implementations: list[str],
    setting: Setting,
    table: Table,
) -> None:
    """Add a row for each point of the setting, with the ms of each implementation."""
    for point in setting.points:
        row = [point.phase, str(point.batch), str(point.tokens)]
        for ms in measure(model, implementations, setting.rounds, point):
            row.append(f"{ms:.3f}")
        table.add_row(*row)


def arguments(argv: list[str], setting: Setting) -> argparse.Namespace:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--solutions", nargs="+", default=[setting.solution])
    layers_help = "MoE layers, of 34 GB each on a GPU; default: 2"
    parser.add_argument("--layers", type=int, default=2, help=layers_help)
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    setting = ON_GPU if device == "cuda" else ON_CPU
    args = arguments(argv, setting)

    solutions = manifest.choose(args.solutions)
    checks = Table(
        "experts", "median", "largest", "result", title="relative error of logits"
    )
    times = Table(
        "phase", "batch", "tokens before", "bf16 experts", *solutions, title="ms"
    )
    console = Console(width=None if sys.stdout.isatty() else 120)
    with tempfile.TemporaryDirectory() as folder:
        implementations = {}
        for name in solutions:
            implementations[name] = registered(
                name, setting.layer_key, Path(folder) / name
            )
        model = build(setting.layer_key, args.layers, device)

        all_pass = check(model, implementations, setting.points[0].tokens, checks)
        console.print(checks)
        time_points(model, [BF16, *implementations.values()], setting, times)
        console.print(times)
    return 0 if all_pass else 1


if __name__ == "__main__":
    exit_with(main)
