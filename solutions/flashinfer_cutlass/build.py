"""build: compile the one runner that is needed out of FlashInfer's module of Hopper MoE kernels.

They are TensorRT-LLM's.
FlashInfer's own just-in-time build makes every pair of types, which takes about a quarter of an
hour on 16 cores. bf16 activations with FP8 weights need neither the runners of other types nor the
generated kernels, so the same JitSpec with fewer sources does: calls to what is left out stay
unresolved, and are never made here. A full module that is already compiled, or was installed with
FlashInfer, is taken as it is.
"""

import dataclasses
import sys
import threading
import time
from contextlib import contextmanager, nullcontext
from unittest import mock

from flashinfer.fused_moe import core

RUNNER = "moe_gemm_kernels_bf16_fp8.cu"
SECONDS_BETWEEN_LINES = 30


def is_needed(source_name):
    """Return whether a source of the full module (a file's name) takes part in bf16-by-FP8."""
    other_runner = source_name.startswith("moe_gemm_kernels_") and source_name != RUNNER
    return not other_runner and not source_name.endswith(".generated.cu")


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
        raise RuntimeError(f"flashinfer_cutlass: this version of FlashInfer has no source {RUNNER}")
    # "lazy": some linkers resolve every function when the library is loaded
    flags = [*(full.extra_ldflags or []), "-Wl,-z,lazy"]
    name = f"{full.name}_bf16_fp8"
    return dataclasses.replace(full, name=name, sources=sources, extra_ldflags=flags)


def load_runner():
    """Compile the module unless it is there, and have cutlass_fused_moe use it in this process.

    FlashInfer keeps what it compiled below its cache folder, by version and architecture, and holds
    a lock meanwhile.

    Raises:
        RuntimeError: there is no nvcc or ninja, or a source does not compile (the output is in the
            message).
    """
    spec = choose_spec()
    is_compiled = spec.get_library_path().exists()
    patched = mock.patch.object(
        core, "gen_cutlass_fused_moe_sm90_module", lambda use_fast_build=False: spec
    )
    with patched, nullcontext() if is_compiled else progress(spec):
        core.get_cutlass_fused_moe_module("90")  # kept by FlashInfer for the process


@contextmanager
def progress(spec):
    """Say on standard error what is compiled, each half minute how far it is, and the end."""
    start = time.monotonic()
    done = threading.Event()
    total = len(spec.sources)

    def say(what):
        seconds = time.monotonic() - start
        print(f"flashinfer_cutlass: {what} ({seconds:.0f} s)", file=sys.stderr, flush=True)

    def tick():
        while not done.wait(SECONDS_BETWEEN_LINES):
            objects = list(spec.jit_library_path.parent.glob("*.o"))
            say(f"{len(objects)} of {total} sources compiled")

    say(f"compiling {total} CUDA and C++ sources of FlashInfer's, once; this takes minutes")
    threading.Thread(target=tick, daemon=True).start()
    try:
        yield
    finally:
        done.set()
    say("compiled")
