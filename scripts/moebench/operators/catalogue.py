"""The operators of this data set, and their definitions by a short key ("geometry") that no other
definition has.

A module in definitions/ states one operator at one or several geometries; a module here, of the
same name, makes its workloads. The rest of the harness asks this catalogue, unless it is about one
operator alone.

What a module here has: `definitions`, the module in definitions/; GEOMETRIES, geometry -> sizes,
the one with a plain name first, and SMALL, those for machines without a GPU; cases(geometry), its
workloads in the order in which they are run; tensors(case), what goes into its safetensors file;
record(case), the FIB workload trace; counts(workload, its stored tensors, geometry), None where
they lack the routing; bound(seq_len, Counts, geometry).
"""

from collections.abc import Callable
from functools import cache
from types import ModuleType

from flashinfer_bench import Definition

from definitions.layers import has_all_experts
from definitions.moe_fp8_block_scale import self_contained
from moebench.core.errors import UserError
from moebench.core.names import unknown
from moebench.operators import (
    moe_bf16,
    moe_fp8_block_scale,
    moe_fp8_block_scale_renorm,
    moe_fp8_block_scale_routed,
    moe_mxfp4_fp8_routed,
    mxfp8_linear,
)

OPERATORS = (
    moe_fp8_block_scale,
    moe_fp8_block_scale_renorm,
    moe_bf16,
    mxfp8_linear,
    moe_fp8_block_scale_routed,
    moe_mxfp4_fp8_routed,
)
GEOMETRIES = {
    geometry: sizes for family in OPERATORS for geometry, sizes in family.GEOMETRIES.items()
}
RENORM = tuple(moe_fp8_block_scale_renorm.GEOMETRIES)
FP8_MOE = (*moe_fp8_block_scale.GEOMETRIES, *RENORM)  # with the router inside
ROUTED = tuple(moe_fp8_block_scale_routed.GEOMETRIES)  # FP8 MoE with top-k given
MXFP4 = tuple(moe_mxfp4_fp8_routed.GEOMETRIES)  # MXFP4 experts with top-k given
FULL = tuple(
    key for family in OPERATORS for key in family.GEOMETRIES if key not in family.SMALL
)  # these need a GPU


def operator(geometry: str) -> ModuleType:
    """The module of OPERATORS that has this geometry."""
    return next(family for family in OPERATORS if geometry in family.GEOMETRIES)


def form(geometry: str) -> str | None:
    """Of an FP8 layer: the routing inside it, or "routed" where top-k is given; "mxfp4" of MXFP4
    experts; None of another operator.
    """
    if geometry in MXFP4:
        return "mxfp4"
    return "routed" if geometry in ROUTED else GEOMETRIES[geometry].get("routing")


def names(of: dict) -> dict[str, str]:
    """Form -> name of the definition, for each form that an FP8 layer of these sizes has."""
    families = {"sigmoid-bias": moe_fp8_block_scale, "renorm": moe_fp8_block_scale_renorm}
    inside = of["routing"] if of["routing"] == "sigmoid-bias" or has_all_experts(of) else None
    families = {form: family for form, family in families.items() if form == inside}
    families["routed"] = moe_fp8_block_scale_routed
    return {form: family.definitions.name_of(of) for form, family in families.items()}


def definition_name(geometry: str) -> str:
    return operator(geometry).definitions.definition_name(geometry)


def definition(geometry: str) -> Definition:
    return operator(geometry).definitions.definition(geometry)


@cache
def router(geometry: str) -> Callable:
    """The router of a layer, also where top-k is given: logits, and bias and factor -> experts,
    weights, [T, top_k].
    """
    of = moe_fp8_block_scale_routed.ROUTERS.get(geometry, GEOMETRIES[geometry])
    family = moe_fp8_block_scale_renorm if of["routing"] == "renorm" else moe_fp8_block_scale
    sizes = ("top_k", "num_groups", "kept_groups")
    exec(self_contained(of, sizes, (family.definitions.route,)), found := {})
    return found["route"]


BY_NAME = {
    definition_name(geometry): geometry for geometry in GEOMETRIES
}  # a definition's name -> geometry
KEYS = {geometry: geometry for geometry in GEOMETRIES}
# what the first geometry would be called beside the others of its model, and its routed form after
# it
KEYS |= {"deepseek-v3-ep8": "full", "full-routed": "deepseek-v3-ep8-routed"}
KEYS |= BY_NAME  # every name that a user may give -> geometry


def geometry_named(name: str) -> str:
    """The geometry that a user names, by its key or by its definition's name. Raises UserError for
    neither.
    """
    if name not in KEYS:
        raise UserError(unknown("definition", name, list(KEYS), ", ".join(GEOMETRIES)))
    return KEYS[name]


def small_like(geometry: str) -> str:
    """The geometry for machines without a GPU whose routing is most like this one's; itself if it
    is such a one.
    """
    family, groups = operator(geometry), GEOMETRIES[geometry].get("num_groups")
    if geometry in family.SMALL:
        return geometry
    return next(
        (key for key in family.SMALL if GEOMETRIES[key].get("num_groups") == groups),
        family.SMALL[0],
    )
