"""DeepSeek-V3 of Hugging Face transformers with a solution in its MoE layers: logits, prefill,
decode.

Some layers of real sizes with random weights on one GPU; nothing is downloaded. Without a GPU a
small model through Triton's interpreter, which shows what is correct, not what is fast. Needs
transformers from 5.12 on, before 5.40.
"""

import argparse
import importlib
import sys
import tempfile
from pathlib import Path

import torch
from deepseek_v3 import BF16, build, use
from moebench.core import interpreter  # noqa: F401  before anything imports Triton
from moebench.core.errors import exit_with
from moebench.packing import manifest, python_package
from moebench.served.passes import median_ms
from rich.console import Console
from rich.table import Table
from steps import decode, decode_graph, prefill, prompt
from transformers import DeepseekV3ForCausalLM

# relative, of the median token's logits; rounding tokens and h to FP8 gives about half of it
LARGEST_ERROR = 0.08
PHASES = {
    "prefill": (prefill, 3),
    "decode": (decode, 16),
    "decode, graph": (decode_graph, 20),
}  # and calls in a turn
DECODE = [(phase, batch, 256) for phase in ("decode", "decode, graph") for batch in (1, 8, 32)]
# device -> solution, geometry, turns, and what is timed: phase, batch, tokens before
SETTINGS = {
    "cuda": ("hopper_fused", "deepseek-v3-ep1-routed", 3, [("prefill", 1, 4096), *DECODE]),
    "cpu": ("triton_fused_v2", "small-routed", 1, [("prefill", 1, 3), ("decode", 1, 2)]),
}


def registered(name: str, geometry: str, folder: Path) -> str:
    """Pack a solution for the layer, import it as an engine does, and make it known to
    transformers, by this name.
    """
    (package,) = python_package.pack_packages([name], folder, [geometry])
    sys.path.insert(0, str(folder))
    return importlib.import_module(f"{package.name}.for_transformers").register()


@torch.inference_mode()
def errors(model: DeepseekV3ForCausalLM, implementation: str, length: int) -> torch.Tensor:
    """Relative error of each token's logits against the same model with its experts in bf16,
    [length].
    """
    ids, logits = prompt(model, 1, length), {}
    for name in (BF16, implementation):
        use(model, name)
        logits[name] = model(ids, use_cache=False).logits[0].float()
    return (logits[implementation] - logits[BF16]).norm(dim=-1) / logits[BF16].norm(dim=-1)


@torch.inference_mode()
def measure(
    model: DeepseekV3ForCausalLM, turns: list[str], phase: str, batch: int, tokens: int
) -> list[float]:
    """ms of a call with each implementation that takes turns: its best turn."""
    begin, calls = PHASES[phase]
    ms = {name: [] for name in turns}
    for name in turns:
        use(model, name)
        step = begin(model, batch, tokens)
        step()
        ms[name].append(median_ms(step, calls, model.device.type))
        del step  # with its cache and graph
    return [min(of_turns) for of_turns in ms.values()]


def main(argv: list[str]) -> int:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    solution, geometry, turns, points = SETTINGS[device]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--solutions", nargs="+", default=[solution])
    parser.add_argument(
        "--layers", type=int, default=2, help="MoE layers, of 34 GB each on a GPU; default: 2"
    )
    args = parser.parse_args(argv)
    chosen, passed = manifest.choose(args.solutions), True
    checks = Table("experts", "median", "largest", "result", title="relative error of logits")
    times = Table("phase", "batch", "tokens before", "bf16 experts", *chosen, title="ms")
    console = Console(width=None if sys.stdout.isatty() else 120)
    with tempfile.TemporaryDirectory() as folder:
        names = [registered(name, geometry, Path(folder) / name) for name in chosen]
        model = build(geometry, args.layers, device)
        for solution, name in zip(chosen, names, strict=True):
            found = errors(model, name, length=points[0][2])
            good = found.median().item() <= LARGEST_ERROR  # not where it is NaN
            checks.add_row(
                solution,
                f"{found.median():.4f}",
                f"{found.max():.4f}",
                "PASSED" if good else "FAILED",
            )
            passed &= good
        console.print(checks)
        for point in points:
            ms = measure(model, [BF16, *names] * turns, *point)
            times.add_row(*map(str, point), *(f"{each:.3f}" for each in ms))
        console.print(times)
    return 0 if passed else 1


if __name__ == "__main__":
    exit_with(main)
