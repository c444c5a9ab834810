"""The parts of a FIB Definition: axes and tensors with a description each, and the reference."""

from collections.abc import Iterable, Mapping

from flashinfer_bench import AxisConst, AxisVar, TensorSpec


def const(value: int, description: str) -> AxisConst:
    """Return an axis of one size."""
    return AxisConst(type="const", value=value, description=description)


def var(description: str) -> AxisVar:
    """Return an axis whose size the workload says."""
    return AxisVar(type="var", description=description)


def tensor(shape: list[str] | None, dtype: str, description: str) -> TensorSpec:
    """Return an input or output; a shape of None is a scalar."""
    return TensorSpec(shape=shape, dtype=dtype, description=description)


def module_source(constants: Mapping[str, object], functions: Iterable[str]) -> str:
    """Return a self-contained module for the `reference` field: constants, then the functions."""
    lines = [f"{name} = {value}" for name, value in constants.items()]
    head = "import torch\n\n" + "\n".join(lines) + "\n"
    return "\n\n".join([head, *functions])
