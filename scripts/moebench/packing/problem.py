"""What packing writes for each definition: so a packed solution stands alone, and no kernel
branches on a size.

problem.cuh, problem.py: sizes and the routing that is inside; interface.cuh, interface.py: how the
caller hands over routing, weights and scales; weights.cuh: the weights' format. Beside the kernels
lie those of the first definition of the FP8 MoE family. Of a table, *.csv, the rows whose column
`sizes` is the definition's, as e32_h7168_i2048: tuning for one leaves the others current.
"""

from pathlib import PurePosixPath

from definitions import swiglu
from moebench.operators import catalogue

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
# of the activation (definitions/swiglu.py)
ACTIVATION = {
    "swiglu_limit": "kSwigluLimit",
    "swiglu_alpha": "kSwigluAlpha",
    "swiglu_up_offset": "kSwigluUpOffset",
    "clamp_after_silu": "kClampAfterSilu",
}
CPP_TYPES = {bool: "bool", int: "int", float: "float"}
FILES = [
    "common/host/problem.py",
    "common/cuda/problem.cuh",
    "common/host/interface.py",
    "common/cuda/interface.cuh",
    "common/cuda/weights.cuh",
]


def facts(file: str, geometry: str) -> dict[str, tuple[str, float]]:
    """Name in Python -> name in C++ and value."""
    if file == "interface":
        routed = catalogue.form(geometry) in ("routed", "mxfp4")  # today these have all three
        names = {
            "ROUTED": "kTopKGiven",
            "GATE_FIRST": "kGateFirst",
            "SCALES_ROW_MAJOR": "kScalesRowMajor",
        }
        return {name: (symbol, routed) for name, symbol in names.items()}
    if file == "weights":
        return {"MXFP4_WEIGHTS": ("kMxfp4Weights", geometry in catalogue.MXFP4)}
    of = catalogue.GEOMETRIES[geometry]
    sizes = {key.upper(): (symbol, of[key]) for key, symbol in NAMES.items()}
    sizes["RENORM"] = ("kRenorm", geometry in catalogue.RENORM)
    activation = swiglu.constants(of)
    return sizes | {key.upper(): (symbol, activation[key]) for key, symbol in ACTIVATION.items()}


def source(path: str, geometry: str, text: str = "") -> str:
    """What is packed of a file with this text."""
    file, name = PurePosixPath(path), catalogue.definition_name(geometry)
    if file.suffix == ".csv" and "sizes" in (columns := text.partition("\n")[0].strip().split(",")):
        header, *rows = text.splitlines()
        kept = [
            row
            for row in rows
            if row.strip() and f"_{row.split(',')[columns.index('sizes')]}_" in f"{name}_"
        ]
        return "\n".join([header, *kept, ""])
    if path not in FILES:
        return text
    found, told = facts(file.stem, geometry), "Packing writes this file for other definitions."
    if file.suffix == ".cuh":
        lines = [f"// {file.stem}: {name}. {told}", "#pragma once", ""]
        for symbol, value in found.values():
            literal = f"{value}f" if isinstance(value, float) else str(value).lower()
            lines.append(f"constexpr {CPP_TYPES[type(value)]} {symbol} = {literal};")
    else:
        lines = [f'"""{file.stem}: {name}.', "", told, '"""', ""]
        lines += [f"{key} = {value}" for key, (_, value) in found.items()]
    return "\n".join([*lines, ""])
