"""Write the layer's arguments, which operators/fp8/arguments.py states, for solutions to read.

To be run after a change there. Two files of solutions/ are written: common/host/argument_table.py,
for checks in Python, and common/cuda/host/argument_table.cuh, for checks in C++ and for what a
compiled library exports. An argument is a line in either:

    "hidden_states": Tensor((T, H), FP8),
    tensor(hidden_states, kFp8, {kTokens, kHidden}),

Shapes are in terms of the constants that packing/problem.py writes, so both files are the same for
every definition.
"""

import argparse
import re

from moebench.core import paths
from moebench.core.atomic_file import write_atomically
from moebench.operators.fp8.arguments import ARGUMENTS, AXIS_SIZES, NUM_TOKENS, Argument
from moebench.packing.problem import SIZES_IN_CPP

PYTHON_FILE = "common/host/argument_table.py"
CPP_FILE = "common/cuda/host/argument_table.cuh"

SIZE_NAME = re.compile("[a-z][a-z_]*")
SIZES_IN_PYTHON = {
    "num_experts": "E",
    "num_local_experts": "E_LOCAL",
    "num_shared_experts": "E_SHARED",
    "top_k": "TOP_K",
    "hidden_size": "H",
    "intermediate_size": "I",
}
DTYPES_IN_PYTHON = {
    "float32": "FP32",
    "bfloat16": "BF16",
    "float8_e4m3fn": "FP8",
    "int32": "INT32",
    "int8": "INT8",
}
DTYPES_IN_CPP = {
    "float32": "kFp32",
    "bfloat16": "kBf16",
    "float8_e4m3fn": "kFp8",
    "int32": "kInt32",
    "int8": "kInt8",
}

NOTE = "tools/argument_tables.py writes this file."
PYTHON_HEAD = f'''"""argument_table: the arguments of each form of the layer, in their order.

{NOTE}
"""

import torch

from .argument import Integer, Real, Tensor
from .problem import HIDDEN_SIZE as H
from .problem import INTERMEDIATE_SIZE as I
from .problem import NUM_EXPERTS as E
from .problem import NUM_LOCAL_EXPERTS as E_LOCAL
from .problem import NUM_SHARED_EXPERTS as E_SHARED
from .problem import TOP_K

T = "tokens of a call"
FP8 = torch.float8_e4m3fn
FP32 = torch.float32
BF16 = torch.bfloat16
INT32 = torch.int32
INT8 = torch.int8
'''
CPP_HEAD = f"""\
// argument_table: the arguments of each form of the layer, in their order. {NOTE}
#pragma once
#include "common/cuda/host/argument.cuh"
#include "common/cuda/layer/problem.cuh"
"""


def python_text() -> str:
    """Return the text of PYTHON_FILE: a dictionary of arguments for each form of the layer."""
    lines = [PYTHON_HEAD]
    for form, arguments in ARGUMENTS.items():
        lines.append(f"{form} = {{")
        for argument in arguments:
            lines.append(f'    "{argument.name}": {in_python(argument)},')
        lines.append("}")
    return "\n".join([*lines, ""])


def in_python(argument: Argument) -> str:
    """Return an argument as a call of a class in common/host/argument.py, "Real()" for instance."""
    if argument.at_most:
        return f"Integer({with_sizes(argument.at_most, SIZES_IN_PYTHON)})"
    if argument.shape is None:
        return "Real()"

    sizes = ", ".join(axis_sizes(argument, SIZES_IN_PYTHON, "T"))
    comma = "," if len(argument.shape) == 1 else ""
    dtype = DTYPES_IN_PYTHON[argument.dtype]
    optional = ", optional=True" if argument.optional else ""
    return f"Tensor(({sizes}{comma}), {dtype}{optional})"


def cpp_text() -> str:
    """Return the text of CPP_FILE: the names of all arguments, and an array for each form."""
    names = {}
    for arguments in ARGUMENTS.values():
        names |= dict.fromkeys(argument.name for argument in arguments)

    lines = [CPP_HEAD, "namespace argument {", "enum Name {"]
    lines += [f"  {name}," for name in names]
    lines += ["  kCount", "};", "constexpr const char* kNames[kCount] = {"]
    lines += [f'    "{name}",' for name in names]
    lines += ["};", "}  // namespace argument"]

    for form, arguments in ARGUMENTS.items():
        lines += ["", f"constexpr Argument {array_name(form)}[] = {{"]
        lines += [f"    {in_cpp(argument)}," for argument in arguments]
        lines.append("};")
    return "\n".join([*lines, ""])


def array_name(form: str) -> str:
    """Return the name of a form's array in CPP_FILE: kDsRouting for DS_ROUTING."""
    return "k" + form.title().replace("_", "")


def in_cpp(argument: Argument) -> str:
    """Return an argument as a call of a function in common/cuda/host/argument.cuh."""
    name = f"argument::{argument.name}"
    if argument.at_most:
        return f"integer({name}, {with_sizes(argument.at_most, SIZES_IN_CPP)})"
    if argument.shape is None:
        return f"real({name})"

    function = "optional_tensor" if argument.optional else "tensor"
    dtype = DTYPES_IN_CPP[argument.dtype]
    sizes = ", ".join(axis_sizes(argument, SIZES_IN_CPP, "kTokens")).replace("//", "/")
    return f"{function}({name}, {dtype}, {{{sizes}}})"


def axis_sizes(argument: Argument, names: dict[str, str], num_tokens: str) -> list[str]:
    """Return the size of each axis of a tensor, as an expression over constants.

    names: size of a layer -> constant. num_tokens: the constant for the tokens of a call.
    """
    sizes = []
    for axis in argument.shape:
        if axis == NUM_TOKENS:
            sizes.append(num_tokens)
        else:
            sizes.append(with_sizes(AXIS_SIZES[axis], names))
    return sizes


def with_sizes(expression: str, names: dict[str, str]) -> str:
    """Return an expression in which names[size] stands for each size of a layer."""
    return SIZE_NAME.sub(lambda match: names[match[0]], expression)


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=layout).parse_args()

    write_atomically(paths.SOLUTIONS / PYTHON_FILE, python_text())
    write_atomically(paths.SOLUTIONS / CPP_FILE, cpp_text())


if __name__ == "__main__":
    main()
