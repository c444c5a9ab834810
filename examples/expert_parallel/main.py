"""A whole MoE layer over several ranks, checked against the reference and, on GPUs, timed.

    torchrun --nproc-per-node 2 examples/expert_parallel/main.py --definition small --solution
    triton_fused_v2

A rank is a GPU, over NCCL; without GPUs a process, over gloo. torchrun ends all ranks when one
dies.
"""

import argparse
import os
import sys
import warnings
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from layer import LAYERS, tokens_of
from local_experts import REFERENCE, local_experts
from moebench.core import interpreter  # noqa: F401  before anything imports Triton
from moebench.core.errors import CannotRun, UserError
from moebench.judging.tolerances import TOLERANCES, matched_ratios
from moebench.operators.catalogue import FULL, GEOMETRIES, geometry_named
from moebench.operators.moe_fp8_block_scale_routed import routed_key
from moebench.packing import pack
from rich.console import Console
from rich.table import Table
from timing import measure
from ways import exchange, gather


def join(layer: str) -> str:
    """Become a rank of torchrun's group; its device. Raises UserError where the layer or the ranks
    cannot be.
    """
    ranks, ranks_here, at = (
        int(os.environ[key]) for key in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_RANK")
    )
    gpus = torch.cuda.device_count()
    if layer not in LAYERS:
        raise UserError(f"--definition: got {layer}, want one of {', '.join(LAYERS)}")
    if (experts := GEOMETRIES[layer]["num_experts"]) % ranks:
        raise UserError(f"ranks: got {ranks}, want a divisor of {experts} experts")
    if ranks_here > gpus and (gpus or layer in FULL):
        raise CannotRun(
            f"ranks: got {ranks_here} for {gpus} GPUs on this machine; without any: --definition small"
        )
    device = torch.device("cuda", at) if gpus else None
    if gpus:
        torch.cuda.set_device(device)
    warnings.filterwarnings(
        "ignore", r"`torch\.distributed\.", FutureWarning
    )  # of names that torch 2.8 has, too
    dist.init_process_group(
        "nccl" if gpus else "gloo", timeout=timedelta(seconds=120), device_id=device
    )
    return str(device or "cpu")


def work(args: argparse.Namespace, device: str) -> bool:
    """What every rank does, and whether all checks passed; the first rank prints."""
    rank, ranks, experts = (
        dist.get_rank(),
        dist.get_world_size(),
        GEOMETRIES[args.definition]["num_experts"],
    )
    local = range(experts * rank // ranks, experts * (rank + 1) // ranks)
    uneven, even = [5 * rank for rank in range(ranks)], [2 if device == "cpu" else 64] * ranks
    batches = {"even": even, "uneven, none on the first rank": uneven, "none at all": [0] * ranks}
    given = {
        batch: tokens_of(args.definition, counts, rank, device) for batch, counts in batches.items()
    }
    whole = local_experts(REFERENCE, args.definition, range(experts), device, routed=True)
    right = {
        batch: whole(tokens.x, tokens.scale, tokens.ids, tokens.weights)
        for batch, tokens in given.items()
    }
    del whole  # with its weights
    about = f"{args.solution}: {experts} experts on {ranks} ranks, {dist.get_backend()}"
    tolerance, passed = TOLERANCES["relaxed"], True
    checks = Table(
        "way", "tokens", "matched", "same bits twice", "result", title=about, caption=str(tolerance)
    )
    times = Table(
        "way",
        "tokens a rank",
        "dispatch",
        "experts",
        "combine",
        "call",
        "graph",
        title="ms, slowest rank",
    )
    for way in (gather, exchange):
        steps = partial(
            way,
            local_experts(args.solution, args.definition, local, device, routed=way is exchange),
        )
        for batch, tokens in given.items():
            first, second = (list(steps(tokens))[-1] for _ in range(2))
            matched = matched_ratios(first, right[batch])[tolerance.name]
            found = torch.tensor([matched, first.equal(second)], device=device)
            dist.all_reduce(found, dist.ReduceOp.MIN)
            matched, same = found.tolist()
            result = "PASSED" if same and matched >= tolerance.ratio else "FAILED"
            checks.add_row(way.__name__, batch, f"{matched:.4f}", "yes" if same else "no", result)
            passed &= result == "PASSED"
        for count in args.tokens if device != "cpu" else ():
            tokens = tokens_of(args.definition, [count] * ranks, rank, device)
            ms = measure(partial(steps, tokens), as_graph=way is gather)
            times.add_row(way.__name__, str(count), *(f"{time:.3f}" for time in ms))
    tables = [table for table in (checks, times) if table.rows]
    Console(quiet=rank > 0, width=None if sys.stdout.isatty() else 120).print(*tables)
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--definition", default="small", help="whose layer; E / ranks replaces its local experts"
    )
    parser.add_argument(
        "--solution", default=REFERENCE, help=f"default: {REFERENCE}, the definition's own"
    )
    parser.add_argument(
        "--tokens", nargs="+", type=int, default=[1, 8, 64, 512, 4096], help="a rank; timed on GPUs"
    )
    args = parser.parse_args()
    try:
        if not dist.is_torchelastic_launched():
            raise UserError(f"start it with: torchrun --nproc-per-node 2 {sys.argv[0]}")
        args.definition = geometry_named(args.definition)
        if args.solution != REFERENCE:
            (served,) = pack.pack_all([args.solution])[0].values()
            if missing := {args.definition, routed_key(args.definition)} - served.keys():
                raise UserError(
                    f"--solution: {args.solution} does not serve {', '.join(sorted(missing))}"
                )
        passed = work(args, join(args.definition))
        dist.destroy_process_group()
    except UserError as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            print(error, file=sys.stderr)
        return error.status
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
