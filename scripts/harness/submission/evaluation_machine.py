"""What the contest's evaluation machine is, and which imports of a submission would fail or be against the rules there.

A clean build on this machine cannot tell: what is installed here may be absent there. Sources, all in the public
starter kit (flashinfer-bench-starter-kit): EVALUATION.md names the machine; docker/ lists the Python packages of its
image, flashinfer-ci-cu132; FAQ.md names the languages and, from April 2026, forbids libraries of ready-made kernels.
"""

import ast
import sys
from collections.abc import Iterator

HARDWARE = "sm_100"  # EVALUATION.md: bare-metal NVIDIA B200
LANGUAGES = ("triton", "cuda", "python")  # FAQ.md: those with a folder of their own

# Top-level import names. cutlass is CuTe-DSL, CuTile is cuda.tile; tvm_ffi, safetensors and pydantic come with FIB.
MODULES = sys.stdlib_module_names | {
    *("torch", "triton", "tilelang", "cutlass"),  # FAQ.md
    *("cuda", "cupti", "numpy", "scipy", "einops", "ninja"),  # docker/
    *("tvm_ffi", "safetensors", "pydantic"),
}
# Installed there or not, calls into them are against the FAQ's rule of self-contained solutions.
READY_MADE = {"flashinfer", "flashinfer_bench", "deep_gemm", "deep_ep", "sgl_kernel", "sglang", "vllm", "tensorrt_llm"}
RULE = "a library of ready-made kernels, which the contest's FAQ forbids to call"


LOOKUPS = {"import_module", "__import__", "find_spec"}  # functions whose first argument names a module


def foreign_imports(sources: dict[str, str], dependencies: list[str]) -> list[str]:
    """A line for each module that a solution uses and the evaluation machine does not offer.

    sources: path -> text. Relative imports are checked when packing. Constant arguments of LOOKUPS count as imports; a
    name that is put together when the solution runs is not seen, so the manifest's dependencies, which are import
    names, count too.
    """
    used = [(f"{path}:{line} names {module}", module) for path, line, module in named_modules(sources)]
    used += [(f"solution.toml depends on {module}", module) for module in dependencies]
    found = {}
    for where, module in used:
        name = module.partition(".")[0]
        if name in READY_MADE or name not in MODULES:
            why = RULE if name in READY_MADE else "which the evaluation machine lacks"
            found.setdefault(name, f"{where}, {why}")
    return list(found.values())


def named_modules(sources: dict[str, str]) -> Iterator[tuple[str, int, str]]:
    """(path, line, absolute module) of each import and each constant argument of LOOKUPS in the Python sources."""
    for path, text in sources.items():
        for node in ast.walk(ast.parse(text)) if path.endswith(".py") else ():
            match node:
                case ast.Import():
                    modules = [alias.name for alias in node.names]
                case ast.ImportFrom(level=0, module=module):
                    modules = [module]
                case ast.Call(func=ast.Name(id=function) | ast.Attribute(attr=function)) if function in LOOKUPS:
                    first = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "name")]
                    modules = [
                        arg.value for arg in first if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
                    ]
                case _:
                    continue
            yield from ((path, node.lineno, module) for module in modules if not module.startswith("."))
