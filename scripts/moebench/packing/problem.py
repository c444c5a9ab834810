"""Write the files that differ from definition to definition, so that no kernel branches on a size.
pack.py calls `packed_text` for every file of a solution.

    problem.cuh, problem.py        sizes, the router inside, the activation
    interface.cuh, interface.py    how the caller hands over routing, weights and scales
    weights.cuh                    the weights' format

problem.cuh has lines like `constexpr int kHidden = 7168;`, problem.py like `HIDDEN_SIZE = 7168`.
In solutions/common/ these files are those of the first definition; packing replaces them.

Of a table, *.csv, only the rows for the definition are packed: those whose column `sizes` is a part
of the definition's name, as e32_h7168_i2048. So tuning for one definition leaves the others'
fingerprints as they are.
"""

from pathlib import PurePosixPath

from moebench.operators import catalogue
from moebench.operators.fp8 import swiglu

SIZES_IN_CPP = {
    "num_experts": "kNumExperts",
    "num_local_experts": "kNumLocalExperts",
    "num_shared_experts": "kNumSharedExperts",
    "top_k": "kTopK",
    "num_groups": "kRoutingGroups",
    "kept_groups": "kKeptGroups",
    "hidden_size": "kHidden",
    "intermediate_size": "kIntermediate",
}
# Constant -> its name in C++. In Python its name is the key in capitals.
SYMBOLS = SIZES_IN_CPP | {
    "renorm": "kRenorm",
    # of the activation (operators/fp8/swiglu.py)
    "swiglu_limit": "kSwigluLimit",
    "swiglu_alpha": "kSwigluAlpha",
    "swiglu_up_offset": "kSwigluUpOffset",
    "clamp_after_silu": "kClampAfterSilu",
    # of interface and weights
    "routed": "kTopKGiven",
    "gate_first": "kGateFirst",
    "scales_row_major": "kScalesRowMajor",
    "mxfp4_weights": "kMxfp4Weights",
}
CPP_TYPES = {bool: "bool", int: "int", float: "float"}
FILES = [
    "common/host/problem.py",
    "common/cuda/layer/problem.cuh",
    "common/host/interface.py",
    "common/cuda/layer/interface.cuh",
    "common/cuda/layer/weights.cuh",
]
NOTE = "Packing writes this file for other definitions."


def packed_text(path: str, layer_key: str, text: str = "") -> str:
    """Return the text that is packed for a definition in place of a file's text in solutions/.

    path: in the packed solution. text: the one in solutions/; for one of FILES it may be left out.
    """
    if path in FILES:
        file = PurePosixPath(path)
        title = f"{file.stem}: {catalogue.definition_name(layer_key)}."
        in_language = in_cpp if file.suffix == ".cuh" else in_python
        return in_language(title, constants_of(file.stem, layer_key))
    if path.endswith(".csv"):
        return table_source(text, layer_key)
    return text


def in_cpp(title: str, constants: dict[str, float]) -> str:
    """Return the text of a C++ header with these constants."""
    text = f"// {title} {NOTE}\n#pragma once\n\n"
    for key, value in constants.items():
        cpp_type = CPP_TYPES[type(value)]
        literal = str(value).lower()
        if cpp_type == "float":
            literal += "f"
        text += f"constexpr {cpp_type} {SYMBOLS[key]} = {literal};\n"
    return text


def in_python(title: str, constants: dict[str, float]) -> str:
    """Return the text of a Python module with these constants."""
    text = f'"""{title}\n\n{NOTE}\n"""\n\n'
    for key, value in constants.items():
        text += f"{key.upper()} = {value}\n"
    return text


def constants_of(file: str, layer_key: str) -> dict[str, float]:
    """Return constant -> value of a definition. file: "problem", "interface" or "weights"."""
    if file == "interface":
        # all three go together today
        routed = catalogue.takes_top_k(layer_key)
        return dict.fromkeys(("routed", "gate_first", "scales_row_major"), routed)
    if file == "weights":
        return {"mxfp4_weights": layer_key in catalogue.mxfp4()}

    layer = catalogue.layer_sizes()[layer_key]
    constants = {key: layer[key] for key in SIZES_IN_CPP}
    constants["renorm"] = layer_key in catalogue.renorm()
    return constants | swiglu.constants(layer)


def table_source(text: str, layer_key: str) -> str:
    """Return a CSV table with the rows for a definition; all rows if it has no column `sizes`."""
    header, *rows = text.splitlines()
    columns = header.strip().split(",")
    if "sizes" not in columns:
        return text

    column = columns.index("sizes")
    definition = f"{catalogue.definition_name(layer_key)}_"
    lines = [header]
    for row in rows:
        cells = row.split(",")
        if row.strip() and f"_{cells[column]}_" in definition:
            lines.append(row)
    return "\n".join([*lines, ""])
