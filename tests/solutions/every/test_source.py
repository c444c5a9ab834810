"""What a solution's source must not do: wait for the device."""

import ast

import pytest
from every_solution import SOLUTIONS, packed_once

WAITING = {
    "item",
    "cpu",
    "tolist",
    "numpy",
    "synchronize",
    "nonzero",
    "argwhere",
    "unique",
}


def may_wait(function_name):
    """Whether no call of a solution runs it: the plain form of a stage, or what is set up once."""
    is_reference = function_name.endswith("_ref")
    return is_reference or function_name.startswith(("__init__", "_set_up"))


def waits(node):
    """Whether a node is .item() or the like, or .to("cpu")."""
    if isinstance(node, ast.Attribute):
        return node.attr in WAITING
    if isinstance(node, ast.Call) and getattr(node.func, "attr", None) == "to":
        return "'cpu'" in map(ast.unparse, node.args)
    return False


def waiting_nodes(node):
    """Yield the nodes that wait for the device, where a call of the solution comes."""
    if isinstance(node, ast.FunctionDef) and may_wait(node.name):
        return
    if waits(node):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from waiting_nodes(child)


@pytest.mark.parametrize("name", SOLUTIONS)
def test_source_never_waits_for_the_device(name):
    """A hidden wait costs time and forbids CUDA graphs."""
    packed = next(iter(packed_once(name).values()))
    places = []
    for source in packed.sources:
        if source.path.endswith(".py"):
            nodes = waiting_nodes(ast.parse(source.content))
            places += [f"{source.path}:{node.lineno}" for node in nodes]
    assert places == []
