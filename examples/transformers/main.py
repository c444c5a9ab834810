"""DeepSeek-V3 of Hugging Face transformers with a solution in its MoE layers: logits, prefill, decode.

Some layers of real sizes with random weights on one GPU; nothing is downloaded. Without a GPU a small model through
Triton's interpreter, which shows what is correct, not what is fast. Needs transformers from 5.12 on, before 5.40.
"""

import argparse
import importlib
import sys
import tempfile
from pathlib import Path

import torch
from deepseek_v3 import BF16, Model, build
from harness.core import interpreter  # noqa: F401  before anything imports Triton
from harness.core.errors import UserError
from harness.packing import manifest, pack
from rich.console import Console
from rich.table import Table
from steps import decode, decode_graph, median_ms, prefill, prompt

LARGEST_ERROR = 0.08  # relative, of the median token's logits; rounding tokens and h to FP8 gives about half of it
ON_GPU = {"geometry": "deepseek-v3-ep1-routed", "prompt": 4096, "context": 256, "batches": (1, 8, 32)}
ON_CPU = {"geometry": "small-routed", "prompt": 3, "context": 2, "batches": (1,)}
TURNS = 3
PHASES = {"prefill": (prefill, 3), "decode": (decode, 16), "decode, graph": (decode_graph, 20)}  # and calls in a turn


def registered(name: str, geometry: str, folder: Path) -> str:
    """Pack a solution for the layer, import it as an engine does, and make it known to transformers, by this name."""
    (package,) = pack.pack_packages([name], folder, [geometry])
    sys.path.insert(0, str(folder))
    return importlib.import_module(f"{package.name}.for_transformers").register()


@torch.inference_mode()
def errors(model: Model, implementation: str, length: int) -> torch.Tensor:
    """Relative error of each token's logits against the same model with its experts in bf16, [length]."""
    ids, logits = prompt(model, 1, length), {}
    for name in (BF16, implementation):
        model.use(name)
        logits[name] = model.lm(ids, use_cache=False).logits[0].float()
    return (logits[implementation] - logits[BF16]).norm(dim=-1) / logits[BF16].norm(dim=-1)


@torch.inference_mode()
def measure(model: Model, names: list[str], phase: str, batch: int, tokens: int) -> list[float]:
    """ms of a call with each implementation, which take turns: its best turn."""
    begin, calls = PHASES[phase]
    turns = TURNS if torch.cuda.is_available() else 1
    ms = {name: [] for name in names}
    for name in names * turns:
        model.use(name)
        step = begin(model, batch, tokens)
        step()
        ms[name].append(median_ms(step, calls))
        del step  # with its cache and graph
    return [min(ms[name]) for name in names]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    on_gpu = torch.cuda.is_available()
    parser.add_argument("--solutions", nargs="+", default=["hopper_fused" if on_gpu else "triton_fused_v2"])
    parser.add_argument("--layers", type=int, default=2, help="MoE layers, of 34 GB each on a GPU; default: 2")
    args, at = parser.parse_args(), ON_GPU if on_gpu else ON_CPU
    console = Console(width=None if sys.stdout.isatty() else 120)
    with tempfile.TemporaryDirectory() as folder:
        try:
            chosen = manifest.choose(args.solutions)
            names = [registered(name, at["geometry"], Path(folder) / name) for name in chosen]
        except UserError as error:
            print(error, file=sys.stderr)
            return error.status
        model = build(at["geometry"], args.layers, "cuda" if on_gpu else "cpu")
        right, checks = True, Table("experts", "median", "largest", "result", title="relative error of logits")
        for solution, name in zip(chosen, names, strict=True):
            found = errors(model, name, at["prompt"])
            good = found.median().item() <= LARGEST_ERROR  # not where it is NaN
            checks.add_row(solution, f"{found.median():.4f}", f"{found.max():.4f}", "PASSED" if good else "FAILED")
            right &= good
        console.print(checks)
        times = Table("phase", "batch", "tokens before", "bf16 experts", *chosen, title="ms")
        phases = [phase for phase in ("decode", "decode, graph") if on_gpu or "graph" not in phase]
        steps = [(phase, batch, at["context"]) for phase in phases for batch in at["batches"]]
        for point in [("prefill", 1, at["prompt"]), *steps]:
            ms = measure(model, [BF16, *names], *point)
            times.add_row(*map(str, point), *(f"{each:.3f}" for each in ms))
        console.print(times)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
