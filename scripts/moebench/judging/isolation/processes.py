"""Processes of solutions, as the run sees them.

Nurseries.start asks the nursery, a process that core/nursery.py describes, to fork a solution's
process; a SolutionProcess is the run's end of its two sockets. Through `control` its supervisor
says {"started": PID} and {"exit": CODE}; through `channel` it answers requests.
"""

import atexit
import contextlib
import json
import os
import secrets
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import psutil
import torch
from pydantic import Field

from moebench.core import nursery
from moebench.core.environment import solution_environment
from moebench.core.errors import CannotRun
from moebench.core.printable import printable, readable_log
from moebench.core.schema import Strict
from moebench.judging import fib
from moebench.judging.isolation import worker
from moebench.judging.isolation.channel import Channel, TensorKind

# a variable in the environment of a nursery and of its descendants
MARK = "MOEBENCH_NURSERY"
PATIENCE = 60  # seconds that a supervisor has to say something
GRACE = 1  # seconds after a time-out in which a process writes down where it is
# bytes of files that a process may keep from one workload to the next
LARGEST_FOLDER = 1 << 28
MOST_PRINTED = 1 << 17  # bytes of what a solution prints that are read
KILLED_PARENT = "it has killed its parent"


class Ended(Exception):
    """A solution's process has ended. The message says how: 'exit status 3', 'SIGSEGV'."""


class Answer(Strict):
    """What a solution's process answers to a request.

    outputs: kinds of the tensors that a call has returned. milliseconds: of a call, timed on the
    inputs of each trial.
    """

    status: Literal["PASSED", "COMPILE_ERROR", "RUNTIME_ERROR"]
    outputs: list[TensorKind] = []
    milliseconds: list[
        Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
    ] = []


class Nursery:
    """A process that forks those of solutions. It begins to import torch at once, and nobody waits
    for that.

    mark: which nursery a process descends from. folders: in which its solutions have worked.
    """

    def __init__(self):
        self.mark = secrets.token_hex(8)
        self.folders: list[str] = []
        self.requests, nursery_end = socket.socketpair(
            socket.AF_UNIX, socket.SOCK_SEQPACKET
        )
        with fib.temporary_files():
            self.errors = tempfile.TemporaryFile()
        preload = None if torch.cuda.is_available() else worker.__name__
        start = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            f"import {nursery.__name__} as nursery; "
            f"nursery.serve({nursery_end.fileno()}, {preload!r})"
        )
        with nursery_end:
            subprocess.run(
                [sys.executable, "-I", "-X", "utf8", "-c", start],
                pass_fds=[nursery_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self.errors,
                stderr=self.errors,
                env=solution_environment(dict(os.environ)) | {MARK: self.mark},
                cwd="/",
                start_new_session=True,
                check=True,
            )

    def fork(self, settings: dict, descriptors: list[int]) -> None:
        """Fork a solution's process: see nursery.serve. Raises OSError where this one has ended."""
        self.folders.append(settings["folder"])
        socket.send_fds(self.requests, [json.dumps(settings).encode()], descriptors)

    def end_orphans(self) -> bool:
        """End the descendants of a solution that has killed its supervisor. Return False where the
        nursery itself has ended.
        """
        try:
            self.requests.send(b"{}")
        except OSError:
            return False
        return True

    def close(self) -> None:
        """End it and all that descends from it, and wait until that has ended."""
        with contextlib.suppress(OSError):
            self.requests.shutdown(socket.SHUT_WR)
            self.requests.settimeout(PATIENCE)
            self.requests.recv(1)
        self.requests.close()
        self.errors.close()
        self.end_marked()

    def end_marked(self) -> None:
        """Kill its descendants, for a solution may have killed the nursery itself.

        They are known by their environment, or by working in a solution's folder.
        """
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                works_in = process.cwd().removesuffix(" (deleted)")
                if works_in in self.folders or process.environ().get(MARK) == self.mark:
                    process.kill()


class Nurseries:
    """Starts this process's nursery when it is wanted, and another one where a solution has killed
    it. The last ends with this process.
    """

    def __init__(self):
        self.current: Nursery | None = None
        atexit.register(self.close)

    def get(self) -> Nursery:
        if self.current is None:
            self.current = Nursery()
        return self.current

    def start(self, memory: int | None) -> "SolutionProcess":
        """Return a process that has started. Raises CannotRun where none does."""
        for _ in range(2):
            process = SolutionProcess(self.get(), memory)
            if process.has_started():
                return process

            process.close()
            printed = printable(read_printed(self.current.errors))
            errors = printed.strip().splitlines()
            self.close()  # another nursery is started
        reason = errors[-1] if errors else "it was killed"
        raise CannotRun(f"no process can be started for solutions: {reason}")

    def clean_up(self) -> None:
        """End the descendants of solutions that have killed their supervisors."""
        if self.current and not self.current.end_orphans():
            self.close()

    def close(self) -> None:
        if self.current:
            self.current.close()
        self.current = None


NURSERIES = Nurseries()


class SolutionProcess:
    """A process in which solutions run, with a folder to work in and a file for what they print.

    memory: bytes that it may take for itself; None: as many as there are. inputs_number: that of
    the inputs which it holds (runner.Job), 0 without any.
    """

    def __init__(self, parent: Nursery, memory: int | None):
        with fib.temporary_files():
            self.folder = tempfile.mkdtemp(prefix="moebench-")
            self.printed = tempfile.TemporaryFile()  # has no name, so nobody removes it
        self.inputs_number = 0
        self.control, supervisor_end = socket.socketpair(
            socket.AF_UNIX, socket.SOCK_SEQPACKET
        )
        run_end, solution_end = socket.socketpair()
        self.channel = Channel(run_end)
        settings = {
            "module": worker.__name__,
            "folder": self.folder,
            "memory": memory,
            "threads": torch.get_num_threads(),
            "environment": solution_environment(dict(os.environ)),
        }
        descriptors = [
            supervisor_end.fileno(),
            solution_end.fileno(),
            self.printed.fileno(),
        ]
        with supervisor_end, solution_end, contextlib.suppress(OSError):
            parent.fork(settings, descriptors)

    def has_started(self) -> bool:
        """Wait until its supervisor says that it runs, and return whether it does."""
        return "started" in self._next_message(PATIENCE)

    def is_alive(self) -> bool:
        """Whether it still waits for requests."""
        # unless it is asked, the supervisor says nothing but that the process has ended
        has_news, _, _ = select.select([self.control], [], [], 0)
        return not has_news

    def begin(self, seconds: float) -> None:
        """Forget what was printed before, and give all answers from here on so long together."""
        os.ftruncate(self.printed.fileno(), 0)
        os.lseek(self.printed.fileno(), 0, os.SEEK_SET)
        self.deadline = time.monotonic() + seconds
        self.channel.deadline = self.deadline + GRACE

    def fills_its_folder(self) -> bool:
        """Whether its files take so much of the disk that others may lack room for theirs."""
        size = 0
        with contextlib.suppress(OSError):  # files may vanish meanwhile
            for path in Path(self.folder).rglob("*"):
                size += path.lstat().st_blocks * 512
        return size > LARGEST_FOLDER

    def request(self, message: dict, tensors: Sequence[torch.Tensor] = ()) -> Answer:
        """Return the answer to a request. Raises TimeoutError, and Ended where the process has."""
        remaining = self.deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        with self._ended_if_it_is_gone():
            self.channel.send(message | {"seconds": remaining}, tensors)
            return Answer.model_validate_json(self.channel.receive())

    def receive_tensors(self, kinds: list[TensorKind]) -> list[torch.Tensor]:
        """Return the tensors that follow an answer. Raises as `request`."""
        with self._ended_if_it_is_gone():
            return list(self.channel.receive_tensors(kinds))

    def check_supervisor(self) -> None:
        """Raise Ended if the solution has killed its supervisor and goes on without one."""
        with contextlib.suppress(OSError):
            self.control.send(json.dumps({"alive": True}).encode())
        if "alive" not in self._next_message(PATIENCE):
            raise Ended(KILLED_PARENT)

    def printed_text(self) -> str:
        """Return what was printed since `begin`, cut to some lines, without control characters."""
        return readable_log(read_printed(self.printed))

    def close(self) -> None:
        """End it with all its descendants, and wait until they have ended."""
        self.channel.close()
        with contextlib.suppress(OSError):
            self.control.shutdown(socket.SHUT_WR)
        while self._next_message(PATIENCE):
            pass  # until the supervisor has ended
        self.control.close()
        self.printed.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextlib.contextmanager
    def _ended_if_it_is_gone(self) -> Iterator[None]:
        """Raise Ended, with how, for any error of the channel but a time-out."""
        try:
            yield
        except TimeoutError:
            raise
        except OSError as error:
            code = self._next_message(PATIENCE).get("exit")
            raise Ended(KILLED_PARENT if code is None else fib.ending(code)) from error
        except ValueError as error:
            raise Ended("its answer cannot be read") from error

    def _next_message(self, seconds: float) -> dict:
        """Return what the supervisor says next; {} where it has ended, or says nothing in time."""
        self.control.settimeout(seconds)
        try:
            message = self.control.recv(1 << 12)
        except OSError:
            return {}
        return json.loads(message) if message else {}


def read_printed(file) -> str:
    """Return the text of an open file; of a long one its beginning and its end."""
    descriptor = file.fileno()
    size = os.fstat(descriptor).st_size
    if size <= MOST_PRINTED:
        return os.pread(descriptor, size, 0).decode(errors="replace")

    half = MOST_PRINTED // 2
    beginning = os.pread(descriptor, half, 0).decode(errors="replace")
    end = os.pread(descriptor, half, size - half).decode(errors="replace")
    return f"{beginning}\n[{size - 2 * half} bytes are left out]\n{end}"
