"""Processes of a job, one a rank: started here or by torchrun, and what happens when one of them dies."""

import logging
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing import ProcessExitedException, spawn

from harness.core.errors import CannotRun, UserError
from harness.judging.calling import first_line


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
    try:
        with group(rank, ranks, init_method, timeout) as device:
            status = work(rank, ranks, device, *arguments)
            sys.stdout.flush()  # as soon as a rank ends with a status, the others are ended
    except UserError as error:
        print(error, file=sys.stderr, flush=True)
        status = 1
    os._exit(status)  # a group that has lost a rank may not be taken down


def started_elsewhere() -> bool:
    """By torchrun, or anybody who sets its variables."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys()


def run_ranks(ranks: int, timeout: float, work: Callable[..., int], *arguments) -> int:
    """Run work(rank, ranks, device, *arguments) on every rank; the status of one that failed, or 0.

    Under torchrun this process is a rank. Raises CannotRun where a rank dies; the others are ended then. timeout: s
    that a rank waits for another.
    """
    if started_elsewhere():
        with group(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://", timeout) as device:
            return work(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), device, *arguments)
    with tempfile.TemporaryDirectory(prefix="expert-parallel-") as folder:
        known = ranks, f"file://{Path(folder) / 'rendezvous'}", timeout, work, arguments
        logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)  # it tells whom it ends, with a stamp
        context = spawn(enter, known, ranks, join=False, daemon=True)
        try:
            while not context.join():
                pass
        except ProcessExitedException as error:
            for rank, process in enumerate(context.processes):
                if process.exitcode < 0 and process.exitcode != -signal.SIGTERM:  # which ended the others
                    name = signal.Signals(-process.exitcode).name
                    raise CannotRun(f"rank {rank} of {ranks} died by {name}; the others are ended") from error
            return error.exit_code  # the rank has said why
    return 0
