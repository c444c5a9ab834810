"""What a solution has compiled: the PTX of each Triton kernel, and each CUDA file with its flags, as JSON lines.

    python tools/same_code/launches.py SOURCES ENTRY_POINT GEOMETRY ARCHITECTURE[:GPU] TOKENS...

As tests/support/ahead_of_time.py, whose arguments these are; libraries that are not here have stand-ins.
"""

import json
import os
import sys
from pathlib import Path
from unittest.mock import MagicMock

import tvm_ffi.cpp

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / folder) for folder in ("tests/support", "", "scripts")]

import ahead_of_time  # noqa: E402


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


if __name__ == "__main__":
    stand_in(Path(sys.argv[1]).parent, sys.argv[4].partition(":")[0])
    ahead_of_time.main(leave_out=())
