"""Processes of solutions, as the run sees them; core/nursery.py is what they do themselves."""

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
from moebench.core.environment import neutral
from moebench.core.errors import CannotRun
from moebench.core.printable import printable, readable_log
from moebench.core.schema import Strict
from moebench.judging import fib
from moebench.judging.isolation import worker
from moebench.judging.isolation.channel import Channel, TensorKind

MARK = "MOEBENCH_NURSERY"  # in the environment of a nursery and all that descends from it
PATIENCE = 60  # seconds for a process to start
GRACE = 1  # seconds after a time-out, in which a process writes down where it is
LARGEST_FOLDER = 1 << 28  # bytes of files that a process may keep from one workload to the next
MOST_PRINTED = 1 << 17  # bytes of what a solution prints that are read
KILLED_PARENT = "it has killed its parent"


class Ended(Exception):
    """A solution's process has ended. The message says how: 'exit status 3', 'SIGSEGV'."""


class Answer(Strict):
    """What a solution's process answers. milliseconds: of a call, for each trial."""

    status: Literal["PASSED", "COMPILE_ERROR", "RUNTIME_ERROR"]
    outputs: list[TensorKind] = []
    milliseconds: list[Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]] = []


class Nursery:
    """Forks processes for solutions. It begins to import torch at once, and nobody waits for it."""

    def __init__(self):
        self.mark = secrets.token_hex(8)
        self.folders: list[str] = []  # in which its solutions have worked
        self.requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with fib.temporary_files():
            self.errors = tempfile.TemporaryFile()
        preload = None if torch.cuda.is_available() else worker.__name__
        start = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            f"import {nursery.__name__} as nursery; "
            f"nursery.serve({theirs.fileno()}, {preload!r})"
        )
        with theirs:
            subprocess.run(
                [sys.executable, "-I", "-X", "utf8", "-c", start],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self.errors,
                stderr=self.errors,
                env=neutral(dict(os.environ)) | {MARK: self.mark},
                cwd="/",
                start_new_session=True,
                check=True,
            )

    def fork(self, settings: dict, descriptors: list[int]) -> None:
        """Raises OSError where the nursery has ended."""
        self.folders.append(settings["folder"])
        socket.send_fds(self.requests, [json.dumps(settings).encode()], descriptors)

    def end_orphans(self) -> bool:
        """End what a solution has left behind that killed its supervisor; False where the nursery
        itself has ended.
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
        """Kill what descends from it, for where a solution has killed the nursery itself.

        Known by its environment, or by working in a solution's folder.
        """
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                works_in = process.cwd().removesuffix(" (deleted)")
                if works_in in self.folders or process.environ().get(MARK) == self.mark:
                    process.kill()


class Nurseries:
    """The nursery of this process: its first is started when it is wanted, others after it is
    killed. It ends with this process.
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
            errors = printable(read_printed(self.current.errors)).strip().splitlines()
            self.close()  # another nursery is started
        reason = errors[-1] if errors else "it was killed"
        raise CannotRun(f"no process can be started for solutions: {reason}")

    def clean_up(self) -> None:
        """End what solutions have left behind that killed those who watch them."""
        if self.current and not self.current.end_orphans():
            self.close()

    def close(self) -> None:
        if self.current:
            self.current.close()
        self.current = None


NURSERIES = Nurseries()


class SolutionProcess:
    """A process in which solutions run, with a folder and a file for what they print.

    memory: bytes that it may take for itself; None: as many as there are.
    """

    def __init__(self, source: Nursery, memory: int | None):
        with fib.temporary_files():
            self.folder = tempfile.mkdtemp(prefix="moebench-")
            self.printed = tempfile.TemporaryFile()  # has no name, so nobody removes it
        self.inputs_number = 0  # of the inputs that it has been sent; a Job has the number
        self.control, control_there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        data_here, data_there = socket.socketpair()
        self.channel = Channel(data_here)
        settings = {
            "module": worker.__name__,
            "folder": self.folder,
            "memory": memory,
            "threads": torch.get_num_threads(),
            "environment": neutral(dict(os.environ)),
        }
        descriptors = [control_there.fileno(), data_there.fileno(), self.printed.fileno()]
        with control_there, data_there, contextlib.suppress(OSError):
            source.fork(settings, descriptors)

    def has_started(self) -> bool:
        """Whether it runs, once its supervisor says so."""
        return "started" in self._next_message(PATIENCE)

    def is_alive(self) -> bool:
        """Whether it still waits for requests."""
        # the supervisor says by itself that it has ended, and nothing else that is not asked
        ready, _, _ = select.select([self.control], [], [], 0)
        return not ready

    def begin(self, seconds: float) -> None:
        """Forget what was printed before; answers take so long at most from here on."""
        os.ftruncate(self.printed.fileno(), 0)
        os.lseek(self.printed.fileno(), 0, os.SEEK_SET)
        self.deadline = time.monotonic() + seconds
        self.channel.deadline = self.deadline + GRACE

    def fills_its_folder(self) -> bool:
        """Whether it keeps so many files that others might find none of theirs can be written."""
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
        """Return the tensors that follow an answer. Raises as request."""
        with self._ended_if_it_is_gone():
            return list(self.channel.receive_tensors(kinds))

    def check_supervisor(self) -> None:
        """Raise Ended if a solution has killed its parent, although it goes on itself."""
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
    """Return the text in a file; of a long one its beginning and its end."""
    descriptor = file.fileno()
    size = os.fstat(descriptor).st_size
    if size <= MOST_PRINTED:
        return os.pread(descriptor, size, 0).decode(errors="replace")

    half = MOST_PRINTED // 2
    left_out = f"\n[{size - 2 * half} bytes are left out]\n"
    parts = [os.pread(descriptor, half, 0), left_out.encode()]
    parts.append(os.pread(descriptor, half, size - half))
    return b"".join(parts).decode(errors="replace")
