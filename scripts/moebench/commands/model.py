"""What a checkpoint's config.json says of its MoE layer, how fast it could be, and which solutions
serve it.

For every other solution the reason is shown. --add KEY makes the layer a definition with workloads,
by a table in definitions/layers.toml; then `moebench run`, `pack` and `served` take the key. Exit
status: 0, or 2 for what is no layer in FP8 with a scale per block of 128 x 128 or in MXFP4 beside
activations in FP8, with the field that stands against it.
"""

import argparse
import textwrap
from pathlib import Path

from moebench.core import paths
from moebench.core.arguments import count
from moebench.core.errors import UserError
from moebench.models import add_model, scales
from moebench.models.checkpoint import Assumptions, Checkpoint, read_file
from moebench.models.scales import Facts
from moebench.operators import catalogue
from moebench.operators.fp8.routed import routed_key
from moebench.operators.layers import Split
from moebench.reports.layer_facts import (
    RankLayer,
    Servings,
    facts,
    keys_by_form,
    serving_rows,
    servings_of,
)

WIDTH = 100  # of a line
INDENT = 22  # of a row's text, beside its name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option(
        "config",
        type=Path,
        metavar="CONFIG.json",
        help="of a checkpoint, as transformers reads it, or the folder that has it",
    )
    option(
        "--ep",
        type=count(),
        default=1,
        metavar="N",
        help="ranks that share the experts; default: 1",
    )
    option(
        "--tp",
        type=count(),
        default=1,
        metavar="N",
        help="ranks that have a slice each of every expert; default: 1",
    )
    option(
        "--shared",
        action="store_true",
        help="with its shared experts, behind the others",
    )
    option(
        "--limit",
        type=float,
        metavar="L",
        help="layers with this clamp, where some have another; default: most",
    )
    option(
        "--fp8",
        action="store_true",
        help="take the weights for FP8 with scales per 128 x 128, whatever they are",
    )
    option(
        "--fp8-activations",
        action="store_true",
        help="beside weights in MXFP4, take activations for FP8, whatever they are",
    )
    option(
        "--check-scales",
        action="store_true",
        help="read the scales of experts in MXFP4 from the folder's .safetensors files, and say "
        "how many blocks of 128 x 128 are exact as FP8; exit status 1: not all",
    )
    option(
        "--add",
        metavar="KEY",
        help="write its definition and workloads, under this key",
    )


def main(args: argparse.Namespace) -> int:
    if args.check_scales:
        return check_scales(args)

    layer = rank_layer(args)
    if args.add:
        paths.require_clone("moebench model --add")
        print("\n".join(add_model.add(args.add, layer.checkpoint, layer.sizes)))
        layer = rank_layer(args)  # again, as the layer has a definition now

    servings = servings_of(layer)
    if not args.add:
        rows = [*facts(layer), *serving_rows(servings)]
        print("\n".join(wrapped(rows)))
    print("\n".join(next_commands(args, layer, servings)))
    return 0


def check_scales(args: argparse.Namespace) -> int:
    """Print how many blocks of a checkpoint in MXFP4 are exact as FP8; return the exit status, 0 if
    all are.
    """
    assumptions = Assumptions(fp8_activations=True, limit=args.limit)
    checkpoint = checkpoint_of(args, assumptions)
    if checkpoint.kind != "mxfp4":
        raise UserError(
            f"--check-scales: got weights in {checkpoint.storage}, want MXFP4"
        )

    folder = args.config if args.config.is_dir() else args.config.parent
    tally = scales.check_scales(folder, checkpoint)
    print("\n".join(wrapped(scales.rows_of(tally))))
    return 0 if tally.exact == tally.blocks else 1


def checkpoint_of(args: argparse.Namespace, assumed: Assumptions) -> Checkpoint:
    """Return the checkpoint that the arguments name.

    assumed: what the user says of it. Raises UserError for a layer that no definition can have, and
    for a file that cannot be read.
    """
    try:
        return read_file(args.config, assumed)
    except ValueError as error:  # no JSON, too
        raise UserError(f"{args.config}: {error}") from error
    except OSError as error:
        raise UserError(
            f"{error.filename}: {error.strerror}, want a config.json"
        ) from error


def rank_layer(args: argparse.Namespace) -> RankLayer:
    """Return the checkpoint's layer on one rank.

    Raises UserError for numbers of ranks that cannot share the layer.
    """
    assumed = Assumptions(args.fp8, args.fp8_activations, args.limit)
    checkpoint = checkpoint_of(args, assumed)
    try:
        sizes = checkpoint.on(args.ep, args.tp, shared_count(args, checkpoint))
    except ValueError as error:
        raise UserError(f"{args.config}: {error}") from error

    with_shared = []
    if checkpoint.shared and checkpoint.shared.count:
        sizes_with_shared = checkpoint.on(args.ep, args.tp, checkpoint.shared.count)
        keys = keys_by_form(sizes_with_shared, checkpoint.kind)
        with_shared = [key for key in keys.values() if key]
    keys = keys_by_form(sizes, checkpoint.kind)
    return RankLayer(checkpoint, sizes, keys, with_shared)


def shared_count(args: argparse.Namespace, checkpoint: Checkpoint) -> int:
    """Return how many shared experts the layer shall have: 0 without --shared.

    Raises ValueError where the model has none that can be appended to the other experts.
    """
    if not args.shared:
        return 0
    shared = checkpoint.shared
    if shared is None:
        raise ValueError("--shared: the model has no shared experts")
    if shared.why_not_appended:
        raise ValueError(
            f"--shared: the model's cannot be appended: {shared.why_not_appended}"
        )
    return shared.count


def wrapped(rows: Facts) -> list[str]:
    """Return rows as lines of WIDTH: a row's name, and its text beside it."""
    lines = []
    for name, text in rows:
        first = name.ljust(INDENT)
        rest = " " * INDENT
        lines += textwrap.wrap(
            text, WIDTH, initial_indent=first, subsequent_indent=rest
        )
    return lines


def next_commands(
    args: argparse.Namespace, layer: RankLayer, servings: Servings
) -> list[str]:
    """Return commands that can be typed as they are: add the layer, measure it, use it."""
    lines = []
    keys = layer.keys
    if not any(keys.values()):
        split = Split(args.ep, args.tp, layer.sizes["num_shared_experts"])
        new_key = free_key(layer, split)
        lines.append(f"{args.command_line} --add {new_key}")
        keys = add_model.keys_of(new_key, keys)

    first_key = next(filter(None, keys.values()))
    lines.append(f"moebench run --definition {first_key}")

    # an engine routes itself, and each layer has one form for that
    (form,) = [form for form in keys if form in catalogue.TOP_K_GIVEN]
    servers = servings.by_form[form]
    if keys[form] and servers:
        best, *_ = servers
        pack = f"moebench pack {best} --package moe --definition {keys[form]}"
        lines.append(f"{pack} && pip install ./moe")
    return lines


def free_key(layer: RankLayer, split: Split) -> str:
    """Return a key for the layer that no definition has: "glm-5-ep8", or "glm-5-ep8-2" and so on
    where that is taken.
    """
    name = add_model.model_of(layer.checkpoint) or layer.checkpoint.name
    wanted = name + split.suffix()
    if layer.checkpoint.kind == "mxfp4":
        wanted = f"{wanted.removesuffix('-mxfp4')}-mxfp4"
    taken = catalogue.keys()

    key = wanted
    number = 1
    while key in taken or routed_key(key) in taken:
        number += 1
        key = f"{wanted}-{number}"
    return key
