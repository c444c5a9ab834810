"""Read a config.json as a whole: the layer's sizes, how many layers are alike, how they are stored.

commands/model.py shows the Checkpoint that `read_file` returns, and add_model.py writes it down.

What no definition can be of is refused with a ValueError that names the field, what it has and what
is wanted.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from moebench.models.checkpoint.fields import Fields
from moebench.models.checkpoint.moe_layers import activation, layers_with_experts
from moebench.models.checkpoint.not_understood import not_understood
from moebench.models.checkpoint.router import router_of
from moebench.models.checkpoint.schemes import FP8, MXFP4
from moebench.models.checkpoint.shared import SharedExperts, shared_experts
from moebench.models.checkpoint.storage import HF_QUANT, Storage, storage_of
from moebench.operators import catalogue
from moebench.operators.fp8.reference import BLOCK
from moebench.operators.fp8.routed import TopKGiven
from moebench.operators.layers import Sizes

# Sizes in which layers must not differ
SIZES_OF_A_LAYER = (
    "num_experts",
    "top_k",
    "hidden_size",
    "intermediate_size",
    "experts_hidden_size",
)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's MoE layer.

    sizes: as in a table of layers.toml. layers: how many of the checkpoint's are this layer.
    others: limit of the activation's clamp -> number of layers that differ in that alone. router,
    storage: in words. kind: of weights, FP8 or MXFP4. shared: its shared experts. notes: what else
    the user has to know. not_understood: fields about the experts that nothing here reads. name:
    the checkpoint's, fit for a layer key.
    """

    sizes: Sizes
    layers: int
    others: dict[float, int]
    router: str
    storage: str
    kind: str
    shared: SharedExperts | None
    notes: list[str]
    not_understood: dict[str, object]
    name: str

    def on(self, ranks: int, tensor_ranks: int = 1, shared: int = 0) -> Sizes:
        """Return the sizes on one rank.

        ranks: over which the experts are split. tensor_ranks: over which each expert is. shared:
        shared experts that the rank has besides. Raises ValueError for ranks that do not divide the
        experts, and where a scale's block would lie on two ranks.
        """
        experts = self.sizes["num_experts"]
        if experts % ranks:
            raise ValueError(
                f"--ep: got {ranks}, want a divisor of {experts}, the experts"
            )
        width = self.sizes["intermediate_size"]
        if width % (tensor_ranks * BLOCK):
            raise ValueError(
                f"--tp: got {tensor_ranks}, which leaves {width / tensor_ranks:g} of an expert's "
                f"{width} columns, want a multiple of {BLOCK}, the width of a scale's block"
            )
        return self.sizes | {
            "num_local_experts": experts // ranks + shared,
            "num_shared_experts": shared,
            "intermediate_size": width // tensor_ranks,
            "tensor_ranks": tensor_ranks,
        }

    @property
    def operator(self) -> TopKGiven:
        """The operator with top-k given whose weights are of this kind."""
        return catalogue.MXFP4 if self.kind == MXFP4 else catalogue.ROUTED


@dataclass(frozen=True)
class Assumptions:
    """What a user says of a checkpoint, which then counts and not its config.json.

    fp8: the weights are FP8. fp8_activations: activations beside MXFP4 are FP8. limit: of the
    activation's clamp, by default that of most layers.
    """

    fp8: bool = False
    fp8_activations: bool = False
    limit: float | None = None


NO_ASSUMPTIONS = Assumptions()


def read_file(path: Path, assumed: Assumptions = NO_ASSUMPTIONS) -> Checkpoint:
    """Return what the config.json at a path says, or the one in that folder, with the
    hf_quant_config.json beside it. Raises ValueError as `read`, and OSError.
    """
    file = path / "config.json" if path.is_dir() else path
    config = json.loads(file.read_text(encoding="utf-8"))
    beside = file.with_name(HF_QUANT)
    quantisation = None
    if beside.is_file():
        quantisation = json.loads(beside.read_text(encoding="utf-8"))
    return read(config, assumed, quantisation, name_by_place(file))


def name_by_place(file: Path) -> str:
    """Return the checkpoint's name by the place of its config.json: the folder's, or on a hub's
    cache the model's.
    """
    if file.name != "config.json":
        return file.stem
    folder = file.absolute().parent
    if re.fullmatch("[0-9a-f]{40}", folder.name):
        # models--ORGANISATION--NAME/snapshots/COMMIT
        return folder.parents[1].name.rpartition("--")[2]
    return folder.name


def read(
    config: dict,
    assumed: Assumptions = NO_ASSUMPTIONS,
    beside: dict | None = None,
    place: str = "",
) -> Checkpoint:
    """Return what the content of a config.json says.

    beside: content of hf_quant_config.json. place: the checkpoint's name by `name_by_place`. Raises
    ValueError that names the field, what it has and what is wanted.
    """
    if not isinstance(config, dict):
        raise ValueError(f"got {type(config).__name__}, want an object")
    fields = Fields.of_config(config)

    storage = stored_layers(config, fields, assumed, beside)
    sizes = sizes_of(fields)
    check_alike(fields)
    router = router_of(fields, sizes["top_k"], sizes["num_groups"])
    kind, limits = activation(fields, storage.layers)
    limit = chosen_limit(limits, assumed.limit)

    sizes["routing"] = router.routing
    sizes["routed_scaling_factor"] = router.scaling_factor
    sizes["activation"] = "silu" if kind == "swiglustep" and not limit else kind
    sizes["swiglu_limit"] = limit
    sizes["shared_gate"] = fields.implied.get("shared_gate", False)
    others = dict(limits)
    alike = others.pop(limit)
    return Checkpoint(
        sizes=sizes,
        layers=alike,
        others=others,
        router=router.words,
        storage=storage.words,
        kind=storage.kind,
        shared=shared_experts(fields, sizes["intermediate_size"]),
        notes=notes_on(fields, sizes, [*router.notes, *storage.notes]),
        not_understood=not_understood(fields.values),
        name=name_of(config, fields, place),
    )


def stored_layers(
    config: dict, fields: Fields, assumed: Assumptions, beside: dict | None
) -> Storage:
    """Return how the experts are stored, and which layers' are of a kind that definitions have."""
    num_experts = fields.whole("num_experts")
    with_experts = layers_with_experts(fields)
    if assumed.fp8:
        return Storage(FP8, "taken for FP8", with_experts)
    return storage_of(
        config, fields, with_experts, num_experts, beside, assumed.fp8_activations
    )


def chosen_limit(limits: Counter, wanted: float | None) -> float:
    """Return the wanted limit of the clamp, or that of most layers.

    limits: limit -> number of layers. Raises ValueError for a wanted one that no layer has.
    """
    if wanted is None:
        return limits.most_common(1)[0][0]
    if wanted not in limits:
        listed = ", ".join(f"{limit:g}" for limit in limits)
        raise ValueError(f"--limit: got {wanted:g}, its layers have {listed}")
    return wanted


def notes_on(fields: Fields, sizes: Sizes, notes: list[str]) -> list[str]:
    """Return the notes that are not empty, and one where experts have a hidden size of their
    own.
    """
    notes = [note for note in notes if note]
    if fields.get("experts_hidden_size"):
        name = fields.name("experts_hidden_size")
        hidden = sizes["hidden_size"]
        notes.append(
            f"experts work on {name} {hidden}, between projections outside the layer"
        )
    return notes


def check_alike(fields: Fields) -> None:
    """Raise ValueError for a model whose experts compute something else, and for layers that differ
    in their sizes.
    """
    refused = fields.implied.get("refused")
    if refused:
        raise ValueError(f"model_type {fields.values['model_type']!r}: {refused}")

    size_names = set()
    for key in SIZES_OF_A_LAYER:
        size_names.update(fields.names[key])
    by_layer = fields.values.get("per_layer_config") or {}
    is_readable = isinstance(by_layer, dict)
    if is_readable:
        is_readable = all(isinstance(changes, dict) for changes in by_layer.values())
    if not is_readable:
        raise ValueError(f"per_layer_config: has {by_layer!r}, want fields by layer")
    for layer, changes in by_layer.items():
        differing = size_names.intersection(changes)
        if differing:
            raise ValueError(
                f"per_layer_config: layer {layer} has its own {min(differing)}, want layers alike"
            )


def sizes_of(fields: Fields) -> Sizes:
    """Return the layer's sizes. Raises ValueError for sizes that no definition can have."""
    hidden = "hidden_size"
    if fields.get("experts_hidden_size"):
        hidden = "experts_hidden_size"
    sizes = {
        "num_experts": fields.whole("num_experts"),
        "top_k": fields.whole("top_k"),
        "hidden_size": fields.whole(hidden),
        "intermediate_size": fields.whole("intermediate_size"),
        "num_groups": fields.whole("num_groups", 1),
        "kept_groups": fields.whole("kept_groups", 1),
    }

    for key, most in (("top_k", "num_experts"), ("kept_groups", "num_groups")):
        wanted = f"at most {sizes[most]}, as {fields.name(most)} has"
        fields.require(key, sizes[key] <= sizes[most], wanted)
    check_width(fields, hidden, sizes["hidden_size"])
    check_width(fields, "intermediate_size", sizes["intermediate_size"])
    check_groups(fields, sizes)
    return sizes


def check_width(fields: Fields, key: str, width: int) -> None:
    """Raise ValueError for a width that is no multiple of a scale's block."""
    wanted = f"a multiple of {BLOCK}, the width of a scale's block"
    fields.require(key, width % BLOCK == 0, wanted)


def check_groups(fields: Fields, sizes: Sizes) -> None:
    """Raise ValueError for groups of experts from which top-k cannot be chosen."""
    experts = sizes["num_experts"]
    groups = sizes["num_groups"]
    kept = sizes["kept_groups"]
    fields.require("num_groups", experts % groups == 0, "a divisor of the experts")

    in_group = experts // groups
    two = "two experts or more in a group, as its best two count"
    fields.require("num_groups", in_group > 1, two)

    most = min(in_group * kept, experts - 1)  # a router that takes all chooses none
    wanted = f"at most {most}, with {kept} of {groups} groups open"
    fields.require("top_k", sizes["top_k"] <= most, wanted)


def name_of(config: dict, fields: Fields, place: str) -> str:
    """Return a name for the checkpoint, fit for a key: its own, its folder's or its type's."""
    path = str(config.get("_name_or_path") or "")
    _, _, written = path.rstrip("/").rpartition("/")
    model_type = config.get("model_type") or fields.values.get("model_type")
    for name in (written, place, str(model_type or "")):
        slug = re.sub(r"[^a-z0-9.]+", "-", name.lower())
        slug = slug.strip("-.")
        if re.search("[a-z]", slug):
            return slug
    return "my-model"
