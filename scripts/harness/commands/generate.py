"""Run DeepSeek-V3 of Hugging Face transformers with a solution in its MoE layers: logits, prefill, decode.

One dense layer and some MoE layers of real sizes with random weights, on one GPU; nothing is downloaded. Logits are
held against the same model with its expert weights dequantised to bf16, and times against transformers' own
implementation for those. Without a GPU it is a small model through Triton's interpreter, which shows what is correct,
not what is fast. Needs transformers 5.12 or later.
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import sys
import tempfile
from pathlib import Path

import torch
from rich.console import Console

from harness.core import provenance
from harness.core.arguments import Names, count, output_file
from harness.core.errors import UserError
from harness.core.schema import add_line
from harness.judging.calling import device_here
from harness.operators.catalogue import definition_name
from harness.packing import pack
from harness.packing.eligibility import is_installed
from harness.report.blocks import generation as report
from harness.served import deepseek_v3, generation
from harness.served.generation_record import Head

ON_GPU = {"geometry": "deepseek-v3-ep1-routed", "prompt": 4096, "context": 256, "batches": (1, 8, 32), "checked": 64}
ON_CPU = {"geometry": "small-routed", "prompt": 3, "context": 2, "batches": (1,), "checked": 3}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--solutions", nargs="+", action=Names, metavar="NAME", help="default: triton_fused_v2, with a GPU hopper_fused"
    )
    add("--layers", type=count(), default=2, metavar="N", help="MoE layers of 34 GB, bf16 weights included; default: 2")
    add("--turns", type=count(), default=3, metavar="N", help="of each implementation at each point; default: 3")
    add("--output", type=output_file, metavar="FILE", help="record it; docs/serve.md shows docs/data/generate/*.jsonl")


def adapter(folder: Path):
    """The module for_transformers of a package, which need not be on the import path."""
    spec = importlib.util.spec_from_file_location(
        folder.name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    sys.modules[folder.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return importlib.import_module(f"{folder.name}.for_transformers")


def main(args: argparse.Namespace) -> int:
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False, markup=False)
    if not is_installed("transformers"):
        raise UserError("transformers is not installed: pip install 'transformers>=5.12'")
    on_gpu, device = torch.cuda.is_available(), device_here()
    at = ON_GPU if on_gpu else ON_CPU
    names = args.solutions or (["hopper_fused"] if on_gpu else ["triton_fused_v2"])
    with tempfile.TemporaryDirectory() as folder:
        packages = pack.pack_packages(names, Path(folder), [at["geometry"]])
        ours = dict(zip([adapter(package).register() for package in packages], names, strict=True))
        sources = {name: pack.pack(solution)[at["geometry"]].hash() for name, solution in ours.items()}
        model = deepseek_v3.build(at["geometry"], args.layers, device)
        head = Head(
            definition=definition_name(at["geometry"]),
            moe_layers=args.layers,
            sources=sources,
            context=at["context"],
            versions={"transformers": importlib.metadata.version("transformers")},
            provenance=provenance.here(device, command=args.command_line, protocol=f"best of {args.turns} turns"),
        )
        add_line(args.output, head, first=True)
        lines = []
        for line in measured(model, list(ours), at, args.turns, device):
            add_line(args.output, line, first=False)
            lines.append(line)
            console.print(report.said(line))
        console.print(report.times(head, lines).terminal())
    return 1 if any(line.error for line in lines) else 0


def measured(model: deepseek_v3.Model, ours: list[str], at: dict, turns: int, device: str):
    """Every Line: few and many tokens checked, then the times."""
    for name in ours:
        for length in sorted({at["checked"], at["prompt"]}):
            yield generation.compare_logits(model, name, length)
    kinds = ("decode", "decode graph") if device != "cpu" else ("decode",)
    points = [("prefill", 1, at["prompt"])]
    points += [(kind, batch, at["context"]) for kind in kinds for batch in at["batches"]]
    yield from generation.measure(model, [deepseek_v3.BF16, *ours], points, turns, device)
