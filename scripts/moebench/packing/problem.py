"""What packing writes for each definition: so a packed solution stands alone, and no kernel
branches on a size.

problem.cuh, problem.py: sizes and the routing that is inside; interface.cuh, interface.py: how the
caller hands over routing, weights and scales; weights.cuh: the weights' format; argument_table.cuh,
argument_table.py: the arguments. Beside the kernels lie those of the first definition of the FP8
MoE family. Of a table, *.csv, the rows whose column
`sizes` is the definition's, as e32_h7168_i2048, are packed: tuning for one definition leaves the
others current.
"""

from pathlib import PurePosixPath

from moebench.operators import catalogue
from moebench.operators.fp8 import swiglu
from moebench.packing import argument_tables

# size -> its name in C++; in Python it is the key in capitals
NAMES = {
    "num_experts": "kNumExperts",
    "num_local_experts": "kNumLocalExperts",
    "num_shared_experts": "kNumSharedExperts",
    "top_k": "kTopK",
    "num_groups": "kRoutingGroups",
    "kept_groups": "kKeptGroups",
    "hidden_size": "kHidden",
    "intermediate_size": "kIntermediate",
}
# of the activation (operators/fp8/swiglu.py)
ACTIVATION = {
    "swiglu_limit": "kSwigluLimit",
    "swiglu_alpha": "kSwigluAlpha",
    "swiglu_up_offset": "kSwigluUpOffset",
    "clamp_after_silu": "kClampAfterSilu",
}
INTERFACE = {
    "ROUTED": "kTopKGiven",
    "GATE_FIRST": "kGateFirst",
    "SCALES_ROW_MAJOR": "kScalesRowMajor",
}
CPP_TYPES = {bool: "bool", int: "int", float: "float"}
CONSTANTS = [
    "common/host/problem.py",
    "common/cuda/layer/problem.cuh",
    "common/host/interface.py",
    "common/cuda/layer/interface.cuh",
    "common/cuda/layer/weights.cuh",
]
TABLES = [argument_tables.PYTHON_FILE, argument_tables.CPP_FILE]
FILES = [*CONSTANTS, *TABLES]
NOTE = "Packing writes this file for other definitions."


def facts(file: str, layer_key: str) -> dict[str, tuple[str, float]]:
    """Return name in Python -> name in C++ and value, of `problem`, `interface` or `weights`."""
    if file == "interface":
        routed = catalogue.form(layer_key) in ("routed", "mxfp4")  # today these have all three
        return {name: (symbol, routed) for name, symbol in INTERFACE.items()}
    if file == "weights":
        return {"MXFP4_WEIGHTS": ("kMxfp4Weights", layer_key in catalogue.mxfp4())}

    layer = catalogue.layer_sizes()[layer_key]
    activation = swiglu.constants(layer)

    constants = {key.upper(): (symbol, layer[key]) for key, symbol in NAMES.items()}
    constants["RENORM"] = ("kRenorm", layer_key in catalogue.renorm())
    for key, symbol in ACTIVATION.items():
        constants[key.upper()] = (symbol, activation[key])
    return constants


def source(path: str, layer_key: str, text: str = "") -> str:
    """Return what is packed of a file with this text; of a file of FILES, without it, what it is
    in the tree for a key.
    """
    if path in TABLES:
        return text or argument_tables.source(path)
    if path in CONSTANTS:
        return constants_source(PurePosixPath(path), layer_key)
    if path.endswith(".csv"):
        return table_source(text, layer_key)
    return text


def constants_source(path: PurePosixPath, layer_key: str) -> str:
    """Return one of CONSTANTS for a definition."""
    definition = catalogue.definition_name(layer_key)
    constants = facts(path.stem, layer_key)

    if path.suffix == ".cuh":
        lines = [f"// {path.stem}: {definition}. {NOTE}", "#pragma once", ""]
        for symbol, value in constants.values():
            cpp_type = CPP_TYPES[type(value)]
            lines.append(f"constexpr {cpp_type} {symbol} = {cpp_literal(value)};")
    else:
        lines = [f'"""{path.stem}: {definition}.', "", NOTE, '"""', ""]
        lines += [f"{name} = {value}" for name, (_, value) in constants.items()]
    return "\n".join([*lines, ""])


def cpp_literal(value: float) -> str:
    return f"{value}f" if isinstance(value, float) else str(value).lower()


def table_source(text: str, layer_key: str) -> str:
    """Return a table's rows for a definition; all of a table without a column `sizes`."""
    columns = text.partition("\n")[0].strip().split(",")
    if "sizes" not in columns:
        return text

    column = columns.index("sizes")
    definition = f"{catalogue.definition_name(layer_key)}_"
    header, *rows = text.splitlines()
    kept = [header]
    for row in rows:
        if row.strip() and f"_{row.split(',')[column]}_" in definition:
            kept.append(row)
    return "\n".join([*kept, ""])
