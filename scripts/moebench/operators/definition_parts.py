"""The parts of a FIB Definition, each with its description, in few words."""

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
