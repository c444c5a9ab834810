"""all_reduce_rank: one rank of test_all_reduce.py, started by torchrun. The first rank prints JSON:
how many sums were wrong on all ranks, or in the mode "missing" which rank it found missing.

With --share-gpus ranks take turns on the GPUs, over gloo.
"""

import argparse
import importlib
import json
import os
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

SIZES = (1, 3, 8, 17, 32, 64, 100)  # tokens
ROUTED_SCALING_FACTOR = 2.5
REPLAYS = 200
# with ranks that take turns on a GPU, where each sum waits until all had theirs
REPLAYS_IN_TURNS = 40
MOST_CYCLES = 2_000_000  # by which a rank is late at most: a millisecond or so
# How sums travel -> Peers' direct_tokens: None lets few tokens go to all ranks at once, with 0 each
# rank adds up a share and sends it on.
DIRECT_TOKENS = {"direct": None, "two_hops": 0}
PATIENCE = 2**20  # polls after which a rank gives up on the missing one
MOST_SECONDS = 60  # that the missing rank waits for the others to give up


class Rank:
    """A rank's share of a layer of FP8 experts with DeepSeek-V3's routing, and its peers.

    package: dotted name of the packed hopper_fused. source: of values that differ from rank to
    rank; common_source: of those that are the same on all.
    """

    def __init__(self, package):
        self.module = importlib.import_module(f"{package}.main")
        self.problem = importlib.import_module(f"{package}.common.host.problem")
        self.number = dist.get_rank()
        self.source = torch.Generator("cuda").manual_seed(self.number)
        self.common_source = torch.Generator("cuda").manual_seed(1000)
        self.peers = None
        self.weights = self.random_weights()

    def join(self, **options):
        """Create Peers together with the other ranks, in place of the last. options: of Peers."""
        self.peers = self.module.Peers(max_tokens=256, **options)

    def random_weights(self):
        hidden = self.problem.HIDDEN_SIZE
        inter = self.problem.INTERMEDIATE_SIZE
        experts = self.problem.NUM_LOCAL_EXPERTS
        w13 = self.random_fp8(experts, 2 * inter, hidden)
        w2 = self.random_fp8(experts, hidden, inter)
        w13_scale = self.random_scale(experts, 2 * inter // 128, hidden // 128)
        w2_scale = self.random_scale(experts, hidden // 128, inter // 128)
        return [w13, w13_scale, w2, w2_scale]

    def random_fp8(self, *shape):
        values = torch.randn(shape, generator=self.source, device="cuda")
        return values.to(torch.float8_e4m3fn)

    def random_scale(self, *shape):
        return 0.01 + 0.05 * torch.rand(shape, generator=self.source, device="cuda")

    def random_inputs(self, tokens, experts=None):
        """Return logits, bias, x and its scale, the same on all ranks.

        experts: only the first so many are chosen, and so only ranks that hold them have rows.
        """
        hidden = self.problem.HIDDEN_SIZE
        all_experts = self.problem.NUM_EXPERTS
        source = self.common_source
        logits = torch.randn(tokens, all_experts, generator=source, device="cuda")
        if experts is not None:
            logits[:, experts:] -= 50
        bias = torch.zeros(all_experts, dtype=torch.bfloat16, device="cuda")
        x = torch.randn(tokens, hidden, generator=source, device="cuda")
        x = x.to(torch.float8_e4m3fn)
        scale = 0.5 + torch.rand(hidden // 128, tokens, generator=source, device="cuda")
        return [logits, bias, x, scale]

    def arguments(self, inputs, output):
        """Return the positional arguments of the packed `run` and `run_allreduce`."""
        offset = self.number * self.problem.NUM_LOCAL_EXPERTS
        return [*inputs, *self.weights, offset, ROUTED_SCALING_FACTOR, output]

    def empty_output(self, inputs):
        """Return an output full of NaN."""
        output = torch.empty(inputs[2].shape, dtype=torch.bfloat16, device="cuda")
        return output.fill_(float("nan"))

    def summed(self, inputs):
        """Return the solution's sum over the ranks, which is under test."""
        output = self.empty_output(inputs)
        self.module.run_allreduce(*self.arguments(inputs, output), peers=self.peers)
        return output

    def expected(self, inputs):
        """Return the ranks' outputs added up in fp32, in order of rank."""
        output = self.empty_output(inputs)
        self.module.run(*self.arguments(inputs, output))
        total = torch.zeros(output.shape, device="cuda")
        for part in gathered(output):
            total += part.float()
        return total.bfloat16()


def gathered(output):
    """Return all ranks' outputs, in order of rank."""
    outputs = [torch.empty_like(output) for _ in range(dist.get_world_size())]
    dist.all_gather(outputs, output)
    return outputs


def same_bits(a, b):
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


def count_wrong(rank):
    """Return how many calls gave other bits than the ranks' outputs added up; with more tokens than
    one launch takes, other bits than on the first rank.
    """
    wrong = 0
    cases = [rank.random_inputs(tokens) for tokens in SIZES]
    local = rank.problem.NUM_LOCAL_EXPERTS
    cases += [rank.random_inputs(tokens, experts=local) for tokens in SIZES]
    for inputs in cases:
        expected = rank.expected(inputs)
        for _ in range(2):
            wrong += not same_bits(rank.summed(inputs), expected)

    # with more tokens another kernel adds up, in an order of its own
    above = rank.peers.launch_tokens + 1
    for tokens in (above, 300):
        outputs = gathered(rank.summed(rank.random_inputs(tokens)))
        wrong += not all(same_bits(output, outputs[0]) for output in outputs)
    rank.summed(rank.random_inputs(0))
    return wrong


def capture(rank, inputs):
    """Return a graph of three calls with the same arguments, and their output."""
    output = rank.empty_output(inputs)
    arguments = rank.arguments(inputs, output)
    rank.module.run_allreduce(*arguments, peers=rank.peers)
    torch.cuda.synchronize()
    dist.barrier()

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(3):
            rank.module.run_allreduce(*arguments, peers=rank.peers)
    return graph, output


def count_wrong_replays(rank, replays):
    """Return how many replays went wrong, of graphs in random order, with ranks late at random."""
    inputs = [rank.random_inputs(tokens) for tokens in SIZES]
    expected = [rank.expected(case) for case in inputs]
    graphs = [capture(rank, case) for case in inputs]
    order = random.Random(0)  # the same on all ranks
    lateness = random.Random(1 + rank.number)

    wrong = 0
    for _ in range(replays):
        number = order.randrange(len(graphs))
        graph, output = graphs[number]
        output.fill_(float("nan"))
        if lateness.random() < 0.3:
            torch.cuda._sleep(int(lateness.random() * MOST_CYCLES))
        graph.replay()
        wrong += not same_bits(output, expected[number])
    return wrong


def count_all_wrong(rank, replays):
    """Return how sums travel -> how many calls and replays went wrong, on all ranks together."""
    wrong = {}
    for hops, direct_tokens in DIRECT_TOKENS.items():
        rank.join(direct_tokens=direct_tokens)
        counts_here = [count_wrong(rank), count_wrong_replays(rank, replays)]
        counts = torch.tensor(counts_here, device="cuda")
        dist.all_reduce(counts)
        calls, replays = counts.tolist()
        wrong[hops] = {"calls": calls, "replays": replays}
    return wrong


def wait_in_vain(rank, end):
    """Make four calls on all ranks, and a fifth from which the last rank stays away. Return which
    rank is missing and in which call (epoch), as Peers found it; nothing if it found none.

    end: a file that the first rank makes when it has given up, for the last one to see.
    """
    rank.join(patience=PATIENCE)
    inputs = rank.random_inputs(2)
    for _ in range(4):
        rank.summed(inputs)
    torch.cuda.synchronize()
    dist.barrier()
    if rank.number == dist.get_world_size() - 1:
        outlive_others(end)
        os._exit(0)

    try:
        rank.summed(inputs)
        torch.cuda.synchronize()
    except RuntimeError:
        pass
    if rank.number == 0:
        end.touch()
    try:
        rank.peers.check()
    except rank.module.RankMissing as missing:
        return {"missing": missing.missing, "epoch": missing.epoch}
    return {}


def outlive_others(end):
    """Wait until the others have given up: they read this rank's memory until then.

    end: as in `wait_in_vain`.
    """
    last_look = time.monotonic() + MOST_SECONDS
    while not end.exists() and time.monotonic() < last_look:
        time.sleep(0.1)
    time.sleep(2)  # the other ranks are as patient as the first


def join_group(share_gpus):
    """Become a rank of torchrun's group, on a GPU of its own or on one that ranks share evenly."""
    local_rank = int(os.environ["LOCAL_RANK"])
    if not share_gpus:
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
        return

    ranks = int(os.environ["LOCAL_WORLD_SIZE"])
    torch.cuda.set_device(local_rank * torch.cuda.device_count() // ranks)
    # torch refuses symmetric memory of two ranks on a GPU otherwise, and NCCL such ranks
    os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
    dist.init_process_group("gloo")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("package")
    parser.add_argument("mode", choices=["sums", "missing"])
    parser.add_argument("--share-gpus", action="store_true")
    args = parser.parse_args()

    join_group(args.share_gpus)
    sys.path.insert(0, args.folder)
    rank = Rank(args.package)

    if args.mode == "missing":
        result = wait_in_vain(rank, Path(args.folder, f"end_{dist.get_world_size()}"))
    else:
        replays = REPLAYS_IN_TURNS if args.share_gpus else REPLAYS
        result = count_all_wrong(rank, replays)
    if rank.number == 0:
        print(json.dumps(result), flush=True)
    # without the usual clean-up: a CUDA context that has failed cannot be closed
    os._exit(0)


if __name__ == "__main__":
    main()
