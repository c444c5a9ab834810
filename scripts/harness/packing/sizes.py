"""The file of a packed solution that holds its definition's sizes as constants: a C++ header or a Python module.

Solutions of the FP8 MoE family list it as `sizes` in solution.toml, and are packed once for each definition.
"""

from harness.operators import catalogue, moe_fp8_block_scale

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


def has_sizes(geometry: str) -> bool:
    return geometry in moe_fp8_block_scale.GEOMETRIES or geometry in catalogue.RENORM


def source(file: str, geometry: str) -> str:
    """Text of the file, whose suffix decides the language: .cuh, else Python."""
    of, name = catalogue.GEOMETRIES[geometry], catalogue.definition_name(geometry)
    renorm = geometry in catalogue.RENORM
    if file.endswith(".cuh"):
        lines = [f"// problem: the sizes and the routing of {name}, written by packing.", "#pragma once", ""]
        lines += [f"constexpr int {symbol} = {of[key]};" for key, symbol in NAMES.items()]
        return "\n".join([*lines, f"constexpr bool kRenorm = {str(renorm).lower()};", ""])
    lines = [f'"""problem: the sizes and the routing of {name}, written by packing."""', ""]
    lines += [f"{key.upper()} = {of[key]}" for key in NAMES]
    return "\n".join([*lines, f"RENORM = {renorm}", ""])
