"""What the contest's evaluation machine offers, and what a submission uses that is not there.

Sources, all in the public starter kit (flashinfer-bench-starter-kit): its EVALUATION.md names the machine, the Docker
image flashinfer-ci-cu132 and FlashInfer-Bench built from source; its docker/ folder lists that image's Python packages;
its FAQ.md names the languages and, from April 2026, forbids calls into libraries of ready-made kernels.
"""

import ast
import re
import sys
from pathlib import PurePosixPath

HARDWARE = "sm_100"  # EVALUATION.md: bare-metal NVIDIA B200

FAQ = "the kit's FAQ"
PACKAGES = "the image's package list"
BENCH = "a dependency of flashinfer-bench"
MODULES = {  # top-level import name -> who says that it is there
    "torch": FAQ,
    "triton": FAQ,
    "tilelang": FAQ,
    "cutlass": f"{FAQ} (CuTe-DSL)",
    "cuda": f"{PACKAGES} (cuda-python; CuTile is cuda.tile)",
    "cupti": f"{PACKAGES} (cupti-python)",
    "numpy": PACKAGES,
    "scipy": PACKAGES,
    "einops": PACKAGES,
    "ninja": PACKAGES,
    "tvm_ffi": BENCH,
    "safetensors": BENCH,
    "pydantic": BENCH,
}
# Installed there or not, calls into them are against the FAQ's rule of self-contained solutions.
READY_MADE = {"flashinfer", "flashinfer_bench", "deep_gemm", "deep_ep", "sgl_kernel", "sglang", "vllm", "tensorrt_llm"}
RULE = "a library of ready-made kernels, which the contest's FAQ forbids to call"

# Headers that #include may name besides the bundle's own: a folder ends in /, anything else is a whole name.
HEADERS = {
    "the C++ standard library": """
        algorithm any array atomic barrier bit bitset cassert cctype cerrno cfenv cfloat charconv chrono cinttypes
        climits clocale cmath codecvt compare complex concepts condition_variable coroutine csetjmp csignal cstdarg
        cstddef cstdint cstdio cstdlib cstring ctime cuchar cwchar cwctype deque exception execution filesystem
        format forward_list fstream functional future initializer_list iomanip ios iosfwd iostream istream iterator
        latch limits list locale map memory memory_resource mutex new numbers numeric optional ostream queue random
        ranges ratio regex scoped_allocator semaphore set shared_mutex source_location span sstream stack stdexcept
        stop_token streambuf string string_view strstream syncstream system_error thread tuple type_traits typeindex
        typeinfo unordered_map unordered_set utility valarray variant vector version
        assert.h ctype.h errno.h fenv.h float.h inttypes.h limits.h locale.h math.h setjmp.h signal.h stdarg.h
        stdbool.h stddef.h stdint.h stdio.h stdlib.h string.h time.h""",
    "POSIX, to ask the CUDA driver": "dlfcn.h",
    "the CUDA toolkit": """
        cuda.h cuda_runtime.h cuda_runtime_api.h cuda_bf16.h cuda_bf16.hpp cuda_fp16.h cuda_fp16.hpp cuda_fp8.h
        cuda_fp8.hpp cuda_fp6.h cuda_fp4.h cuda_pipeline.h cuda_pipeline_primitives.h cuda_awbarrier.h
        cuda_profiler_api.h cudaTypedefs.h cuComplex.h cooperative_groups.h mma.h math_constants.h
        device_launch_parameters.h device_functions.h driver_types.h vector_types.h vector_functions.h builtin_types.h
        library_types.h channel_descriptor.h sm_61_intrinsics.h nvrtc.h cublas_v2.h cublasLt.h cublas_api.h
        cooperative_groups/ cuda/ cub/ thrust/ nv/ nvtx3/ crt/""",
    "tvm_ffi, which brings dlpack": "tvm/ffi/ dlpack/",
    "torch": "torch/ ATen/ c10/ pybind11/ Python.h",
    "CUTLASS, inside FlashInfer": "cutlass/ cute/",
}
INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"\n]+)[>\"]", re.MULTILINE)


def foreign_imports(sources: dict[str, str]) -> list[str]:
    """A line for each module that a Python source imports and the evaluation machine does not offer.

    sources: path -> text. Relative imports are the packer's to check. Constant arguments of import_module and
    __import__ count as imports.
    """
    found = {}
    for path, text in sources.items():
        if not path.endswith(".py"):
            continue
        for node in ast.walk(ast.parse(text)):
            for module in _modules(node):
                name = module.partition(".")[0]
                if name in READY_MADE:
                    found.setdefault(name, f"{path}:{node.lineno} imports {module}, {RULE}")
                elif name not in MODULES and name not in sys.stdlib_module_names:
                    found.setdefault(name, f"{path}:{node.lineno} imports {module}, which the evaluation machine lacks")
    return list(found.values())


def _modules(node: ast.AST) -> list[str]:
    """Absolute module names that this node imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0:
        return [node.module]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        function = getattr(node.func, "attr", getattr(node.func, "id", None))
        if function in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
            return [name] if not (name := node.args[0].value).startswith(".") else []
    return []


def foreign_includes(sources: dict[str, str]) -> list[str]:
    """A line for each header that a source includes and neither the bundle nor the evaluation machine offers.

    C++ inside a Python string counts too.
    """
    offered = {word for words in HEADERS.values() for word in words.split()}
    found = {}
    for path, text in sources.items():
        for match in INCLUDE.finditer(text):
            header = match[1]
            beside = str(PurePosixPath(path).parent / header)
            known = header in offered or any(w.endswith("/") and header.startswith(w) for w in offered)
            if not known and beside not in sources and header not in sources:
                line = text.count("\n", 0, match.start(1)) + 1
                reason = f"{path}:{line} includes {header}, neither in the bundle nor on the evaluation machine"
                found.setdefault(header, reason)
    return list(found.values())
