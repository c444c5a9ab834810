"""The methods of vLLM's classes of experts, read from its sources without importing them.

python tests/support/engines/engine_signatures.py FOLDER prints, for an unpacked wheel, an entry of
tests/samples/engine_signatures.json: class -> method -> names of its parameters, and under
"abstract" the methods that a subclass has to have.
"""

import ast
import json
import sys
from pathlib import Path

FILE = "vllm/model_executor/layers/fused_moe/modular_kernel.py"
CLASSES = ("FusedMoEExperts", "FusedMoEExpertsModular")


def read(folder):
    module = ast.parse((folder / FILE).read_text(encoding="utf-8"))
    classes = {
        node.name: node for node in module.body if isinstance(node, ast.ClassDef)
    }
    entry = {}
    abstract = []
    for name in CLASSES:
        entry[name] = {}
        for node in classes[name].body:
            if isinstance(node, ast.FunctionDef):
                arguments = [*node.args.posonlyargs, *node.args.args]
                arguments += node.args.kwonlyargs
                entry[name][node.name] = [argument.arg for argument in arguments]
                if "abstractmethod" in map(ast.unparse, node.decorator_list):
                    abstract.append(node.name)
    return entry | {"abstract": abstract}


if __name__ == "__main__":
    print(json.dumps(read(Path(sys.argv[1]))))
