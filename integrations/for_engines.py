"""for_engines: what the adapters share.

That is which layer this package computes, and how another one is refused.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path

from integrations import DEFINITION, SIZES

NAME = __package__.rpartition(".")[2]
SOLUTION = NAME.partition("_routed")[0].removesuffix("_mxfp4")
MXFP4 = DEFINITION.startswith("moe_mxfp4_")  # else FP8 in blocks
WEIGHTS = "MXFP4" if MXFP4 else "FP8"
PACKED = f"{__package__}: solution {SOLUTION}, definition {DEFINITION}"
# lines of an engine's log
ACTIVE = f"{WEIGHTS} experts by {PACKED}"
SUMS = f"Sum over ranks by {PACKED}"
BLOCK = 128  # of what has one scale: weights in FP8, tokens, and h


@dataclass(frozen=True)
class Split:
    """How many ranks share a layer's experts, and how many have a slice each of every expert."""

    experts: int
    width: int


def check_sizes(sizes, model, split, hint=""):
    """Raise ValueError where a layer's sizes on a rank are not SIZES.

    The message has the commands for a package that fits, where there can be one.

    Args:
        sizes: the layer's, with the keys of SIZES.
        model: name or folder of the checkpoint.
        split: Split of the layer.
        hint: what else may be wrong, before the commands.
    """
    if sizes == SIZES:
        return

    check_width(sizes["intermediate_size"], split.width)
    advice = f"{hint}for a package of this layer: {commands(model, split)}"
    raise ValueError(f"sizes: got {sizes}, want {SIZES}: {advice}")


def check_width(width, ranks):
    """Raise ValueError where the slice of an expert that each of `ranks` has, so wide, cuts a block
    that has one scale.
    """
    if width % BLOCK == 0:
        return

    fitting = [count for count in range(1, ranks) if width * ranks % (count * BLOCK) == 0]
    advice = "share whole experts, by expert parallelism"
    if fitting:
        advice = f"split experts over {fitting[-1]} ranks, or {advice}"
    raise ValueError(
        f"intermediate_size: got {width} on a rank, {width * ranks} over {ranks}, want a multiple"
        f" of {BLOCK}, of which a scale is: {advice}"
    )


def commands(model, split):
    """Return what to type in a clone of the repository for a package of a checkpoint's layer."""
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
