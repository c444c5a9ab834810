"""build: compile what this solution needs of FlashInfer's module of TensorRT-LLM's Hopper kernels.

main.py calls `load_runner` on import. FlashInfer's own just-in-time build compiles a runner for
every pair of types, which takes about a quarter of an hour on 16 cores. bf16 activations with FP8
weights need neither the runners of other types nor the generated kernels, so this file drops those
sources from FlashInfer's JitSpec. Functions that are left out stay unresolved symbols, which no
call from here reaches. A full module that is already compiled, or was installed with FlashInfer, is
used as it is.
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
    """Return whether bf16 x FP8 needs a source of the full module. source_name: its file name."""
    other_runner = source_name.startswith("moe_gemm_kernels_") and source_name != RUNNER
    return not other_runner and not source_name.endswith(".generated.cu")


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
            f"flashinfer_cutlass: this version of FlashInfer has no source {RUNNER}"
        )
    # lazy: else some linkers would look for the missing functions when the library is loaded
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
    """Print to standard error that compiling starts, its progress each half minute, and its end."""
    start = time.monotonic()
    done = threading.Event()
    total = len(spec.sources)

    def say(what):
        seconds = time.monotonic() - start
        print(
            f"flashinfer_cutlass: {what} ({seconds:.0f} s)", file=sys.stderr, flush=True
        )

    def tick():
        while not done.wait(SECONDS_BETWEEN_LINES):
            objects = list(spec.jit_library_path.parent.glob("*.o"))
            say(f"{len(objects)} of {total} sources compiled")

    say(
        f"compiling {total} CUDA and C++ sources of FlashInfer's, once; this takes minutes"
    )
    threading.Thread(target=tick, daemon=True).start()
    try:
        yield
    finally:
        done.set()
    say("compiled")
