"""load: import SGLang's Triton MoE kernel from an installed `sglang`, without the rest of it.

grouped_gemm.py calls `load_kernel`. The kernel's module is plain Triton, but it imports helpers
that need SGLang's compiled libraries and a matching torch. Only host code that is not used here
calls these helpers, so mocks take their place while the module is imported.
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
    """Return SGLang's fused_moe_kernel, a Triton function.

    Raises:
        ImportError: the installed sglang keeps it elsewhere.
    """
    package = Path(importlib.util.find_spec("sglang").submodule_search_locations[0])
    path = _module_path(package)
    spec = importlib.util.spec_from_file_location(
        "sglang_fused_moe_triton_kernels", path
    )
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, _stand_ins(path.read_text())):
        spec.loader.exec_module(module)
    return getattr(module, KERNEL)


def _module_path(package):
    """Return the path of the kernel's module in sglang's folder, or raise ImportError."""
    for place in _PLACES:
        path = package / place
        if path.is_file():
            return path
    name = Path(_PLACES[0]).name
    raise ImportError(
        f"sglang_triton: the installed sglang has no {name} where it was looked for"
    )


def _stand_ins(source):
    """Return name -> mock for each module of sglang that a source text imports from.

    Every function of a mock returns False.
    """
    stand_ins = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            "sglang."
        ):
            stand_ins[node.module] = mock.MagicMock(return_value=False)
    return stand_ins
