"""The models of definitions/layers.toml: which definition is their layer at which expert
parallelism; and a new one.
"""

import json
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from subprocess import PIPE, CalledProcessError, check_output

from definitions import layers as tables
from definitions.config_json import Checkpoint
from definitions.layers import MODELS
from definitions.moe_fp8_block_scale_routed import ROUTER_INSIDE, routed_key
from moebench.core.atomic_file import write_atomically
from moebench.core.errors import CannotRun, UserError
from moebench.operators import catalogue, moe_fp8_block_scale

TABLES = Path(tables.__file__).with_name("layers.toml")
SMALL_BYTES = 32_000_000  # of a layer that a CPU can run
DEFAULTS = {"num_groups": 1, "kept_groups": 1, "activation": "silu", "swiglu_limit": 0}


@dataclass(frozen=True)
class Layer:
    """A model's MoE layer on one of `ranks` expert-parallel ranks.

    model: its table in definitions/layers.toml. geometry: its key in the catalogue.
    """

    model: dict
    ranks: int
    geometry: str

    @property
    def name(self) -> str:
        """'DeepSeek-V3 EP8'; 'Qwen3-Next 128/512' where the router knows a part of the experts
        only.
        """
        shown, whole = self.model["name"], self.model.get("of_experts")
        return (
            f"{shown} {self.sizes['num_experts']}/{whole}" if whole else f"{shown} EP{self.ranks}"
        )

    @property
    def count(self) -> int:
        """Such layers in the model, without those that only predict further tokens."""
        return self.model["layers"]

    @property
    def sizes(self) -> dict:
        return catalogue.GEOMETRIES[self.geometry]

    @property
    def definition(self) -> str:
        return catalogue.definition_name(self.geometry)


@cache
def layers() -> list[Layer]:
    """Every model's layer, by model and from many ranks to one; with the router inside where there
    is that form.
    """
    found = []
    for model in (of for of in MODELS.values() if not of.get("small")):
        ranks = sorted(((ep, key) for key, ep in model["geometries"].items()), reverse=True)
        found += [
            Layer(model, ep, key if key in catalogue.GEOMETRIES else routed_key(key))
            for ep, key in ranks
        ]
    return found


def layer_of(geometry: str) -> Layer | None:
    """The model's layer, with its router inside or before it; None where it is of no whole
    model.
    """
    inside = ROUTER_INSIDE.get(geometry, geometry)
    return next((layer for layer in layers() if layer.geometry == inside), None)


def weight_bytes(layer: Layer) -> int:
    """Of the rank's experts in one layer, with their scales."""
    return layer.sizes["num_local_experts"] * moe_fp8_block_scale.expert_bytes(layer.sizes)


def add(key: str, found: Checkpoint, of: dict) -> str:
    """Append the layer to layers.toml, and have its definitions and workloads written; returns what
    was.

    of: `found` on one rank. Raises UserError for a key that cannot be or is taken, and for a layer
    that is there.
    """
    names, before = catalogue.names(of), TABLES.read_text(encoding="utf-8")
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", key):
        raise UserError(f"--add: got {key!r}, want lower-case letters, digits, dots and hyphens")
    if other := next(
        (each for each in (key, routed_key(key)) if each in {*MODELS, *catalogue.KEYS, "all"}), None
    ):
        raise UserError(f"--add: got {key!r}, but {other} is there already")
    if other := next(
        (catalogue.BY_NAME[name] for name in names.values() if name in catalogue.BY_NAME), None
    ):
        raise UserError(f"--add: got {key!r}, but {other} is this layer")
    mine = f"\n\n{table(key, found, of)}"
    write_atomically(TABLES, before.rstrip() + mine)
    keys = [routed_key(key) if form == "routed" else key for form in names]
    try:  # -P: not the definitions of another checkout, from whose root this may be typed
        command = [sys.executable, "-P", "-m", "moebench", "data", *keys, "--write"]
        return check_output(command, stderr=PIPE, text=True).strip()
    except (CalledProcessError, KeyboardInterrupt) as error:
        write_atomically(
            TABLES, TABLES.read_text(encoding="utf-8").replace(mine, "\n")
        )  # others may have added theirs
        if isinstance(error, KeyboardInterrupt):
            raise
        said = (error.stderr.strip().splitlines() or ["no output"])[-1]
        raise CannotRun(f"--add: {said}; layers.toml is without it again") from error


def table(key: str, found: Checkpoint, of: dict) -> str:
    """TOML; small enough for a CPU, with a router inside, it is for machines without a GPU."""
    local, ranks = of["num_local_experts"], of["num_experts"] // of["num_local_experts"]
    lines = {"name": key, "layers": found.layers} | {
        k: v for k, v in found.of.items() if v != DEFAULTS.get(k)
    }
    on_cpu = local * moe_fp8_block_scale.expert_bytes(of) <= SMALL_BYTES and local >= max(
        of["top_k"], 4
    )
    told = [
        f"[{json.dumps(key)}]",
        *(f"{name} = {json.dumps(value)}" for name, value in lines.items()),
    ]
    told += [f"geometries = {{ {json.dumps(key)} = {ranks} }}"]
    return "\n".join(told + ["small = true"] * (on_cpu and len(catalogue.names(of)) > 1) + [""])
