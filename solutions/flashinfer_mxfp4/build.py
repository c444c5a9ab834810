"""build: compile what MXFP4 needs out of FlashInfer's module of Hopper MoE kernels.

FlashInfer's own just-in-time build makes every pair of types, about a quarter of an hour on 16
cores. The same JitSpec with fewer sources does, and with those of kernels.py in place of generated
ones: calls to what is left out stay unresolved, and are never made here. A full module that is
already compiled, or was installed with FlashInfer, is taken as it is.
"""

import dataclasses
import sys
from unittest import mock

from flashinfer.fused_moe import core

from .kernels import write_sources
from .source import ACTIVATIONS, KERNELS, RUNNER, SCALES


def is_needed(source_name):
    """Return whether a source of the full module (a file's name) takes part as it is."""
    if source_name.startswith("moe_gemm_kernels_"):
        return source_name == RUNNER
    return not source_name.endswith((".generated.cu", "cutlass_heuristic.cpp"))


def choose_spec():
    """Return FlashInfer's JitSpec of its SM90 module.

    Unless that is compiled already, it has the needed sources alone.

    Raises:
        RuntimeError: FlashInfer's sources are not named as expected.
    """
    full = core.gen_cutlass_fused_moe_sm90_module()
    if full.get_library_path().exists():
        return full

    sources = [source for source in full.sources if is_needed(source.name)]
    if RUNNER not in {source.name for source in sources}:
        raise RuntimeError(f"flashinfer_mxfp4: this version of FlashInfer has no source {RUNNER}")

    name = f"{full.name}_{RUNNER.removesuffix('.cu')}"
    folder = full.build_dir.parent / name / "sources"
    sources += write_sources(folder, KERNELS, ACTIVATIONS, SCALES)
    # "lazy": some linkers resolve every function when the library is loaded
    flags = [*(full.extra_ldflags or []), "-Wl,-z,lazy"]
    return dataclasses.replace(full, name=name, sources=sources, extra_ldflags=flags)


def load_runner():
    """Compile the module unless it is there, and have cutlass_fused_moe use it in this process.

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
        core.get_cutlass_fused_moe_module("90")  # kept by FlashInfer for the process
