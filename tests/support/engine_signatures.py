"""What its adapter uses of vLLM, read from its sources without importing them.

python tests/support/engine_signatures.py FOLDER prints, for an unpacked wheel, an entry of
tests/samples/engine_signatures.json: "path::name" -> what is below.
"""

import ast
import json
import sys
from pathlib import Path

MOE = "model_executor/layers/fused_moe"
WANTED = {  # file -> names
    "plugins/__init__.py": ["DEFAULT_PLUGINS_GROUP"],
    "config/vllm.py": ["get_current_vllm_config"],
    "logger.py": ["init_logger", "_VllmLogger"],
    f"{MOE}/modular_kernel.py": [
        "FusedMoEExperts",
        "FusedMoEExpertsModular",
        "FusedMoEActivationFormat",
    ],
    f"{MOE}/activation.py": ["MoEActivation"],
    f"{MOE}/config.py": ["FusedMoEConfig", "FusedMoEParallelConfig"],
    f"{MOE}/oracle/fp8.py": ["Fp8MoeBackend", "make_fp8_moe_kernel"],
    f"{MOE}/routed_experts.py": ["RoutedExperts"],
    f"{MOE}/topk_weight_and_reduce.py": ["TopKWeightAndReduceNoOP"],
    "model_executor/layers/quantization/__init__.py": ["register_quantization_config"],
    "model_executor/layers/quantization/fp8.py": ["Fp8Config", "Fp8MoEMethod"],
    "model_executor/layers/quantization/utils/quant_utils.py": [
        "kFp8Dynamic128Sym",
        "kFp8Static128BlockSym",
    ],
}


def parameters(function):
    """[name, kind, default as text or null] of each."""
    of = function.args
    positional = [("POSITIONAL_OR_KEYWORD", arg) for arg in (*of.posonlyargs, *of.args)]
    every = positional + [("KEYWORD_ONLY", arg) for arg in of.kwonlyargs]
    defaults = [None] * (len(positional) - len(of.defaults)) + of.defaults + of.kw_defaults
    return [
        [arg.arg, kind, default and ast.unparse(default)]
        for (kind, arg), default in zip(every, defaults, strict=True)
    ]


def described(node):
    """A function's parameters; a class's fields with their defaults, methods, and abstract ones;
    else the value.
    """
    if isinstance(node, ast.FunctionDef):
        return parameters(node)
    if isinstance(node, ast.Assign):
        return ast.unparse(node.value)
    fields, methods = {}, {}
    for part in node.body:
        if isinstance(part, (ast.Assign, ast.AnnAssign)):
            name = (part.targets[0] if isinstance(part, ast.Assign) else part.target).id
            fields[name] = part.value and ast.unparse(part.value)
        elif isinstance(part, ast.FunctionDef):
            kinds = {ast.unparse(decorator).rpartition(".")[2] for decorator in part.decorator_list}
            kinds &= {"abstractmethod", "staticmethod", "property", "classmethod"}
            methods[part.name] = {"kinds": sorted(kinds), "parameters": parameters(part)}
    return {"fields": fields, "methods": methods}


def read(folder):
    """{"path::name": description} of all that is WANTED. Raises KeyError for a name that is not
    there.
    """
    found = {}
    for path, names in WANTED.items():
        nodes = {}
        for node in ast.parse((folder / "vllm" / path).read_text(encoding="utf-8")).body:
            target = node.targets[0] if isinstance(node, ast.Assign) else node
            nodes[getattr(target, "name", getattr(target, "id", None))] = node
        found |= {f"{path}::{name}": described(nodes[name]) for name in names}
    return found


if __name__ == "__main__":
    print(json.dumps(read(Path(sys.argv[1]))))
