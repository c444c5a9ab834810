"""What its adapter uses of vLLM, read from its sources without importing them.

python tests/support/engines/engine_signatures.py FOLDER prints, for an unpacked wheel, an entry of
tests/samples/engine_signatures.json: "path::name" -> what is below.
"""

import ast
import json
import sys
from pathlib import Path

MOE = "model_executor/layers/fused_moe"
QUANTIZATION = "model_executor/layers/quantization"
NAMES = {  # of a file
    "logger.py": ["_VllmLogger"],
    f"{MOE}/modular_kernel.py": [
        "FusedMoEExperts",
        "FusedMoEExpertsModular",
        "FusedMoEActivationFormat",
        "FusedMoEKernel",
    ],
    f"{MOE}/prepare_finalize/no_dp_ep.py": ["MoEPrepareAndFinalizeNoDPEPModular"],
    f"{MOE}/activation.py": ["MoEActivation"],
    f"{MOE}/config.py": ["FusedMoEConfig"],
    f"{MOE}/oracle/fp8.py": ["Fp8MoeBackend"],
    f"{MOE}/oracle/mxfp4.py": ["Mxfp4MoeBackend", "make_mxfp4_moe_kernel"],
    f"{QUANTIZATION}/__init__.py": ["register_quantization_config"],
    f"{QUANTIZATION}/mxfp4.py": ["Mxfp4MoEMethod"],
    f"{QUANTIZATION}/utils/quant_utils.py": [
        "is_layer_skipped",
        "kFp8Dynamic128Sym",
        "kFp8Static128BlockSym",
        "kMxfp4Static",
    ],
    "models/deepseek_v4/quant_config.py": ["DeepseekV4FP8Config"],
}
DECORATORS = {"abstractmethod", "staticmethod", "property", "classmethod"}


def parameters(function):
    """Return [name, kind, default as text or null] of each parameter."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    no_defaults = [None] * (len(positional) - len(arguments.defaults))

    listed = []
    for argument, default in zip(
        positional, no_defaults + arguments.defaults, strict=True
    ):
        listed.append([argument.arg, "POSITIONAL_OR_KEYWORD", text_of(default)])
    for argument, default in zip(
        arguments.kwonlyargs, arguments.kw_defaults, strict=True
    ):
        listed.append([argument.arg, "KEYWORD_ONLY", text_of(default)])
    return listed


def text_of(node):
    return None if node is None else ast.unparse(node)


def described(node):
    """Return a function's parameters; a class's fields with their defaults and its methods; else
    the value.
    """
    if isinstance(node, ast.FunctionDef):
        return parameters(node)
    if isinstance(node, ast.Assign):
        return ast.unparse(node.value)

    fields = {}
    methods = {}
    for part in node.body:
        if isinstance(part, ast.Assign):
            fields[part.targets[0].id] = text_of(part.value)
        elif isinstance(part, ast.AnnAssign):
            fields[part.target.id] = text_of(part.value)
        elif isinstance(part, ast.FunctionDef):
            methods[part.name] = {
                "kinds": kinds_of(part),
                "parameters": parameters(part),
            }
    return {"fields": fields, "methods": methods}


def kinds_of(function):
    """Return which of DECORATORS a method has."""
    names = {ast.unparse(node).rpartition(".")[2] for node in function.decorator_list}
    return sorted(names & DECORATORS)


def name_of(node):
    """Return the name that a statement defines; None of one that defines none."""
    target = node.targets[0] if isinstance(node, ast.Assign) else node
    return getattr(target, "name", getattr(target, "id", None))


def read(folder):
    """Return "path::name" -> description of all NAMES. Raises KeyError for a name that is not
    there.
    """
    descriptions = {}
    for path, names in NAMES.items():
        module = ast.parse((folder / "vllm" / path).read_text(encoding="utf-8"))
        nodes = {name_of(node): node for node in module.body}
        for name in names:
            descriptions[f"{path}::{name}"] = described(nodes[name])
    return descriptions


if __name__ == "__main__":
    print(json.dumps(read(Path(sys.argv[1]))))
