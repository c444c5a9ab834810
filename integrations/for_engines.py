"""for_engines: the part of a package that all its adapters use.

It has the name of the layer that this package is compiled for, and the errors for a model with
another layer. "This package" here and in the adapters is the one that `moebench pack --package`
made; adapter is the file that an engine's plugin mechanism calls, such as for_vllm.py.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path

from integrations import DEFINITION, SIZES

NAME = __package__.rpartition(".")[2]
SOLUTION = NAME.partition("_routed")[0].removesuffix("_mxfp4")
# else experts are in FP8, in blocks of 128 x 128
MXFP4 = DEFINITION.startswith("moe_mxfp4_")
WEIGHTS = "MXFP4" if MXFP4 else "FP8"
PACKED = f"{__package__}: solution {SOLUTION}, definition {DEFINITION}"
# lines that adapters write to an engine's log, which show that this package computes
ACTIVE = f"{WEIGHTS} experts by {PACKED}"
SUMS = f"Sum over ranks by {PACKED}"
BLOCK = 128  # columns that share one scale: of weights in FP8, of tokens and of h


@dataclass(frozen=True)
class Split:
    """How a layer is split over ranks."""

    experts: int  # expert-parallel ranks, each of which has some of the experts
    width: int  # tensor-parallel ranks, each of which has a slice of every expert


def check_sizes(sizes, model, split, hint=""):
    """Raise ValueError unless a layer's sizes on a rank are those of this package.

    The message has the commands that make a package for the layer, if one is possible.

    Args:
        sizes: of the model's layer on this rank, with the keys of SIZES.
        model: name or folder of the checkpoint.
        split: how the layer is split over ranks.
        hint: advice to print before the commands.
    """
    if sizes == SIZES:
        return

    check_width(sizes["intermediate_size"], split.width)
    advice = f"{hint}for a package of this layer: {commands(model, split)}"
    raise ValueError(f"sizes: got {sizes}, want {SIZES}: {advice}")


def check_width(width, ranks):
    """Raise ValueError unless each rank's slice of an expert is a multiple of BLOCK wide.

    width: of a slice. ranks: over which experts are split.
    """
    if width % BLOCK == 0:
        return

    fitting = [
        count for count in range(1, ranks) if width * ranks % (count * BLOCK) == 0
    ]
    advice = "share whole experts, by expert parallelism"
    if fitting:
        advice = f"split experts over {fitting[-1]} ranks, or {advice}"
    raise ValueError(
        f"intermediate_size: got {width} on a rank, {width * ranks} over {ranks}, want a multiple"
        f" of {BLOCK}, of which a scale is: {advice}"
    )


def commands(model, split):
    """Return shell commands that, in a clone of the repository, make a package for a checkpoint."""
    config = Path(model, "config.json")
    steps = []
    if config.is_file():
        path = shlex.quote(str(config))
    else:
        path = "config.json"
        steps.append(f"hf download {shlex.quote(str(model))} config.json --local-dir .")

    ranks = f"--ep {split.experts}"
    if split.width != 1:
        ranks += f" --tp {split.width}"
    steps.append(f"moebench model {path} {ranks} --add KEY")
    key = "KEY" if MXFP4 else "KEY-routed"
    steps.append(f"moebench pack {SOLUTION} --package moe --definition {key}")
    steps.append("pip install ./moe")
    return " && ".join(steps)
