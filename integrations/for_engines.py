"""for_engines: what the adapters share.

That is which layer this package computes, and how another one is refused.
"""

import shlex
from pathlib import Path

from integrations import DEFINITION, SIZES

NAME = __package__.rpartition(".")[2]
SOLUTION = NAME.partition("_routed")[0]
# one line of an engine's log
ACTIVE = f"FP8 experts by {__package__}: solution {SOLUTION}, definition {DEFINITION}"


def check_sizes(sizes, model, ranks, hint=""):
    """Raise ValueError where a layer's sizes are not SIZES.

    The message has the commands for a package that fits.

    Args:
        sizes: the layer's, with the keys of SIZES.
        model: name or folder of the checkpoint.
        ranks: as many share its experts.
        hint: what else may be wrong, before the commands.
    """
    if sizes == SIZES:
        return

    advice = f"{hint}for a package of this layer: {commands(model, ranks)}"
    raise ValueError(f"sizes: got {sizes}, want {SIZES}: {advice}")


def commands(model, ranks):
    """Return what to type in a clone of the repository for a package of a checkpoint's layer."""
    config = Path(model, "config.json")
    steps = []
    if config.is_file():
        path = shlex.quote(str(config))
    else:
        path = "config.json"
        steps.append(f"hf download {shlex.quote(str(model))} config.json --local-dir .")

    steps.append(f"moebench model {path} --ep {ranks} --add KEY")
    steps.append(f"moebench pack {SOLUTION} --package moe --definition KEY-routed")
    steps.append("pip install ./moe")
    return " && ".join(steps)
