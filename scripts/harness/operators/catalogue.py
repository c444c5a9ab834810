"""The operators of this data set, and their definitions by a short key ("geometry") that no other definition has.

A module in definitions/ states one operator at one or several geometries; a module here, of the same name, makes its
workloads. The rest of the harness asks this catalogue, unless it is about one operator alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import torch
from flashinfer_bench import Definition, Trace, Workload

from harness.core.errors import UserError
from harness.operators import moe_bf16, moe_fp8_block_scale, mxfp8_linear
from harness.operators.case import Case
from harness.operators.roofline import Bound


@dataclass(frozen=True)
class Operator:
    """An operator family.

    definitions: the module in definitions/ that states it.
    cases: geometry -> its workloads, in the order in which they are run.
    tensors: case -> what goes into its safetensors file.
    record: case -> the FIB workload trace.
    bound: (workload, its stored tensors, geometry) -> its roofline bound, or None where the tensors lack the routing.
    """

    definitions: ModuleType
    cases: Callable[[str], list[Case]]
    tensors: Callable[[Case], dict[str, torch.Tensor]]
    record: Callable[[Case], Trace]
    bound: Callable[[Workload, dict[str, torch.Tensor], str], Bound | None]

    @property
    def geometries(self) -> dict[str, dict]:
        """Geometry -> sizes, the full one first."""
        return self.definitions.GEOMETRIES


OPERATORS = tuple(
    Operator(family.definitions, family.cases, family.tensors, family.record, family.bound)
    for family in (moe_fp8_block_scale, moe_bf16, mxfp8_linear)
)
# geometry -> sizes; a solution that does not say what it serves serves the first operator
GEOMETRIES = {geometry: sizes for operator in OPERATORS for geometry, sizes in operator.geometries.items()}
# A solution keeps its plain name in one geometry an operator; these need a GPU.
FULL = tuple(next(iter(operator.geometries)) for operator in OPERATORS)


def operator(geometry: str) -> Operator:
    """Of a key of GEOMETRIES."""
    return next(operator for operator in OPERATORS if geometry in operator.geometries)


def definition_name(geometry: str) -> str:
    """Name of the FIB Definition for a key of GEOMETRIES."""
    return operator(geometry).definitions.definition_name(geometry)


def definition(geometry: str) -> Definition:
    """The FIB Definition for a key of GEOMETRIES."""
    return operator(geometry).definitions.definition(geometry)


def geometry_here(served: list[str], on_gpu: bool) -> str | None:
    """The first of these keys that is meant for a machine with, or without, a GPU; None without one."""
    return next((geometry for geometry in served if (geometry in FULL) == on_gpu), None)


def geometry_of(name: str) -> str | None:
    """The key of GEOMETRIES whose definition has this name, or None."""
    return next((geometry for geometry in GEOMETRIES if definition_name(geometry) == name), None)


def geometry_named(name: str) -> str:
    """The geometry that a user names, by its key or by its definition's name. Raises UserError for neither."""
    by_name = {definition_name(geometry): geometry for geometry in GEOMETRIES}
    geometry = by_name.get(name, name)
    if geometry not in GEOMETRIES:
        raise UserError(f"unknown definition {name!r}; there are: {', '.join([*GEOMETRIES, *by_name])}")
    return geometry
