"""The definitions of this data set, each by a short key ("geometry") that no other definition has.

A module in definitions/ states one operator at one or several geometries; the harness asks here, not there, unless it
is about that operator alone.
"""

from types import ModuleType

from flashinfer_bench import Definition

from definitions import moe_bf16, moe_fp8_block_scale, mxfp8_linear

OPERATORS = (moe_fp8_block_scale, moe_bf16, mxfp8_linear)
# geometry -> sizes; a solution that does not say what it serves serves the first operator
GEOMETRIES = {geometry: sizes for module in OPERATORS for geometry, sizes in module.GEOMETRIES.items()}
# A solution keeps its plain name in one geometry an operator; these need a GPU.
FULL = tuple(next(iter(module.GEOMETRIES)) for module in OPERATORS)


def operator(geometry: str) -> ModuleType:
    """The module in definitions/ that states a key of GEOMETRIES."""
    return next(module for module in OPERATORS if geometry in module.GEOMETRIES)


def definition_name(geometry: str) -> str:
    """Name of the FIB Definition for a key of GEOMETRIES."""
    return operator(geometry).definition_name(geometry)


def definition(geometry: str) -> Definition:
    """The FIB Definition for a key of GEOMETRIES."""
    return operator(geometry).definition(geometry)


def geometry_here(served: list[str], on_gpu: bool) -> str | None:
    """The first of these keys that is meant for a machine with, or without, a GPU; None without one."""
    return next((geometry for geometry in served if (geometry in FULL) == on_gpu), None)


def geometry_of(name: str) -> str | None:
    """The key of GEOMETRIES whose definition has this name, or None."""
    return next((geometry for geometry in GEOMETRIES if definition_name(geometry) == name), None)
