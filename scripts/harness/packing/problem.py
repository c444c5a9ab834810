"""Files that packing writes: a definition's facts as compile-time constants, in C++ or Python by the file's suffix.

problem: sizes and the routing that is inside. interface: how the caller hands over routing, weights and scales.

A solution of the FP8 MoE family keeps the first definition's files among its sources; packing writes each other
definition's in their place. So a packed solution stands alone, and no kernel branches on a size.
"""

from pathlib import PurePosixPath

from harness.operators import catalogue

# size -> its name in C++; in Python it is the key in capitals
NAMES = {
    "num_experts": "kNumExperts",
    "num_local_experts": "kNumLocalExperts",
    "top_k": "kTopK",
    "num_groups": "kRoutingGroups",
    "kept_groups": "kKeptGroups",
    "hidden_size": "kHidden",
    "intermediate_size": "kIntermediate",
}
# file -> after its name, what it holds
FILES = {
    "problem": "the sizes and the routing of the definition",
    "interface": "how the caller hands over routing, weights and scales",
}


def is_written(path: str) -> bool:
    return PurePosixPath(path).stem in FILES


def facts(file: str, geometry: str) -> dict[str, tuple[str, int | bool]]:
    """Name in Python -> name in C++ and value."""
    if file == "interface":
        routed = geometry in catalogue.ROUTED  # today one form has all three
        names = {"ROUTED": "kTopKGiven", "GATE_FIRST": "kGateFirst", "SCALES_ROW_MAJOR": "kScalesRowMajor"}
        return {name: (symbol, routed) for name, symbol in names.items()}
    of = catalogue.GEOMETRIES[geometry]
    sizes = {key.upper(): (symbol, of[key]) for key, symbol in NAMES.items()}
    return sizes | {"RENORM": ("kRenorm", geometry in catalogue.RENORM)}


def source(path: str, geometry: str) -> str:
    """Text of the file. geometry: of the FP8 MoE family."""
    file, name = PurePosixPath(path).stem, catalogue.definition_name(geometry)
    found = facts(file, geometry)
    if path.endswith(".cuh"):
        lines = [f"// {file}: {name}. Packing writes this file for other definitions.", "#pragma once", ""]
        for symbol, value in found.values():
            lines.append(f"constexpr {'bool' if isinstance(value, bool) else 'int'} {symbol} = {str(value).lower()};")
        return "\n".join([*lines, ""])
    lines = [f'"""{file}: {FILES[file]}.', "", f"{name}."]
    lines += ["Packing writes this file for other definitions.", '"""', ""]
    return "\n".join([*lines, *(f"{key} = {value}" for key, (_, value) in found.items()), ""])
