"""Solutions of this repository as peers, of the MXFP4 definition and of the FP8 one."""

import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace

import torch
from batch import WEIGHTS, Batch
from flashinfer_bench.compile import BuilderRegistry
from moebench.core.errors import CannotRun
from moebench.models.mxfp4_to_fp8 import experts_to_fp8
from moebench.operators import catalogue
from moebench.packing import eligibility
from moebench.packing.pack import pack
from peer import Peer, timed

# whose kernels a solution only calls, and which; the table has these names
CALLED = {
    "flashinfer_mxfp4": "FlashInfer's W4A16",
    "flashinfer_mxfp4_w4a8": "FlashInfer's W4A8",
}


def built(name: str, key: str) -> Callable:
    """Return a solution's function, built by FIB. Raises CannotRun where it cannot run here."""
    packed = pack(name)[key]
    reason = eligibility.why_skipped(packed, eligibility.target_here())
    if reason:
        raise CannotRun(f"{name} {reason}")
    return BuilderRegistry.get_instance().build(catalogue.definition(key), packed)


def peer_of(name: str, key: str, batch: Batch, most_tokens: int) -> Peer:
    """Return a solution of the MXFP4 definition as a Peer, with its weights prepared.

    most_tokens: of the batches that will be timed in this process.
    """
    shown_name = CALLED.get(name, name)
    runnable = built(name, key)
    module = sys.modules[runnable._callable.__module__]
    if not hasattr(module, "prepare"):
        return Peer(shown_name, partial(runnable, *batch.inputs.values()))

    limit_tuning(module, most_tokens)
    weights = [batch.inputs[input_name] for input_name in WEIGHTS]
    prepared, prepare_ms = timed(partial(module.prepare, weights))

    def call(output: torch.Tensor) -> None:
        module.layer(SimpleNamespace(**batch.inputs, output=output), prepared)

    return Peer(shown_name, call, prepare_ms)


def limit_tuning(module: ModuleType, most_tokens: int) -> None:
    """Have FlashInfer's tuner, if a solution calls it, try batches of up to most_tokens alone.

    In its first call it tries all kernels for each power of two up to a largest batch, here of
    16384 tokens.
    """
    package, _, _ = module.__name__.rpartition(".")
    keywords = sys.modules.get(f"{package}.keywords")
    if hasattr(keywords, "MOST_TOKENS_TUNED"):
        keywords.MOST_TOKENS_TUNED = most_tokens


def converted_peer(name: str, key: str, batch: Batch) -> Peer:
    """Return a solution of the FP8 definition as a Peer, on the weights of `batch` in FP8.

    key: of the FP8 definition with the sizes of the MXFP4 one.
    """
    runnable = built(name, key)
    converted, prepare_ms = timed(partial(as_fp8, batch.inputs))

    inputs = batch.inputs | converted
    layer = catalogue.definition(key)
    values = [inputs[input_name] for input_name in layer.inputs]
    return Peer(f"{name}, in FP8", partial(runnable, *values), prepare_ms)


def as_fp8(inputs: dict[str, object]) -> dict[str, torch.Tensor]:
    """Return both GEMMs' weights and scales in FP8, by name. Raises NotExact if that rounds."""
    converted = {}
    for gemm in ("gemm1_weights", "gemm2_weights"):
        scale = f"{gemm}_scale"
        pairs = zip(inputs[gemm], inputs[scale], strict=True)
        matrices = list(experts_to_fp8(pairs, gemm))
        converted[gemm] = torch.stack([matrix.weights for matrix in matrices])
        converted[scale] = torch.stack([matrix.scales for matrix in matrices])
    return converted


def fp8_key_of(key: str) -> str | None:
    """Return the key of the FP8 definition with these sizes, None without one."""
    names = catalogue.names(catalogue.layer_sizes()[key])
    return catalogue.by_name().get(names["routed"])
