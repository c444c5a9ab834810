"""What a checkpoint's config.json says of its MoE layer, how fast it could be, and which solutions
serve it.

For every other solution the reason is shown. --add KEY makes the layer a definition with workloads,
by a table in definitions/layers.toml; then `moebench run`, `pack` and `served` take the key. Exit
status: 0, or 2 for what is no FP8 layer with a scale per block of 128 x 128, with the field that
stands against it.
"""

import argparse
import json
import sys
from pathlib import Path

from definitions import swiglu
from definitions.config_json import Checkpoint, read
from definitions.moe_fp8_block_scale_routed import routed_key
from moebench.core import paths
from moebench.core.arguments import count
from moebench.core.errors import UserError
from moebench.operators import catalogue, routing_model
from moebench.operators.models import add
from moebench.operators.moe_fp8_block_scale import expert_bytes, layer_bound, middle_rank
from moebench.operators.roofline import MEASURED_ON
from moebench.packing import manifest
from moebench.packing.serves import why_not
from moebench.report.models import GPU_GB
from moebench.report.table import Table, console, decimal
from moebench.results import table
from moebench.results.summary import by_solution

TOKENS = (1, 64, 4096)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option(
        "config", type=Path, metavar="CONFIG.json", help="of a checkpoint, as transformers reads it"
    )
    option(
        "--ep",
        type=count(),
        default=1,
        metavar="N",
        help="ranks that share the experts; default: 1",
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
    try:
        found = read(json.loads(args.config.read_text(encoding="utf-8")), args.fp8, args.limit)
        of = found.on(args.ep)
    except ValueError as error:  # no JSON, too
        raise UserError(f"{args.config}: {error}") from error
    known, fastest = (
        {form: catalogue.BY_NAME.get(name) for form, name in catalogue.names(of).items()},
        "SOLUTION",
    )
    if args.add:
        paths.require_clone("moebench model --add")
        print(add(args.add, found, of))
        known = {form: routed_key(args.add) if form == "routed" else args.add for form in known}
    else:
        shown, fastest = solutions(of, known)
        console().print(facts(found, of, known).terminal(), shown.terminal())
    if not any(known.values()):
        print(f"{args.command_line} --add KEY")
        known = {form: "KEY-routed" if form == "routed" else "KEY" for form in known}
    print(f"moebench run --definition {next(filter(None, known.values()))}")
    if known["routed"]:
        print(
            f"moebench pack {fastest} --package moe --definition {known['routed']} && pip install ./moe"
        )
    return 0


def bounds(of: dict) -> dict[int, float]:
    """Tokens -> ms of the roofline bound where top-k is given, for a routing as workloads have
    it.
    """
    found, offset = {}, middle_rank(of)
    for tokens in TOKENS:
        drawn = routing_model.draw_typical(f"model/{tokens}", tokens, offset, of)
        counts = routing_model.local_counts(routing_model.select(*drawn, of) - offset, of)
        found[tokens] = layer_bound(tokens, counts, tokens * of["top_k"] * (4 + 4), of).ms
    return found


def facts(found: Checkpoint, of: dict, known: dict[str, str | None]) -> Table:
    """What config.json says, and what follows from it. known: form of this layer -> its
    definition's key, or None.
    """
    local, experts, layers = (
        of["num_local_experts"],
        of["num_experts"],
        found.layers + sum(found.others.values()),
    )
    groups = f", {of['kept_groups']} of {of['num_groups']} groups" if of["num_groups"] > 1 else ""
    layer = local * expert_bytes(of) / 1e9
    given = "" if len(known) > 1 else "; no definition has this router inside, so top-k is given"
    others = "".join(
        f"; {count} more with limit {limit:g} (--limit)" for limit, count in found.others.items()
    )
    fits = "fits" if layer * layers <= GPU_GB else "exceeds"
    rows = [
        ["experts", f"{local} of {experts}, top-k {of['top_k']}{groups}"],
        ["hidden, intermediate size", f"{of['hidden_size']}, {of['intermediate_size']}"],
        ["router", f"{found.router}{given}"],
        ["activation", f"{swiglu.description(of)}{others}"],
        ["weights", f"{found.storage}; {layer:.2f} GB a layer"],
        ["MoE layers", f"{layers}, {layer * layers:.1f} GB, which {fits} a GPU of {GPU_GB} GB"],
        [
            "bound, ms",
            ", ".join(f"T={t}: {ms:.4f}" for t, ms in bounds(of).items()) + f" ({MEASURED_ON})",
        ],
        ["definition", ", ".join(filter(None, known.values())) or "none yet"],
    ]
    return Table(["", ""], [rows], words=2)


def solutions(of: dict, known: dict[str, str | None]) -> tuple[Table, str]:
    """Of every solution for such layers: the forms that it serves, its times over the bound, and
    why not the others; and the fastest of those that serve most, if recorded. known: form of this
    layer -> key of its definition here.
    """
    ratios, rows = {form: over_bound(key) if key else {} for form, key in known.items()}, []
    for name, its in manifest.readable().items():
        if not its.serves and not any(map(catalogue.form, its.definitions)):
            continue  # of another operator
        why = {
            form: None if key in its.definitions else why_not(its.serves, form, of)
            for form, key in known.items()
        }
        cells = [
            None if why[form] else f"yes {decimal(ratios[form].get(name), 2)}".rstrip(" -")
            for form in known
        ]
        rows.append([name, *cells, "; ".join(dict.fromkeys(filter(None, why.values())))])
    heads = [
        "top-k given (routed)" if form == "routed" else f"router inside ({form})" for form in known
    ]
    caption = (
        "Numbers: recorded latency over the bound, geometric mean over workloads."
        if any(ratios.values())
        else ""
    )
    least = {
        name: min(of[name] for of in ratios.values() if name in of)
        for name in set().union(*ratios.values())
    }
    rows.sort(key=lambda row: (row[1:-1].count(None), row[0] not in least, least.get(row[0], 0)))
    fastest = rows[0][0] if rows[0][0] in least else "SOLUTION"
    return Table(["solution", *heads, "why not"], [rows], words=9, caption=caption), fastest


def over_bound(key: str) -> dict[str, float]:
    """Solution -> recorded latency over the bound on the GPU whose bound is known; {} without
    traces.
    """
    if not (path := paths.trace_file(catalogue.definition_name(key))).exists():
        return {}
    try:
        rows, _ = table.load([path])
    except UserError as error:
        print(error, file=sys.stderr)
        return {}
    here = rows[rows.hardware == MEASURED_ON]
    return by_solution(here).over_bound.dropna().to_dict() if len(here) else {}
