"""load: SGLang's Triton MoE kernel out of an installed `sglang`, without the rest of the package.

The module is plain Triton, but it imports helpers that need SGLang's compiled libraries and a
matching torch. They serve the host code around the kernel, which is not used here, so stand-ins
take their place while it is loaded.
"""

import ast
import importlib.util
import sys
from pathlib import Path
from unittest import mock

KERNEL = "fused_moe_kernel"
_PLACES = (  # newest first
    "kernels/ops/moe/fused_moe_triton_kernels.py",
    "srt/layers/moe/moe_runner/triton_utils/fused_moe_triton_kernels.py",
    "srt/layers/moe/fused_moe_triton/fused_moe_triton_kernels.py",
)


def load_kernel():
    """SGLang's fused_moe_kernel, a Triton function.

    Raises:
        ImportError: the installed sglang keeps it elsewhere.
    """
    package = Path(importlib.util.find_spec("sglang").submodule_search_locations[0])
    path = next((package / place for place in _PLACES if (package / place).is_file()), None)
    if path is None:
        raise ImportError(
            f"sglang_triton: the installed sglang has no {Path(_PLACES[0]).name} where it was looked for"
        )
    spec = importlib.util.spec_from_file_location("sglang_fused_moe_triton_kernels", path)
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, _stand_ins(path.read_text())):
        spec.loader.exec_module(module)
    return getattr(module, KERNEL)


def _stand_ins(source):
    """Name -> stand-in for each module of sglang that the source imports from; every helper in it
    says False.
    """
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    names = {node.module for node in nodes if (node.module or "").startswith("sglang.")}
    return {name: mock.MagicMock(**{"return_value": False}) for name in names}
