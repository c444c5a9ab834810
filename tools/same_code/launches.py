"""What a solution has compiled: the PTX of each Triton kernel, and each CUDA file with its flags, as JSON lines.

    python tools/same_code/launches.py SOURCES ENTRY_POINT GEOMETRY ARCHITECTURE[:GPU] TOKENS...

As tests/support/ahead_of_time.py, whose arguments these are; libraries that are not here have stand-ins.
"""

import importlib
import json
import os
import sys
from pathlib import Path
from unittest.mock import MagicMock

import tvm_ffi.cpp

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT), str(ROOT / "scripts")]

import ahead_of_time  # noqa: E402

# SGLang's kernel is not ours: launching it does nothing.
SGLANG = """
class fused_moe_kernel:
    arg_names, fn, __class_getitem__ = (), staticmethod(lambda: None), lambda cls, grid: lambda *_, **__: None
"""


def stand_in(folder: Path, architecture: str) -> None:
    """Libraries that are not here, in a folder on the path; what tvm_ffi would build for an architecture is printed."""

    def build(name, sources, extra_cuda_cflags, extra_include_paths, build_directory, **_):
        what = {"architecture": os.environ["TVM_FFI_CUDA_ARCH_LIST"], "flags": list(extra_cuda_cflags or ())}
        what["folders"] = [path for path in extra_include_paths if not path.startswith(build_directory)]
        for source in (source for source in sources if source.endswith(".cu")):
            print(json.dumps({"file": os.path.relpath(source, build_directory)} | what))

    tvm_ffi.cpp.build, tvm_ffi.load_module = build, lambda library: MagicMock()
    os.environ["TVM_FFI_CUDA_ARCH_LIST"] = "{}.{}".format(*divmod(int(architecture.removeprefix("sm_")), 10))
    os.environ["TVM_FFI_CACHE_DIR"] = str(folder / "cache")
    sys.modules.setdefault("deep_gemm", MagicMock())
    kernel = folder / "sglang" / "kernels" / "ops" / "moe" / "fused_moe_triton_kernels.py"
    kernel.parent.mkdir(parents=True)
    kernel.write_text(SGLANG)
    (folder / "sglang" / "__init__.py").touch()


def main() -> None:
    sources, entry_point, geometry, architecture, *token_counts = sys.argv[1:]
    architecture, _, gpu = architecture.partition(":")
    path, function = entry_point.split("::")
    root = Path(sources)
    sys.path.insert(0, str(root.parent))
    stand_in(root.parent, architecture)
    run = getattr(importlib.import_module(f"{root.name}.{path.removesuffix('.py').replace('/', '.')}"), function)
    for kernel in ahead_of_time.compile_all(run, geometry, architecture, map(int, token_counts), gpu):
        print(json.dumps({"kernel": kernel["kernel"], "ptx": kernel["ptx"]}), flush=True)


if __name__ == "__main__":
    main()
