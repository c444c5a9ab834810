"""build: compile the one runner that is needed out of FlashInfer's module of TensorRT-LLM's Hopper
MoE kernels.

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
    """Whether a source of the full module (a file's name) takes part in bf16-by-FP8."""
    other_runner = source_name.startswith("moe_gemm_kernels_") and source_name != RUNNER
    return not other_runner and not source_name.endswith(".generated.cu")


def choose_spec():
    """FlashInfer's JitSpec of its SM90 module if that is compiled, else one of the needed sources
    alone.

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
    return dataclasses.replace(
        full, name=f"{full.name}_bf16_fp8", sources=sources, extra_ldflags=flags
    )


def load_runner():
    """Compile the module unless it is there, and make FlashInfer's cutlass_fused_moe use it in this
    process.

    FlashInfer keeps what it compiled below its cache folder, by version and architecture, and holds
    a lock meanwhile.

    Raises:
        RuntimeError: there is no nvcc or ninja, or a source does not compile (the output is in the
            message).
    """
    spec = choose_spec()
    quiet = spec.get_library_path().exists()
    with (
        mock.patch.object(
            core, "gen_cutlass_fused_moe_sm90_module", lambda use_fast_build=False: spec
        ),
        nullcontext() if quiet else progress(spec),
    ):
        core.get_cutlass_fused_moe_module("90")  # kept by FlashInfer for the process


@contextmanager
def progress(spec):
    """Say on standard error what is compiled, then a line every half minute, then how long it
    took.
    """
    start, done, total = time.monotonic(), threading.Event(), len(spec.sources)

    def say(what):
        print(
            f"flashinfer_cutlass: {what} ({time.monotonic() - start:.0f} s)",
            file=sys.stderr,
            flush=True,
        )

    def tick():
        while not done.wait(SECONDS_BETWEEN_LINES):
            say(
                f"{len(list(spec.jit_library_path.parent.glob('*.o')))} of {total} sources compiled"
            )

    say(f"compiling {total} CUDA and C++ sources of FlashInfer's, once; this takes minutes")
    threading.Thread(target=tick, daemon=True).start()
    try:
        yield
    finally:
        done.set()
    say("compiled")
