"""Fork processes for solutions: the run asks the nursery, which forks a supervisor, which forks the
solution's process.

The nursery imports once what solutions need. It is nobody's child, so a solution that kills all its
ancestors does not reach the run. A supervisor ends the solution's process with all its descendants,
those in sessions of their own too, as soon as the run closes its end of a socket, or dies.

This module runs in these three processes; judging/isolation/processes.py is the run's side.
"""

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import resource
import select
import shutil
import signal
import socket
import sys
import tempfile
import time

import psutil

PR_SET_PDEATHSIG = 1  # of prctl(2): a signal comes when the parent dies
# of prctl(2): orphaned descendants become this process's children
PR_SET_CHILD_SUBREAPER = 36
# bytes that a solution may write into one file, what it prints included
LARGEST_FILE = 1 << 30
LONGEST_MESSAGE = 1 << 18  # bytes; the environment is in it
PATIENCE = 5  # seconds for which descendants are killed before the rest is left alone


def serve(descriptor: int, preload: str | None) -> None:
    """Be the nursery: fork a supervisor for each message on a socket, until the run closes it.

    A message is JSON, the settings of `become_solution`, with three descriptors: the supervisor's
    socket, the solution's socket, and the file for what is printed. A message without descriptors
    forks nothing. On every message orphans are ended first: descendants whose supervisor a solution
    has killed. descriptor: of the socket. preload: a module to import before the first
    fork; None where that would use CUDA, which does not survive a fork.
    """
    if os.fork():
        os._exit(0)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    if preload:
        importlib.import_module(preload)

    gc.freeze()
    supervisors = set()
    requests = socket.socket(fileno=descriptor)
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, LONGEST_MESSAGE, 3)
        if not message:
            break

        end_descendants(spared=supervisors)
        if not descriptors:
            continue

        supervisor = os.fork()
        if supervisor == 0:
            requests.close()
            supervise(json.loads(message), *descriptors)
            os._exit(0)
        supervisors.add(supervisor)
        for each in descriptors:
            os.close(each)

    # supervisors end by themselves, as the run's end of their sockets is closed with it
    for supervisor in supervisors:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(supervisor, 0)
    end_descendants(spared=set())


def end_descendants(spared: set[int]) -> None:
    """Kill and reap all descendants of this process but the spared children and theirs.

    spared: pids of children, from which those are taken that have ended.
    """
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        reap(spared)
        # a killed process whose threads still end cannot be reaped yet
        children = psutil.Process().children()
        remaining = [child for child in children if child.pid not in spared]
        if not remaining:
            return

        for child in remaining:
            with contextlib.suppress(psutil.Error):
                for process in child.children(recursive=True):
                    process.kill()
                child.kill()
        time.sleep(0.01)


def reap(pids: set[int]) -> None:
    """Reap all children that have ended, and take them out of `pids`."""
    with contextlib.suppress(ChildProcessError):
        while True:
            ended, _ = os.waitpid(-1, os.WNOHANG)
            if not ended:
                return
            pids.discard(ended)


def supervise(settings: dict, control_descriptor: int, data: int, log: int) -> None:
    """Be a supervisor: fork the solution's process, wait until it ends or the run wants no more,
    and end all its descendants.

    The run is sent {"started": PID}, and {"exit": CODE} with -9 for SIGKILL. data, log: descriptors
    of the solution's socket and of the file for what is printed.
    """
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    control = socket.socket(fileno=control_descriptor)
    process = os.fork()
    if process == 0:
        control.close()
        become_solution(settings, data, log)
        os._exit(0)

    os.close(data)
    os.close(log)
    tell(control, {"started": process})
    status = wait_for_end(process, control)
    end_descendants(spared=set())
    # which a run that was killed does not
    shutil.rmtree(settings["folder"], ignore_errors=True)
    if status is not None:
        tell(control, {"exit": os.waitstatus_to_exitcode(status)})


def tell(control: socket.socket, message: dict) -> None:
    """Send the run a message, unless it has ended."""
    with contextlib.suppress(OSError):
        control.send(json.dumps(message).encode())


def wait_for_end(process: int, control: socket.socket) -> int | None:
    """Return the wait status of a process that has ended, or None once the run has closed its end
    of a socket.

    Whatever the run sends is sent back: it asks whether this supervisor still lives.
    """
    ended = os.pidfd_open(process)
    while True:
        ready, _, _ = select.select([ended, control], [], [])
        if ended in ready:
            return os.waitpid(process, 0)[1]

        question = control.recv(1 << 12)
        if not question:
            return None
        control.send(question)


def become_solution(settings: dict, data: int, log: int) -> None:
    """Be the solution's process: do what the run asks for on a socket, until it closes that.

    settings: `module`, whose `serve` takes the socket and the settings; `folder`, to work in and
    for temporary files; `environment`; `memory`, bytes that the process may take beside what it has
    now, or null; `threads`, of torch.
    """
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    print_into(log)
    faulthandler.enable()

    os.environ.clear()
    os.environ.update(settings["environment"], TMPDIR=settings["folder"])
    tempfile.tempdir = None

    module = importlib.import_module(settings["module"])
    limit_resources(settings["memory"])
    module.serve(socket.socket(fileno=data), settings)


def print_into(log: int) -> None:
    """Have standard output and errors go to a descriptor, and nothing come from standard input."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    sys.stdout = open(1, "w", encoding="utf-8", buffering=1, closefd=False)
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)


def limit_resources(memory: int | None) -> None:
    """Limit files, core dumps and, to `memory` bytes beside what it has now, this process's
    data.
    """
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory is None:
        return

    free = min(memory, psutil.virtual_memory().available)
    limit = psutil.Process().memory_info().data + free
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
