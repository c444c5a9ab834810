"""What a solution's source must not do: wait for the device."""

import ast

import pytest
from every_solution import SOLUTIONS
from moebench.packing import pack

WAITING = {"item", "cpu", "tolist", "numpy", "synchronize", "nonzero", "argwhere", "unique"}


def may_wait(function_name):
    """Whether no call of a solution runs it: the plain form of a stage, or what is set up once."""
    return function_name.endswith("_ref") or function_name.startswith(("__init__", "_set_up"))


def waiting_nodes(node):
    """Yield the nodes that wait for the device, where a call of the solution comes."""
    if isinstance(node, ast.FunctionDef) and may_wait(node.name):
        return
    if isinstance(node, ast.Attribute) and node.attr in WAITING:
        yield node
    if isinstance(node, ast.Call) and getattr(node.func, "attr", None) == "to":
        for argument in node.args:
            if isinstance(argument, ast.Constant) and argument.value == "cpu":
                yield argument
    for child in ast.iter_child_nodes(node):
        yield from waiting_nodes(child)


@pytest.mark.parametrize("name", SOLUTIONS)
def test_source_never_waits_for_the_device(name):
    """A hidden wait costs time and forbids CUDA graphs."""
    packed = next(iter(pack.pack(name).values()))
    places = []
    for source in packed.sources:
        if source.path.endswith(".py"):
            nodes = waiting_nodes(ast.parse(source.content))
            places += [f"{source.path}:{node.lineno}" for node in nodes]
    assert places == []
