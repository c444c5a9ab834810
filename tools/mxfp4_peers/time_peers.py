"""Time the solutions of an MXFP4 layer and public peers side by side, with weights prepared ahead
as a server does.

In FlashInfer-Bench each call gets new weights, so a solution that reorders them does so in every
call. Here a solution that has functions `prepare` and `layer` prepares once, which is not part of
the time. Solutions without these are timed as they are. So are the solutions of the FP8 layer of
the same sizes, on weights that were converted exactly, and vLLM's Marlin and triton_kernels'
matmul_ogs, where vLLM 0.26 is installed or unpacked. Every output is compared with the MXFP4
reference.

Needs a Hopper GPU. The time is that of a call in a CUDA graph after a flush of L2, without the
flush. --record keeps what is printed as lines of records/mxfp4_peers.jsonl have it. Exit status:
0, 1 for a wrong answer or without a GPU, 2 for bad arguments.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from batch import Batch, batch_of
from marlin import marlin_peer
from moebench.core.arguments import count, output_file
from moebench.core.errors import CannotRun, UserError, exit_with, first_line
from moebench.operators import catalogue
from moebench.packing.manifest import solutions_of
from moebench.reports.layer_times import PeerPoint
from packed_peers import converted_peer, fp8_key_of, peer_of
from peer import Peer, point_of
from triton_kernels_peer import matmul_ogs_peer

PUBLIC = {"vllm_marlin": marlin_peer, "matmul_ogs": matmul_ogs_peer}
UNKNOWN_PEER = "--peers: got {name!r}, want one of {listed}"


def peer_makers(
    key: str, batch: Batch | None, args: argparse.Namespace
) -> dict[str, Callable[[], Peer]]:
    """Return functions that make a Peer, by its name: MXFP4 solutions, FP8 ones, public peers.

    batch: None where only the names are of interest.
    """
    makers = {}
    for name in solutions_of([key]):
        makers[name] = partial(peer_of, name, key, batch, max(args.tokens))

    fp8_key = fp8_key_of(key)
    if fp8_key:
        for name in solutions_of([fp8_key]):
            makers[f"{name}-fp8"] = partial(converted_peer, name, fp8_key, batch)

    for name, make in PUBLIC.items():
        makers[name] = partial(make, batch, args.vllm)
    return makers


def time_all(key: str, num_tokens: int, args: argparse.Namespace) -> int:
    """Print a line for each peer, record it, and return how many gave a wrong output.

    For a peer that cannot run here or fails, the line has the reason.
    """
    batch = batch_of(key, num_tokens)
    print(f"{key}, T={num_tokens}, {torch.cuda.get_device_name()}")

    wrong = 0
    for name, make in peer_makers(key, batch, args).items():
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


def line_of(point: PeerPoint) -> str:
    """Return the line to print for a point."""
    line = f"  {point.peer:28} {point.us / 1e3:8.4f} ms"
    line += f"  prepared in {point.prepared_ms:8.2f} ms"
    for tolerance, share in point.matched.items():
        line += f"  {tolerance} {share:.4f}"
    return line if point.is_right else f"{line}  WRONG"


def parsed(argv: list[str]) -> argparse.Namespace:
    """Return the arguments of the command line. Raises UserError for one that is wrong."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "time_peers.py", description=__doc__, formatter_class=layout
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
    vllm_help = "that vLLM's wheel was unpacked into; default: vLLM as it is installed"
    parser.add_argument("--vllm", type=Path, metavar="FOLDER", help=vllm_help)
    args = parser.parse_args(argv)

    if args.definition not in catalogue.mxfp4():
        listed = ", ".join(catalogue.mxfp4())
        raise UserError(f"--definition: got {args.definition!r}, want one of {listed}")
    check_peers(args)
    return args


def check_peers(args: argparse.Namespace) -> None:
    """Raise UserError for a name of --peers that the definition has no peer of."""
    names = list(peer_makers(args.definition, None, args))
    for name in args.peers:
        if name not in names:
            listed = ", ".join(names)
            raise UserError(UNKNOWN_PEER.format(name=name, listed=listed))


def main(argv: list[str]) -> int:
    args = parsed(argv)
    if not torch.cuda.is_available():
        raise CannotRun("timing layers needs a CUDA device; torch sees none")

    wrong = 0
    for num_tokens in args.tokens:
        wrong += time_all(args.definition, num_tokens, args)
    return 1 if wrong else 0


if __name__ == "__main__":
    exit_with(main)
