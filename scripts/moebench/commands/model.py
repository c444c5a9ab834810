"""What a checkpoint's config.json says of its MoE layer, how fast it could be, and which solutions
serve it.

For every other solution the reason is shown. --add KEY makes the layer a definition with workloads,
by a table in definitions/layers.toml; then `moebench run`, `pack` and `served` take the key. Exit
status: 0, or 2 for what is no FP8 layer with a scale per block of 128 x 128, with the field that
stands against it.
"""

import argparse
import math
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from moebench.core import paths
from moebench.core.arguments import count
from moebench.core.errors import UserError
from moebench.models import add_model
from moebench.models.checkpoint import Checkpoint, read_file
from moebench.models.expected_bound import expected_bound
from moebench.operators import catalogue, swiglu
from moebench.operators.fp8_layer import expert_bytes
from moebench.operators.layers import Sizes, Split
from moebench.operators.moe_fp8_block_scale_routed import routed_key
from moebench.operators.roofline import MEASURED_ON
from moebench.packing import manifest
from moebench.packing.serves import why_not
from moebench.reports.models import GPU_GB
from moebench.results import measurements
from moebench.results.summary import by_solution

TOKENS = (1, 64, 4096)
WIDTH = 100
INDENT = 22
MOST_LISTED = 8  # fields that are not understood
FORM_NAMES = {
    "routed": "served, top-k given",
    "renorm": "served, with router",
    "sigmoid-bias": "served, with router",
}


@dataclass(frozen=True)
class Layer:
    """A checkpoint's layer on one rank. keys: form -> its definition's key, None without one."""

    checkpoint: Checkpoint
    sizes: Sizes
    keys: dict[str, str | None]


@dataclass(frozen=True)
class Serving:
    """What a solution does with a layer, for each of the layer's forms.

    why_not: form -> why it does not serve it, None where it does. over_bound: form -> recorded
    latency over the bound, of forms that are recorded. elsewhere: the same of the first definition,
    where no solution is recorded on this layer.
    """

    solution: str
    why_not: dict[str, str | None]
    over_bound: dict[str, float]
    elsewhere: float | None


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
    option("--add", metavar="KEY", help="write its definition and workloads, under this key")


def main(args: argparse.Namespace) -> int:
    layer = layer_of(args)
    if args.add:
        paths.require_clone("moebench model --add")
        print("\n".join(add_model.add(args.add, layer.checkpoint, layer.sizes)))
        layer = layer_of(args)
    else:
        print("\n".join(wrapped(facts(layer))))

    servings = solutions(layer)
    if not args.add:
        print("\n".join(wrapped(serving_rows(layer, servings))))
    print("\n".join(next_commands(args, layer, servings)))
    return 0


def layer_of(args: argparse.Namespace) -> Layer:
    """Read the checkpoint. Raises UserError for what is no layer that a definition can have."""
    try:
        checkpoint = read_file(args.config, args.fp8, args.limit)
        sizes = checkpoint.on(args.ep, args.tp)
    except ValueError as error:  # no JSON, too
        raise UserError(f"{args.config}: {error}") from error
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}, want a config.json") from error

    by_name = catalogue.by_name()
    keys = {form: by_name.get(name) for form, name in catalogue.names(sizes).items()}
    return Layer(checkpoint, sizes, keys)


def wrapped(rows: list[tuple[str, str]]) -> list[str]:
    """Return lines of a width that a terminal shows: a row's name, and its text beside it."""
    lines = []
    for name, text in rows:
        first = name.ljust(INDENT)
        rest = " " * INDENT
        lines += textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest)
    return lines


def facts(layer: Layer) -> list[tuple[str, str]]:
    """Return what config.json says, and what follows from it: names and texts."""
    checkpoint = layer.checkpoint
    sizes = layer.sizes
    experts = f"{sizes['num_local_experts']} of {sizes['num_experts']}, top-k {sizes['top_k']}"
    if sizes["num_groups"] > 1:
        experts += f", {sizes['kept_groups']} of {sizes['num_groups']} groups"

    router = checkpoint.router
    if len(layer.keys) == 1:
        router += "; no definition has this router inside, so top-k is given"

    activation = swiglu.description(sizes)
    for limit, layers in checkpoint.others.items():
        activation += f"; {layers} more with limit {limit:g} (--limit)"

    width = f"{sizes['intermediate_size']}"
    if sizes["tensor_ranks"] > 1:
        width += (
            f", one of {sizes['tensor_ranks']} slices of {checkpoint.sizes['intermediate_size']}"
        )

    gigabytes = sizes["num_local_experts"] * expert_bytes(sizes) / 1e9
    count = checkpoint.layers + sum(checkpoint.others.values())
    fits = "fits" if gigabytes * count <= GPU_GB else "exceeds"
    rows = [
        ("experts", experts),
        ("hidden, intermediate", f"{sizes['hidden_size']}, {width}"),
        ("router", router),
        ("activation", activation),
        ("weights", f"{checkpoint.storage}; {gigabytes:.2f} GB a layer"),
        ("MoE layers", f"{count}, {gigabytes * count:.1f} GB, which {fits} a GPU of {GPU_GB} GB"),
        ("bound, ms", bounds(sizes)),
        ("definition", ", ".join(filter(None, layer.keys.values())) or "none yet"),
    ]
    if checkpoint.notes:
        rows.append(("note", "; ".join(checkpoint.notes)))
    if checkpoint.not_understood:
        rows.append(("not understood", listed(checkpoint.not_understood)))
    return rows


def bounds(sizes: Sizes) -> str:
    """Return the roofline bounds at TOKENS, means over routings, in words."""
    parts = []
    for tokens in TOKENS:
        bound = expected_bound(tokens, sizes)
        parts.append(f"T={tokens}: {bound.ms:.4f} ({bound.active:.1f} experts active)")
    return f"{', '.join(parts)}; means over routings, {MEASURED_ON}"


def listed(fields: dict[str, object]) -> str:
    """Return fields of a config.json and what they have, cut to a few words each."""
    parts = [f"{name} {textwrap.shorten(str(value), 24)}" for name, value in fields.items()]
    text = ", ".join(parts[:MOST_LISTED])
    if len(parts) > MOST_LISTED:
        text += f" and {len(parts) - MOST_LISTED} more"
    return text


def solutions(layer: Layer) -> list[Serving]:
    """Return what each solution for such layers does with this one, the best first."""
    recorded = {form: over_bound(key) for form, key in layer.keys.items() if key}
    elsewhere = {}
    if not any(recorded.values()):
        first_key = next(iter(catalogue.layer_sizes()))
        elsewhere = over_bound(first_key)

    servings = []
    for name, solution in manifest.readable().items():
        serves_fp8_layers = any(map(catalogue.form, solution.definitions))
        if not solution.serves and not serves_fp8_layers:
            continue

        reasons = {}
        for form, key in layer.keys.items():
            if key not in solution.definitions:
                reasons[form] = why_not(solution.serves, form, layer.sizes)
            else:
                reasons[form] = None
        ratios = {form: ratio[name] for form, ratio in recorded.items() if name in ratio}
        servings.append(Serving(name, reasons, ratios, elsewhere.get(name)))
    return sorted(servings, key=rank)


def rank(serving: Serving) -> tuple[int, float, float, str]:
    """Return a key to sort by: more forms first, then the fastest here, then the fastest on the
    first definition.
    """
    refused = sum(reason is not None for reason in serving.why_not.values())
    here = min(serving.over_bound.values(), default=math.inf)
    return refused, here, serving.elsewhere or math.inf, serving.solution


def over_bound(key: str) -> dict[str, float]:
    """Return solution -> recorded latency over the bound on the GPU whose bound is known; {}
    without traces.
    """
    path = paths.trace_file(catalogue.definition_name(key))
    if not path.exists():
        return {}
    try:
        rows, _ = measurements.load([path])
    except UserError as error:
        print(error, file=sys.stderr)
        return {}
    here = rows[rows.hardware == MEASURED_ON]
    return by_solution(here).over_bound.dropna().to_dict() if len(here) else {}


def serving_rows(layer: Layer, servings: list[Serving]) -> list[tuple[str, str]]:
    """Return a row for each form with the solutions that serve it, and one with those that serve
    none and why.
    """
    rows = [(FORM_NAMES[form], served_by(form, servings)) for form in layer.keys]
    if any(serving.over_bound for serving in servings):
        rows.append(("", "(recorded latency over the bound, geometric mean over workloads)"))

    refusing: dict[str, list[str]] = {}  # reason -> solutions
    for serving in servings:
        reasons = list(serving.why_not.values())
        if all(reasons):
            refusing.setdefault(most_telling(reasons), []).append(serving.solution)
    if refusing:
        texts = [f"{', '.join(names)} ({reason})" for reason, names in refusing.items()]
        rows.append(("not served by", "; ".join(texts)))
    return rows


def served_by(form: str, servings: list[Serving]) -> str:
    """Return the solutions that serve a form, the fastest first, with latency over the bound."""
    able = [serving for serving in servings if serving.why_not[form] is None]
    able.sort(key=lambda serving: serving.over_bound.get(form, math.inf))

    texts = []
    for serving in able:
        ratio = serving.over_bound.get(form)
        texts.append(f"{serving.solution} {ratio:.2f}" if ratio else serving.solution)
    return ", ".join(texts) or "by none"


def most_telling(reasons: list[str]) -> str:
    """Return the first reason that is of the layer's sizes, or else the one of its router."""
    of_sizes = [reason for reason in reasons if not reason.startswith("router")]
    return (of_sizes or reasons)[0]


def next_commands(args: argparse.Namespace, layer: Layer, servings: list[Serving]) -> list[str]:
    """Return commands that can be typed as they are: add the layer, measure it, use it."""
    lines = []
    keys = layer.keys
    if not any(keys.values()):
        new_key = free_key(layer, Split(args.ep, args.tp))
        lines.append(f"{args.command_line} --add {new_key}")
        keys = {form: routed_key(new_key) if form == "routed" else new_key for form in keys}

    first_key = next(key for key in keys.values() if key)
    lines.append(f"moebench run --definition {first_key}")

    servers = [serving.solution for serving in servings if serving.why_not["routed"] is None]
    if keys["routed"] and servers:
        pack = f"moebench pack {servers[0]} --package moe --definition {keys['routed']}"
        lines.append(f"{pack} && pip install ./moe")
    return lines


def free_key(layer: Layer, split: Split) -> str:
    """Return a key for the layer that no definition has: KEY, KEY-2, KEY-3 ..."""
    name = add_model.model_of(layer.checkpoint) or layer.checkpoint.name
    wanted = name + split.suffix()
    taken = catalogue.keys()

    key = wanted
    number = 1
    while key in taken or routed_key(key) in taken:
        number += 1
        key = f"{wanted}-{number}"
    return key
