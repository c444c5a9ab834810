"""Time the solutions of an MXFP4 layer side by side, with weights prepared ahead as a server does.

In FlashInfer-Bench each call gets new weights, so a solution that reorders them does so in every
call. Here a solution that has functions `prepare` and `layer` prepares once, which is not part of
the time. Solutions without these are timed as they are. So are the solutions of the FP8 layer of
the same sizes, on weights that were converted exactly. Every output is compared with the MXFP4
reference.

Needs a Hopper GPU. The time is that of a call in a CUDA graph after a flush of L2, without the
flush. --record keeps what is printed as lines of records/mxfp4_peers.jsonl have it. Exit status:
0, 1 for a wrong answer or without a GPU, 2 for bad arguments.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace

import torch
import triton
from flashinfer_bench.compile import BuilderRegistry
from moebench.core.arguments import count, output_file
from moebench.core.errors import CannotRun, UserError, exit_with, first_line
from moebench.core.provenance import cuda_driver
from moebench.judging import calling
from moebench.judging.tolerances import matched_ratios
from moebench.models.mxfp4_to_fp8 import experts_to_fp8
from moebench.operators import catalogue
from moebench.operators.fp8 import mxfp4
from moebench.packing import eligibility
from moebench.packing.manifest import solutions_of
from moebench.packing.pack import pack
from moebench.reports.layer_times import PeerPoint

CALLS = 20  # in a graph
REPEATS = 15  # replays of the graph, of which the median is printed
FLUSHED_BYTES = 256_000_000
WEIGHTS = (
    "gemm1_weights",
    "gemm1_weights_scale",
    "gemm2_weights",
    "gemm2_weights_scale",
)


@dataclass(frozen=True)
class Batch:
    """The arguments of a call by name, and the reference's output for them."""

    inputs: dict[str, object]
    expected: torch.Tensor


@dataclass(frozen=True)
class Peer:
    """A solution with all arguments of a call but the output."""

    name: str
    call: Callable[[torch.Tensor], None]  # writes the output that it is given
    prepare_ms: float = 0.0  # ms of preparing the weights


def batch_of(key: str, num_tokens: int) -> Batch:
    """Return the inputs of a definition's workload with num_tokens tokens, and the expected output.

    Raises UserError where there is no such workload.
    """
    operator = catalogue.MXFP4
    cases = {case.seq_len: case for case in operator.cases(key)}
    if num_tokens not in cases:
        listed = ", ".join(map(str, cases))
        raise UserError(f"T: got {num_tokens}, want one of {listed}")

    # Routing and scales are the workload's own; tokens and weights are drawn from a seed.
    case = cases[num_tokens]
    workload = operator.record(case).workload
    stored = operator.tensors(case)
    sizes = operator.layer_sizes()[key]
    stored |= mxfp4.weight_scales(operator.case_with_scales(case), sizes)

    definition = catalogue.definition(key)
    (values,) = calling.seeded_inputs(definition, workload, 1, "cuda", stored)
    reference = BuilderRegistry.get_instance().build_reference(definition)
    (expected,) = calling.call(definition, reference, values, "cuda")
    inputs = dict(zip(definition.inputs, values, strict=True))
    return Batch(inputs, expected)


def built(name: str, key: str) -> Callable:
    """Return a solution's function, built by FIB. Raises CannotRun where it cannot run here."""
    packed = pack(name)[key]
    reason = eligibility.why_skipped(packed, eligibility.target_here())
    if reason:
        raise CannotRun(f"{name} {reason}")
    return BuilderRegistry.get_instance().build(catalogue.definition(key), packed)


def peer_of(name: str, key: str, batch: Batch) -> Peer:
    """Return a solution of the MXFP4 definition as a Peer, with its weights prepared."""
    runnable = built(name, key)
    module = sys.modules[runnable._callable.__module__]
    if not hasattr(module, "prepare"):
        return Peer(name, partial(runnable, *batch.inputs.values()))

    weights = [batch.inputs[input_name] for input_name in WEIGHTS]
    prepared, prepare_ms = timed(partial(module.prepare, weights))

    def call(output: torch.Tensor) -> None:
        module.layer(SimpleNamespace(**batch.inputs, output=output), prepared)

    return Peer(name, call, prepare_ms)


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


def timed(function: Callable) -> tuple[object, float]:
    """Return a function's result, and the ms that it took on host and device."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    result = function()
    torch.cuda.synchronize()
    return result, (time.perf_counter() - start) * 1e3


def graph_ms(call: Callable[[], None]) -> float:
    """Return the median time in ms of a call in a graph of CALLS calls."""
    call()  # the first call may compile, tune and allocate
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()

    times = []
    for _ in range(REPEATS):
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / CALLS)
    return sorted(times)[REPEATS // 2]


def point_of(peer: Peer, key: str, batch: Batch, card: int) -> PeerPoint:
    """Compare a peer's output with the reference, time a call, and return both."""
    output = torch.full_like(batch.expected, float("nan"))
    peer.call(output)
    matched = matched_ratios(output, batch.expected)
    ms = time_without_flush(peer, output)
    return PeerPoint(
        gpu=torch.cuda.get_device_name(),
        card=card,
        driver=cuda_driver(),
        torch=torch.__version__,
        triton=triton.__version__,
        date=datetime.now(UTC).date().isoformat(),
        definition=key,
        tokens=len(batch.expected),
        peer=peer.name,
        us=round(1e3 * ms, 2),
        prepared_ms=round(peer.prepare_ms, 2),
        matched=matched,
    )


def line_of(point: PeerPoint) -> str:
    """Return the line to print for a point."""
    line = f"  {point.peer:28} {point.us / 1e3:8.4f} ms"
    line += f"  prepared in {point.prepared_ms:8.2f} ms"
    for tolerance, share in point.matched.items():
        line += f"  {tolerance} {share:.4f}"
    return line if point.is_right else f"{line}  WRONG"


def time_without_flush(peer: Peer, output: torch.Tensor) -> float:
    """Return the ms of a call after a flush of L2, less those of the flush."""
    flushed = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device="cuda")

    def flush_and_call() -> None:
        flushed.zero_()
        peer.call(output)

    return graph_ms(flush_and_call) - graph_ms(flushed.zero_)


def fp8_key_of(key: str) -> str | None:
    """Return the key of the FP8 definition with these sizes, None without one."""
    names = catalogue.names(catalogue.layer_sizes()[key])
    return catalogue.by_name().get(names["routed"])


def peer_makers(key: str, batch: Batch) -> dict[str, Callable[[], Peer]]:
    """Return functions that make a Peer, by its name: MXFP4 solutions first, then FP8 ones."""
    makers = {}
    for name in solutions_of([key]):
        makers[name] = partial(peer_of, name, key, batch)

    fp8_key = fp8_key_of(key)
    if fp8_key:
        for name in solutions_of([fp8_key]):
            makers[f"{name}-fp8"] = partial(converted_peer, name, fp8_key, batch)
    return makers


def time_all(key: str, num_tokens: int, args: argparse.Namespace) -> int:
    """Print a line for each peer, record it, and return how many gave a wrong output.

    For a peer that cannot run here or fails, the line has the reason.
    """
    batch = batch_of(key, num_tokens)
    print(f"{key}, T={num_tokens}, {torch.cuda.get_device_name()}")

    wrong = 0
    for name, make in peer_makers(key, batch).items():
        if args.peers and name not in args.peers:
            continue
        try:
            point = point_of(make(), key, batch, args.card)
        except Exception as error:  # any: third-party kernels raise what they like
            print(f"  {name:28} {first_line(error)}", flush=True)
            continue

        print(line_of(point), flush=True)
        if args.record:
            with args.record.open("a", encoding="utf-8") as file:
                file.write(f"{point.model_dump_json()}\n")
        wrong += not point.is_right
    return wrong


def main(argv: list[str]) -> int:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "mxfp4_peers.py", description=__doc__, formatter_class=layout
    )
    parser.add_argument("tokens", nargs="+", type=count(), metavar="T")
    parser.add_argument(
        "--definition", default="deepseek-v4-flash-mxfp4", metavar="KEY"
    )
    peers_help = "these alone; NAME-fp8 is a solution in FP8 on converted weights"
    parser.add_argument(
        "--peers", nargs="+", default=[], metavar="NAME", help=peers_help
    )
    parser.add_argument(
        "--record", type=output_file, metavar="FILE", help="to which lines are added"
    )
    card_help = "in the record, to tell GPUs of one name apart; default: 1"
    parser.add_argument("--card", type=count(), default=1, metavar="N", help=card_help)
    args = parser.parse_args(argv)
    if args.definition not in catalogue.mxfp4():
        listed = ", ".join(catalogue.mxfp4())
        raise UserError(f"--definition: got {args.definition!r}, want one of {listed}")
    if not torch.cuda.is_available():
        raise CannotRun("timing layers needs a CUDA device; torch sees none")

    wrong = 0
    for num_tokens in args.tokens:
        wrong += time_all(args.definition, num_tokens, args)
    return 1 if wrong else 0


if __name__ == "__main__":
    exit_with(main)
