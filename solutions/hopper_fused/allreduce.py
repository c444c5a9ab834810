"""allreduce: the layer with its output summed over the GPUs of one host.

Each rank has some of the layer's experts, or a part of the intermediate size of all. A caller makes
a `Peers` once and passes it to main.py's run_*_allreduce functions, which `summed` makes. The
number of tokens decides how outputs are summed:
    up to `Peers.launch_tokens`: in the layer's own launch.
    up to `Peers.max_tokens`: by an all-reduce over torch's symmetric memory, after the layer.
    above: by the process group's all-reduce, after the layer.
"""

from functools import partial

import torch
import torch.distributed as dist

from ..common.host.arguments import takes
from ..common.host.problem import HIDDEN_SIZE
from .build import load_kernels
from .h_split import H_SPLIT

PATIENCE = 2**26  # polls for another rank's data: about half a minute on an H100


class RankMissing(RuntimeError):
    """A launch has waited in vain for another rank.

    Attributes:
        missing: the rank from which nothing came.
        epoch: the number of that launch among the launches that sum, from 1 on.
    """

    def __init__(self, rank, missing, epoch):
        super().__init__(
            f"rank {rank} gave up: nothing came from rank {missing} in epoch {epoch} of the sum"
            " over ranks; that rank has died, is late, or made other calls"
        )
        self.missing = missing
        self.epoch = epoch


class Peers:
    """What the ranks of a group share in order to sum a layer's output.

    All ranks create it together, outside of a graph, and then make the same calls, with the same
    number of tokens, in the same order. Calls with one `Peers` must not run side by side: they are
    made on one stream, or on streams that wait for each other. One `Peers` serves all layers of a
    model, and all graphs.

    A rank that has polled `patience` times for another one's data gives up, as that one may have
    died: its launch ends with a CUDA error, and its process can use the GPU no more. `check` then
    raises an error that names the missing rank.

    Attributes:
        launch_tokens: the most tokens for which the layer and the sum are one launch.
        max_tokens: the most tokens for which the all-reduce uses symmetric memory.
    """

    def __init__(
        self, group=None, max_tokens=1024, patience=PATIENCE, direct_tokens=None
    ):
        """Allocate the shared memory. All ranks of the group have to call this together.

        group: a torch process group over GPUs of one host, 8 at most; None for all ranks.
        direct_tokens: the most tokens for which, in one launch, each rank sends its whole output to
        all others. With more, each rank adds up a share of the output: it gets that share from all
        others and sends them the result. None for what is expected to be fastest.
        """
        self.group = group or dist.group.WORLD
        self.rank = dist.get_rank(self.group)
        self.ranks = dist.get_world_size(self.group)
        self.launch_tokens = load_kernels().tokens_of_one_launch()
        self.max_tokens = max_tokens
        self._entry_points = {}

        if direct_tokens is None:
            direct_tokens = load_kernels().direct_tokens(self.ranks)
        buffer_bytes = load_kernels().peer_buffer_bytes(self.ranks, direct_tokens)
        self._buffer, addresses = self._set_up_symmetric(buffer_bytes, torch.uint8)
        self._rows, _ = self._set_up_symmetric(max_tokens * HIDDEN_SIZE, torch.bfloat16)
        self._failure = torch.zeros(1, dtype=torch.int64, pin_memory=True)
        self._failure_word = self._failure.numpy()

        self._handle = load_kernels().open_peers(
            addresses, self._failure.data_ptr(), self.rank, direct_tokens, patience
        )

    def check(self):
        """Raise RankMissing if a launch of this rank has given up waiting for another one."""
        failure = int(self._failure_word[0])
        if failure:  # the missing rank plus 1, then the epoch, 32 bits each
            raise RankMissing(self.rank, (failure >> 32) - 1, failure & 0xFFFFFFFF)

    def entry_point(self, kernel, interface):
        """Return a function, called with an interface's arguments, that computes the summed layer.

        kernel: the name of the layer's function in the compiled library.
        """
        if kernel not in self._entry_points:
            run = partial(self._run, getattr(load_kernels(), kernel))
            self._entry_points[kernel] = takes(interface)(run)
        return self._entry_points[kernel]

    def _run(self, kernel, arguments):
        """Write the output, the last of `arguments`: the layer's, summed over the ranks."""
        self.check()
        *inputs, output = arguments
        tokens = output.shape[0]

        if tokens <= self.launch_tokens:
            kernel(*arguments, H_SPLIT, self._handle)
        elif tokens <= self.max_tokens:
            rows = self._rows.view(-1, HIDDEN_SIZE)[:tokens]
            if output.shape != rows.shape or output.dtype != rows.dtype:
                # makes `takes` raise an error that says what is wrong
                raise TypeError("output")
            kernel(*inputs, rows, H_SPLIT)
            sum_rows = torch.ops.symm_mem.two_shot_all_reduce_out
            sum_rows(rows.view(-1), "sum", self.group.group_name, output.view(-1))
        else:
            kernel(*arguments, H_SPLIT)
            dist.all_reduce(output, group=self.group)

    def _set_up_symmetric(self, count, dtype):
        """Return a tensor of `count` zeros that all ranks can access, and each rank's address of
        its own one.
        """
        # imported here: few versions of torch and few platforms have it, and only Peers needs it
        from torch.distributed import _symmetric_memory as symmetric_memory

        device = torch.device("cuda", torch.cuda.current_device())
        tensor = symmetric_memory.empty(count, dtype=dtype, device=device)
        addresses = symmetric_memory.rendezvous(
            tensor, self.group.group_name
        ).buffer_ptrs
        tensor.zero_()
        torch.cuda.synchronize()
        dist.barrier(self.group)
        return tensor, list(addresses)


def summed(kernel, interface):
    """Return an entry point of an interface whose output is the sum over the ranks of `peers`."""

    def call(*arguments, peers, **named):
        return peers.entry_point(kernel, interface)(*arguments, **named)

    return call
