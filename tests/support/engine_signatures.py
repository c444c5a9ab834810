"""What adapters use of inference engines, read from their sources without importing them.

python tests/support/engine_signatures.py vllm FOLDER prints, for an unpacked wheel, an entry of
tests/samples/engine_signatures.json: "path::name" -> what is below.
"""

import ast
import json
import sys
from pathlib import Path

MOE = "model_executor/layers/fused_moe"
WANTED = {  # engine -> file -> names
    "sglang": {
        "srt/plugins/__init__.py": ["GENERAL_PLUGINS_GROUP"],
        "srt/layers/moe/moe_runner/base.py": ["register_fused_func", "MoeRunnerConfig"],
        "srt/layers/moe/moe_runner/deep_gemm.py": ["DeepGemmMoeQuantInfo"],
        "srt/layers/moe/token_dispatcher/standard.py": ["StandardDispatchOutput", "StandardCombineInput"],
        "srt/layers/moe/topk.py": ["StandardTopKOutput"],
    },
    "vllm": {
        "plugins/__init__.py": ["DEFAULT_PLUGINS_GROUP"],
        f"{MOE}/modular_kernel.py": ["FusedMoEExperts", "FusedMoEExpertsModular", "FusedMoEActivationFormat"],
        f"{MOE}/activation.py": ["MoEActivation"],
        f"{MOE}/config.py": ["FusedMoEConfig", "FusedMoEParallelConfig"],
        f"{MOE}/oracle/fp8.py": ["Fp8MoeBackend", "make_fp8_moe_kernel"],
        f"{MOE}/topk_weight_and_reduce.py": ["TopKWeightAndReduceNoOP"],
        "model_executor/layers/quantization/__init__.py": ["register_quantization_config"],
        "model_executor/layers/quantization/fp8.py": ["Fp8Config", "Fp8MoEMethod"],
        "model_executor/layers/quantization/utils/quant_utils.py": ["kFp8Dynamic128Sym", "kFp8Static128BlockSym"],
    },
}


def parameters(function):
    """[name, kind, default as text or null] of each."""
    of = function.args
    positional = [("POSITIONAL_OR_KEYWORD", arg) for arg in (*of.posonlyargs, *of.args)]
    defaults = [None] * (len(positional) - len(of.defaults)) + of.defaults
    keyword = [("KEYWORD_ONLY", arg) for arg in of.kwonlyargs]
    return [
        [arg.arg, kind, None if default is None else ast.unparse(default)]
        for (kind, arg), default in zip(positional + keyword, defaults + of.kw_defaults, strict=True)
    ]


def decorators(function):
    return {ast.unparse(node).rpartition(".")[2] for node in function.decorator_list}


def described(node):
    """A function's parameters; a class's fields with their defaults, methods, and abstract ones; else the value."""
    if isinstance(node, ast.FunctionDef):
        return parameters(node)
    if isinstance(node, ast.Assign):
        return ast.unparse(node.value)
    fields, methods = {}, {}
    for part in node.body:
        if isinstance(part, ast.AnnAssign):
            fields[part.target.id] = None if part.value is None else ast.unparse(part.value)
        elif isinstance(part, ast.Assign):
            fields[part.targets[0].id] = ast.unparse(part.value)
        elif isinstance(part, ast.FunctionDef):
            kinds = decorators(part) & {"abstractmethod", "staticmethod", "property", "classmethod"}
            methods[part.name] = {"kinds": sorted(kinds), "parameters": parameters(part)}
    return {"fields": fields, "methods": methods}


def read(engine, folder):
    """{"path::name": description} of all that is WANTED. Raises KeyError for a name that is not there."""
    found = {}
    for path, names in WANTED[engine].items():
        nodes = {}
        for node in ast.parse((folder / engine / path).read_text()).body:
            nodes |= {node.name: node} if hasattr(node, "name") else {}
            nodes |= (
                {node.targets[0].id: node} if isinstance(node, ast.Assign) and hasattr(node.targets[0], "id") else {}
            )
        found |= {f"{path}::{name}": described(nodes[name]) for name in names}
    return found


def fused_functions(folder):
    """SGLang's own: [all-to-all, runner] of each @register_fused_func of two texts."""
    found = []
    for path in sorted((folder / "sglang/srt").rglob("*.py")):
        if "@register_fused_func" not in (text := path.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            for call in getattr(node, "decorator_list", []):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "register_fused_func":
                    found.append([ast.literal_eval(argument) for argument in call.args])
    return sorted(found)


if __name__ == "__main__":
    entry = read(sys.argv[1], Path(sys.argv[2]))
    if sys.argv[1] == "sglang":
        entry["fused functions"] = fused_functions(Path(sys.argv[2]))
    print(json.dumps(entry))
