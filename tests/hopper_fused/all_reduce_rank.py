"""all_reduce_rank: one rank of test_all_reduce.py, by torchrun. It prints what it counted."""

import argparse
import importlib
import json
import os
import random
import sys
import time

import torch
import torch.distributed as dist

SIZES = (1, 3, 8, 17, 32, 64, 100)  # tokens
ROUTED_SCALING_FACTOR = 2.5
REPLAYS = 200
MOST_CYCLES = 2_000_000  # that a rank is late: a millisecond or so


class Rank:
    """A rank's share of a layer of FP8 experts with DeepSeek-V3's routing, and its peers."""

    def __init__(self, package, patience, direct_tokens):
        self.module = importlib.import_module(f"{package}.main")
        self.problem = importlib.import_module(f"{package}.common.host.problem")
        self.number = dist.get_rank()
        self.source = torch.Generator("cuda").manual_seed(self.number)
        self.common_source = torch.Generator("cuda").manual_seed(1000)
        self.peers = self.module.Peers(
            max_tokens=256, patience=patience, direct_tokens=direct_tokens
        )
        self.weights = self.random_weights()

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
        """Return inputs that are the same on all ranks; experts: as many are chosen from."""
        hidden = self.problem.HIDDEN_SIZE
        all_experts = self.problem.NUM_EXPERTS
        source = self.common_source
        logits = torch.randn(tokens, all_experts, generator=source, device="cuda")
        if experts is not None:
            logits[:, experts:] -= 50
        bias = torch.zeros(all_experts, dtype=torch.bfloat16, device="cuda")
        x = torch.randn(tokens, hidden, generator=source, device="cuda").to(torch.float8_e4m3fn)
        scale = 0.5 + torch.rand(hidden // 128, tokens, generator=source, device="cuda")
        return [logits, bias, x, scale]

    def arguments(self, inputs, output):
        offset = self.number * self.problem.NUM_LOCAL_EXPERTS
        return [*inputs, *self.weights, offset, ROUTED_SCALING_FACTOR, output]

    def empty_output(self, inputs):
        output = torch.empty(inputs[2].shape, dtype=torch.bfloat16, device="cuda")
        return output.fill_(float("nan"))

    def summed(self, inputs):
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
    outputs = [torch.empty_like(output) for _ in range(dist.get_world_size())]
    dist.all_gather(outputs, output)
    return outputs


def same_bits(a, b):
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


def count_wrong(rank):
    """Return how many calls gave other bits than the ranks' outputs added up."""
    wrong = 0
    cases = [rank.random_inputs(tokens) for tokens in SIZES]
    local = rank.problem.NUM_LOCAL_EXPERTS
    cases += [rank.random_inputs(tokens, experts=local) for tokens in SIZES]
    for inputs in cases:
        expected = rank.expected(inputs)
        for _ in range(2):
            wrong += not same_bits(rank.summed(inputs), expected)

    above = rank.peers.launch_tokens + 1  # another kernel adds up, in an order of its own
    for tokens in (above, 300):
        outputs = gathered(rank.summed(rank.random_inputs(tokens)))
        wrong += not all(same_bits(output, outputs[0]) for output in outputs)
    rank.summed(rank.random_inputs(0))
    return wrong


def capture(rank, inputs):
    """Return a graph of three layers, and their output."""
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


def count_wrong_replays(rank):
    """Return how many replays of graphs in turn went wrong, with ranks late at random."""
    inputs = [rank.random_inputs(tokens) for tokens in SIZES]
    expected = [rank.expected(case) for case in inputs]
    graphs = [capture(rank, case) for case in inputs]
    order = random.Random(0)  # the same on all ranks
    lateness = random.Random(1 + rank.number)

    wrong = 0
    for _ in range(REPLAYS):
        number = order.randrange(len(graphs))
        graph, output = graphs[number]
        output.fill_(float("nan"))
        if lateness.random() < 0.3:
            torch.cuda._sleep(int(lateness.random() * MOST_CYCLES))
        graph.replay()
        wrong += not same_bits(output, expected[number])
    return wrong


def wait_in_vain(rank):
    """Return for whom, and in which epoch, the first rank has waited; the last one stays away."""
    inputs = rank.random_inputs(2)
    for _ in range(4):
        rank.summed(inputs)
    torch.cuda.synchronize()
    dist.barrier()
    if rank.number == dist.get_world_size() - 1:
        time.sleep(30)  # its memory must outlive the others' waits
        os._exit(0)

    try:
        rank.summed(inputs)
        torch.cuda.synchronize()
    except RuntimeError:
        pass
    try:
        rank.peers.check()
    except rank.module.RankMissing as missing:
        return {"missing": missing.missing, "epoch": missing.epoch}
    return {}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("package")
    parser.add_argument("mode", choices=["calls", "replays", "missing"])
    parser.add_argument("--patience", type=int, default=2**26)
    parser.add_argument("--direct-tokens", type=int)
    args = parser.parse_args()

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    sys.path.insert(0, args.folder)
    rank = Rank(args.package, args.patience, args.direct_tokens)

    if args.mode == "missing":
        result = wait_in_vain(rank)
    else:
        count = count_wrong if args.mode == "calls" else count_wrong_replays
        wrong = torch.tensor([count(rank)], device="cuda")
        dist.all_reduce(wrong)
        result = {"wrong": wrong.item()}
    if rank.number == 0:
        print(json.dumps(result), flush=True)
    os._exit(0)  # a context that has failed cannot be closed


if __name__ == "__main__":
    main()
