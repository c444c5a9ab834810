"""What a checkpoint's config.json says of its MoE layer, how fast it could be, and which solutions
serve it.

For every other solution the reason is shown. --add KEY makes the layer a definition with workloads,
by a table in definitions/layers.toml; then `moebench run`, `pack` and `served` take the key. Exit
status: 0, or 2 for what is no layer in FP8 with a scale per block of 128 x 128 or in MXFP4 beside
activations in FP8, with the field that stands against it.
"""

import argparse
import math
import sys
import textwrap
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from moebench.core import paths
from moebench.core.arguments import count
from moebench.core.errors import UserError
from moebench.models import add_model, scales
from moebench.models.checkpoint import Assumptions, Checkpoint, read_file
from moebench.models.expected_bound import expected_bound
from moebench.operators import catalogue
from moebench.operators.fp8 import swiglu
from moebench.operators.fp8.routed import after_routing, routed_key
from moebench.operators.layers import Sizes, Split, routed_experts
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
    "mxfp4": "served, top-k given",
}
TOP_K_GIVEN = ("routed", "mxfp4")  # what an engine calls


@dataclass(frozen=True)
class Layer:
    """A checkpoint's layer on one rank.

    keys: form -> its definition's key, None without one. keys_with_shared: of the definitions that
    include the shared experts.
    """

    checkpoint: Checkpoint
    sizes: Sizes
    keys: dict[str, str | None]
    keys_with_shared: list[str]


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
    option("--shared", action="store_true", help="with its shared experts, behind the others")
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
    option("--add", metavar="KEY", help="write its definition and workloads, under this key")


def main(args: argparse.Namespace) -> int:
    if args.check_scales:
        return check_scales(args)

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


def check_scales(args: argparse.Namespace) -> int:
    """Print how many blocks of a checkpoint in MXFP4 are exact as FP8; return 0 if all are."""
    checkpoint = checkpoint_of(args, Assumptions(fp8_activations=True, limit=args.limit))
    if checkpoint.kind != "mxfp4":
        raise UserError(f"--check-scales: got weights in {checkpoint.storage}, want MXFP4")

    folder = args.config if args.config.is_dir() else args.config.parent
    tally = scales.check_scales(folder, checkpoint)
    print("\n".join(wrapped(scales.rows_of(tally))))
    return 0 if tally.exact == tally.blocks else 1


def checkpoint_of(args: argparse.Namespace, assumed: Assumptions) -> Checkpoint:
    """Read the checkpoint. Raises UserError for what is no layer that a definition can have."""
    try:
        return read_file(args.config, assumed)
    except ValueError as error:  # no JSON, too
        raise UserError(f"{args.config}: {error}") from error
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}, want a config.json") from error


def layer_of(args: argparse.Namespace) -> Layer:
    """Return the checkpoint's layer on one rank. Raises UserError for ranks that cannot be."""
    assumed = Assumptions(args.fp8, args.fp8_activations, args.limit)
    checkpoint = checkpoint_of(args, assumed)
    try:
        sizes = checkpoint.on(args.ep, args.tp, shared_count(args, checkpoint))
    except ValueError as error:
        raise UserError(f"{args.config}: {error}") from error

    with_shared = []
    if checkpoint.shared and checkpoint.shared.count:
        sizes_with_shared = checkpoint.on(args.ep, args.tp, checkpoint.shared.count)
        keys = keys_of(sizes_with_shared, checkpoint.kind)
        with_shared = [key for key in keys.values() if key]
    return Layer(checkpoint, sizes, keys_of(sizes, checkpoint.kind), with_shared)


def shared_count(args: argparse.Namespace, checkpoint: Checkpoint) -> int:
    """Return how many shared experts the layer is to have. Raises ValueError where there is none
    that can be appended to the others.
    """
    if not args.shared:
        return 0
    shared = checkpoint.shared
    if shared is None:
        raise ValueError("--shared: the model has no shared experts")
    if shared.why_not_appended:
        raise ValueError(f"--shared: the model's cannot be appended: {shared.why_not_appended}")
    return shared.count


def keys_of(sizes: Sizes, weights: str) -> dict[str, str | None]:
    """Return form -> its definition's key, None without one. weights: "fp8" or "mxfp4"."""
    by_name = catalogue.by_name()
    names = catalogue.names(sizes, weights)
    return {form: by_name.get(name) for form, name in names.items()}


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
    rows = [("experts", experts_text(layer.sizes))]
    if checkpoint.shared:
        rows.append(("shared experts", shared_words(layer)))

    router = checkpoint.router
    if len(layer.keys) == 1:
        router += "; no definition has this router inside, so top-k is given"
    activation = swiglu.description(layer.sizes)
    for limit, layers in checkpoint.others.items():
        activation += f"; {layers} more with limit {limit:g} (--limit)"
    keys = [key for key in layer.keys.values() if key]

    rows.append(("hidden, intermediate", widths(layer)))
    rows.append(("router", router))
    rows.append(("activation", activation))
    rows += memory_rows(layer)
    rows.append(("bound, ms", bounds(layer)))
    rows.append(("definition", ", ".join(keys) or "none yet"))
    if checkpoint.notes:
        rows.append(("note", "; ".join(checkpoint.notes)))
    if checkpoint.not_understood:
        rows.append(("not understood", listed(checkpoint.not_understood)))
    return rows


def experts_text(sizes: Sizes) -> str:
    text = f"{routed_experts(sizes)} of {sizes['num_experts']}, top-k {sizes['top_k']}"
    if sizes["num_groups"] > 1:
        text += f", {sizes['kept_groups']} of {sizes['num_groups']} groups"
    return text


def widths(layer: Layer) -> str:
    """Return the hidden and the intermediate size, and of which the latter is a slice."""
    sizes = layer.sizes
    text = f"{sizes['hidden_size']}, {sizes['intermediate_size']}"
    if sizes["tensor_ranks"] > 1:
        whole = layer.checkpoint.sizes["intermediate_size"]
        text += f", one of {sizes['tensor_ranks']} slices of {whole}"
    return text


def memory_rows(layer: Layer) -> list[tuple[str, str]]:
    """Return what a layer's weights take, and what those of the model's MoE layers take."""
    checkpoint = layer.checkpoint
    layer_gb = layer.sizes["num_local_experts"] * checkpoint.expert_bytes(layer.sizes) / 1e9
    count = checkpoint.layers + sum(checkpoint.others.values())
    model_gb = layer_gb * count
    fits = "fits" if model_gb <= GPU_GB else "exceeds"
    return [
        ("weights", f"{checkpoint.storage}; {layer_gb:.2f} GB a layer"),
        ("MoE layers", f"{count}, {model_gb:.1f} GB, which {fits} a GPU of {GPU_GB} GB"),
    ]


def shared_words(layer: Layer) -> str:
    """Return what the shared experts are, and which definitions include them."""
    shared = layer.checkpoint.shared
    gate = ", weighed by a sigmoid" if shared.has_gate else ""
    words = f"{shared.width} wide{gate}"
    if layer.sizes["num_shared_experts"]:
        return f"{words}; included, behind the others"
    if shared.why_not_appended:
        return f"{words}; no definition can include them: {shared.why_not_appended}"
    if layer.keys_with_shared:
        return f"{words}; included in {', '.join(layer.keys_with_shared)}"
    return f"{words}; no definition includes them yet (--shared)"


def bounds(layer: Layer) -> str:
    """Return the roofline bounds at TOKENS, means over routings, in words."""
    parts = []
    expert_bytes = layer.checkpoint.expert_bytes(layer.sizes)
    for tokens in TOKENS:
        bound = expected_bound(tokens, layer.sizes, expert_bytes)
        parts.append(f"T={tokens}: {bound.ms:.4f} ({bound.active:.1f} experts active)")
    return f"{', '.join(parts)}; means over routings, {MEASURED_ON}"


def listed(fields: dict[str, object]) -> str:
    """Return fields of a config.json and what they have, cut to a few words each."""
    parts = [f"{name} {textwrap.shorten(str(value), 24)}" for name, value in fields.items()]
    text = ", ".join(parts[:MOST_LISTED])
    further = len(parts) - MOST_LISTED
    if further > 0:
        text += f" and {further} more"
    return text


def solutions(layer: Layer) -> list[Serving]:
    """Return what each solution for such layers does with this one, the best first."""
    recorded = {form: over_bound(key) for form, key in layer.keys.items() if key}
    elsewhere = {}
    if not any(recorded.values()):
        first_key, *_ = catalogue.layer_sizes()
        elsewhere = over_bound(first_key)

    servings = []
    for name, solution in manifest.readable().items():
        serves_fp8_layers = any(map(catalogue.form, solution.definitions))
        if not solution.serves and not serves_fp8_layers:
            continue

        ratios = {form: ratio[name] for form, ratio in recorded.items() if name in ratio}
        serving = Serving(name, reasons(solution, layer), ratios, elsewhere.get(name))
        servings.append(serving)
    return sorted(servings, key=rank)


def reasons(solution: manifest.Manifest, layer: Layer) -> dict[str, str | None]:
    """Return form -> why a solution does not serve the layer, None where it does."""
    by_form = {}
    for form, key in layer.keys.items():
        by_form[form] = None
        if key not in solution.definitions:
            by_form[form] = why_not(solution.serves, form, sizes_of_form(form, layer.sizes))
    return by_form


def sizes_of_form(form: str, sizes: Sizes) -> Sizes:
    """Return the sizes that a solution sees: where top-k is given there are no groups of experts,
    and shared experts are among the others.
    """
    return after_routing(sizes) if form in TOP_K_GIVEN else sizes


def rank(serving: Serving) -> tuple[int, float, float, str]:
    """Return a key to sort by: more forms first, then the fastest here, then the fastest on the
    first definition.
    """
    refused = [reason for reason in serving.why_not.values() if reason]
    here = min(serving.over_bound.values(), default=math.inf)
    return len(refused), here, serving.elsewhere or math.inf, serving.solution


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

    refusing = defaultdict(list)  # reason -> solutions
    for serving in servings:
        refusals = list(serving.why_not.values())
        if all(refusals):
            refusing[most_telling(refusals)].append(serving.solution)
    texts = [f"{', '.join(names)} ({reason})" for reason, names in refusing.items()]
    if texts:
        rows.append(("not served by", "; ".join(texts)))
    return rows


def able(form: str, servings: list[Serving]) -> list[Serving]:
    """Return the solutions that serve a form."""
    return [serving for serving in servings if serving.why_not[form] is None]


def served_by(form: str, servings: list[Serving]) -> str:
    """Return the solutions that serve a form, the fastest first, with latency over the bound."""
    ratios = {}
    for serving in able(form, servings):
        ratios[serving.solution] = serving.over_bound.get(form, math.inf)

    texts = []
    for name in sorted(ratios, key=ratios.get):
        is_recorded = ratios[name] != math.inf
        texts.append(f"{name} {ratios[name]:.2f}" if is_recorded else name)
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
        new_key = free_key(layer, Split(args.ep, args.tp, layer.sizes["num_shared_experts"]))
        lines.append(f"{args.command_line} --add {new_key}")
        keys = add_model.keys_of(new_key, keys)

    first_key = next(filter(None, keys.values()))
    lines.append(f"moebench run --definition {first_key}")

    (form,) = keys.keys() & set(TOP_K_GIVEN)
    servers = able(form, servings)
    if keys[form] and servers:
        pack = f"moebench pack {servers[0].solution} --package moe --definition {keys[form]}"
        lines.append(f"{pack} && pip install ./moe")
    return lines


def free_key(layer: Layer, split: Split) -> str:
    """Return a key for the layer that no definition has: KEY, KEY-2, KEY-3 ..."""
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
