"""The parts of a FIB Definition, each with its description, in few words."""

from flashinfer_bench import AxisConst, AxisVar, TensorSpec


def const(value, description):
    """An axis of one size."""
    return AxisConst(type="const", value=value, description=description)


def var(description):
    """An axis whose size the workload says."""
    return AxisVar(type="var", description=description)


def tensor(shape, dtype, description):
    """An input or output; a shape of None is a scalar."""
    return TensorSpec(shape=shape, dtype=dtype, description=description)
