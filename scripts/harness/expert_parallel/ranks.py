"""Processes of a job, one a rank: started here or by torchrun, and what happens when one of them dies."""

import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import connection, get_context
from pathlib import Path

import torch
import torch.distributed as dist

from harness.core.errors import CannotRun, UserError
from harness.evaluation.calling import first_line

GRACE = 2.0  # s in which the others of a dead rank may end by themselves, to tell who was first


@contextmanager
def group(rank: int, ranks: int, init_method: str, timeout: float) -> Iterator[str]:
    """This rank's device, while it is one of the group. Raises CannotRun, in one line, where another rank has left."""
    warnings.filterwarnings("ignore", r"`torch\.distributed\.", FutureWarning)  # names that torch 2.8 to 2.13 share
    device = "cpu"
    if torch.cuda.is_available():
        at = int(os.environ.get("LOCAL_RANK", rank))
        torch.cuda.set_device(at)
        device = f"cuda:{at}"
    elif not started_elsewhere():
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    backend = "gloo" if device == "cpu" else "nccl"
    limit = timedelta(seconds=timeout)
    eager = {} if device == "cpu" else {"device_id": torch.device(device)}
    dist.init_process_group(backend, init_method, limit, ranks, rank, **eager)
    try:
        yield device
        dist.barrier()
    except RuntimeError as error:  # of gloo and NCCL, and of a kernel
        if "gloo" in str(error) or isinstance(error, dist.DistBackendError):
            raise CannotRun(f"rank {rank}: another rank has left, or is late: {first_line(error)}") from error
        raise
    dist.destroy_process_group()


def enter(rank: int, ranks: int, init_method: str, timeout: float, work: Callable, arguments: tuple) -> None:
    """The process of a rank that was started here."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    try:
        with group(rank, ranks, init_method, timeout) as device:
            status = work(rank, ranks, device, *arguments)
    except UserError as error:
        print(error, file=sys.stderr, flush=True)
        status = 1
    sys.stdout.flush()
    os._exit(status)  # a group that has lost a rank may not be taken down


def started_elsewhere() -> bool:
    """By torchrun, or anybody who sets its variables."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys()


def run_ranks(ranks: int, timeout: float, work: Callable[..., int], *arguments) -> int:
    """Run work(rank, ranks, device, *arguments) on every rank; the status of the worst, or of this one under torchrun.

    Raises CannotRun where a rank dies; the others are ended then. timeout: s that a rank waits for another.
    """
    if started_elsewhere():
        with group(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://", timeout) as device:
            return work(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), device, *arguments)
    context = get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="expert-parallel-") as folder:
        init_method = f"file://{Path(folder) / 'rendezvous'}"
        known = [(rank, ranks, init_method, timeout, work, arguments) for rank in range(ranks)]
        processes = [context.Process(target=enter, args=each) for each in known]
        try:
            for process in processes:
                process.start()
            return watched(processes)
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                process.join()


def watched(processes: list) -> int:
    """Wait until all have ended. Raises CannotRun, at once, for one that was ended by a signal."""
    running = {process.sentinel: process for process in processes}
    failed = False
    while running:
        for sentinel in connection.wait(list(running), GRACE if failed else None):
            running.pop(sentinel).join()
        dead = [rank for rank, process in enumerate(processes) if (process.exitcode or 0) < 0]
        if dead:
            name = signal.Signals(-processes[dead[0]].exitcode).name
            raise CannotRun(f"rank {dead[0]} of {len(processes)} died by {name}; the others are ended")
        if failed and running:
            raise CannotRun("a rank has failed, see above; those that still wait for it are ended")
        failed = any(process.exitcode for process in processes)
    return max(process.exitcode for process in processes)
