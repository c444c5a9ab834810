"""A solution, or the reference, for a rank's share of a layer, whatever part that is."""

import atexit
import importlib
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
from flashinfer_bench import Solution
from flashinfer_bench.compile import BuilderRegistry
from layer import Share, Weights
from moebench.operators.catalogue import definition, layer_sizes
from moebench.packing import pack

REFERENCE = "reference"  # in place of a solution's name

# Sizes of a share in a packed problem.py and problem.cuh.
EXPERTS = re.compile(r"\b(NUM_LOCAL_EXPERTS|kNumLocalExperts) = \d+")
COLUMNS = re.compile(r"\b(INTERMEDIATE_SIZE|kIntermediate) = \d+")


def function_of(name: str, share: Share) -> Callable:
    """Return the function that computes a share, with the arguments of the layer's definition.

    The last one is the output. The reference takes the sizes from the weights.
    """
    if name == REFERENCE:
        layer = definition(share.definition_key)
        reference = BuilderRegistry.get_instance().build_reference(layer)
        return reference.call_destination_passing

    module, function = import_solution(name, share)
    return getattr(module, function)


def summed_function_of(name: str, share: Share) -> tuple[Callable, type] | None:
    """Return a solution's function that also sums over ranks, and its class of them, or None."""
    if name == REFERENCE:
        return None

    module, function = import_solution(name, share)
    summed = getattr(module, f"{function}_allreduce", None)
    if summed is None:
        return None
    return summed, module.Peers


def import_solution(name: str, share: Share) -> tuple[ModuleType, str]:
    """Return the solution's module, packed for the sizes of this share, and its function's name."""
    solution = pack.pack(name)[share.definition_key]
    form = "routed" if share.is_routed else "whole"
    experts = len(share.experts)
    columns = len(share.columns)
    package = f"{name}_{form}_e{experts}_i{columns}"
    if package not in sys.modules:
        folder = tempfile.mkdtemp(prefix="share-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        sys.path.insert(0, folder)
        write_sources(solution, share, Path(folder, package))

    entry_file, function = solution.spec.entry_point.split("::")
    module = entry_file.removesuffix(".py").replace("/", ".")
    return importlib.import_module(f"{package}.{module}"), function


def write_sources(solution: Solution, share: Share, folder: Path) -> None:
    """Write a packed solution whose sizes are those of a share."""
    experts = len(share.experts)
    columns = len(share.columns)
    for source in solution.sources:
        text = EXPERTS.sub(rf"\1 = {experts}", source.content)
        text = COLUMNS.sub(rf"\1 = {columns}", text)
        path = folder / source.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def arguments_of(weights: Weights, share: Share) -> list:
    """Return the arguments of a definition behind the tokens' and before the output."""
    arguments = [*weights.tensors(), share.experts.start]
    if not share.is_routed:
        arguments.append(share.sizes["routed_scaling_factor"])
    return arguments


def output_for(tokens: torch.Tensor, layer: str) -> torch.Tensor:
    """Return memory for the output of so many tokens, NaN all over."""
    hidden = layer_sizes()[layer]["hidden_size"]
    output = torch.empty(
        len(tokens), hidden, dtype=torch.bfloat16, device=tokens.device
    )
    return output.fill_(float("nan"))


def local_layer(name: str, share: Share, weights: Weights) -> Callable:
    """Return a function of the definition's inputs before the weights.

    It returns what this share adds to the layer's output, [T, H] bf16.
    """
    function = function_of(name, share)
    arguments = arguments_of(weights, share)

    def partial_output(*inputs: torch.Tensor) -> torch.Tensor:
        output = output_for(inputs[0], share.layer)
        function(*inputs, *arguments, output)
        return output

    return partial_output
