"""build: compile what MXFP4 weights need of FlashInfer's module of Hopper MoE kernels.

main.py calls `load_runner` on import. FlashInfer's own just-in-time build compiles every pair of
types, about a quarter of an hour on 16 cores. This file drops the sources of other types from
FlashInfer's JitSpec, and replaces the generated kernels by those of kernels.py. Functions that are
left out stay unresolved symbols, which no call from here reaches. A full module that is already
compiled, or was installed with FlashInfer, is used as it is.
"""

import dataclasses
import sys
from contextlib import contextmanager
from unittest import mock

from flashinfer.fused_moe import core

from .kernels import write_sources
from .source import ACTIVATIONS, KERNELS, RUNNER, SCALES


def is_needed(source_name):
    """Return whether a source of the full module is compiled unchanged. source_name: file name."""
    if source_name.startswith("moe_gemm_kernels_"):
        return source_name == RUNNER
    return not source_name.endswith((".generated.cu", "cutlass_heuristic.cpp"))


def choose_spec():
    """Return the JitSpec to compile: FlashInfer's own if that is compiled, else a smaller one.

    Raises:
        RuntimeError: FlashInfer's sources are not named as expected.
    """
    full = core.gen_cutlass_fused_moe_sm90_module()
    if full.get_library_path().exists():
        return full

    sources = [source for source in full.sources if is_needed(source.name)]
    if RUNNER not in {source.name for source in sources}:
        raise RuntimeError(
            f"flashinfer_mxfp4: this version of FlashInfer has no source {RUNNER}"
        )

    name = f"{full.name}_{RUNNER.removesuffix('.cu')}"
    folder = full.build_dir.parent / name / "sources"
    sources += write_sources(folder, KERNELS, ACTIVATIONS, SCALES)
    # lazy: else some linkers would look for the missing functions when the library is loaded
    flags = [*(full.extra_ldflags or []), "-Wl,-z,lazy"]
    return dataclasses.replace(full, name=name, sources=sources, extra_ldflags=flags)


def load_runner():
    """Compile the module unless it is there, and return it, for `calling`.

    Raises:
        RuntimeError: there is no nvcc or ninja, or a source does not compile (the output is in the
            message).
    """
    spec = choose_spec()
    if not spec.get_library_path().exists():
        sources = len(spec.sources)
        print(
            f"flashinfer_mxfp4: compiling {sources} CUDA and C++ sources of FlashInfer's, once; "
            "this takes minutes",
            file=sys.stderr,
            flush=True,
        )
    patched = mock.patch.object(
        core, "gen_cutlass_fused_moe_sm90_module", lambda use_fast_build=False: spec
    )
    with patched:
        return core.get_cutlass_fused_moe_module.__wrapped__("90")


@contextmanager
def calling(module):
    """Have FlashInfer's functions call this module, inside `with` or in a decorated function.

    FlashInfer itself keeps one module a process, while each solution has one of its own.
    """
    kept = core.get_cutlass_fused_moe_module
    core.get_cutlass_fused_moe_module = lambda architecture: module
    try:
        yield
    finally:
        core.get_cutlass_fused_moe_module = kept
