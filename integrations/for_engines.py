"""for_engines: what the adapters share: which layer this package computes, and how another one is
refused.
"""

import shlex
from pathlib import Path

from integrations import DEFINITION, SIZES

NAME = __package__.rpartition(".")[2]
SOLUTION = NAME.partition("_routed")[0]
# one line of an engine's log
ACTIVE = f"FP8 experts by {__package__}: solution {SOLUTION}, definition {DEFINITION}"


def check_sizes(got, model, ranks, hint=""):
    """Raise ValueError where a layer's sizes are not SIZES; it has the commands for a package that
    fits.

    model: name or folder of the checkpoint; ranks: as many share its experts; hint: what else may
    be wrong.
    """
    if got != SIZES:
        raise ValueError(
            f"sizes: got {got}, want {SIZES}: {hint}for a package of this layer: {commands(model, ranks)}"
        )


def commands(model, ranks):
    """What to type in a clone of the repository for a package of another checkpoint's layer."""
    config = Path(model, "config.json")
    fetch = (
        ""
        if config.is_file()
        else f"hf download {shlex.quote(str(model))} config.json --local-dir . && "
    )
    path = "config.json" if fetch else shlex.quote(str(config))
    add = f"moebench model {path} --ep {ranks} --add KEY"
    return f"{fetch}{add} && moebench pack {SOLUTION} --package moe --definition KEY-routed && pip install ./moe"
