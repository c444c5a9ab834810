"""problem.cuh and problem.py: the sizes and the routing of a definition as compile-time constants.

A solution of the FP8 MoE family keeps the first definition's file among its sources; packing writes each other
definition's in its place. So a packed solution stands alone, and no kernel branches on a size.
"""

from pathlib import PurePosixPath

from harness.operators import catalogue

# size -> its name in C++; in Python it is the key in capitals
NAMES = {
    "num_experts": "kExperts",
    "num_local_experts": "kLocal",
    "top_k": "kTopK",
    "num_groups": "kRoutingGroups",
    "kept_groups": "kKeptGroups",
    "hidden_size": "kHidden",
    "intermediate_size": "kInter",
}


def is_problem(path: str) -> bool:
    return PurePosixPath(path).stem == "problem"


def source(path: str, geometry: str) -> str:
    """Text of the file, whose suffix decides the language: .cuh, else Python. geometry: of the FP8 MoE family."""
    of, name = catalogue.GEOMETRIES[geometry], catalogue.definition_name(geometry)
    renorm = geometry in catalogue.RENORM
    if path.endswith(".cuh"):
        lines = [f"// problem: {name}. Packing writes this file for other definitions.", "#pragma once", ""]
        lines += [f"constexpr int {symbol} = {of[key]};" for key, symbol in NAMES.items()]
        return "\n".join([*lines, f"constexpr bool kRenorm = {str(renorm).lower()};", ""])
    lines = ['"""problem: the sizes and the routing of the definition.', "", f"{name}."]
    lines += ["Packing writes this file for other definitions.", '"""', ""]
    lines += [f"{key.upper()} = {of[key]}" for key in NAMES]
    return "\n".join([*lines, f"RENORM = {renorm}", ""])
