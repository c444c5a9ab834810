"""JSON and tensors through a socket, between two processes of which one is not trusted.

A message is the length of its JSON (8 bytes), the JSON, and the bytes of its tensors one after the
other. Nothing is unpickled. Whoever receives tensors says which dtypes and shapes they have.
"""

import json
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from math import prod

import torch

from moebench.core.schema import Strict

LENGTH = struct.Struct("<Q")
MOST_JSON = 1 << 26  # bytes of a message's JSON; sources of a solution are in it


class TensorKind(Strict):
    """The dtype and the shape of a tensor: TensorKind(dtype="bfloat16", shape=[7, 7168])."""

    dtype: str
    shape: list[int]

    def __str__(self) -> str:
        return f"{self.shape} {self.dtype}"


def kind_of(tensor: torch.Tensor) -> TensorKind:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorKind(dtype=dtype, shape=list(tensor.shape))


class Channel:
    """One end of a socket. `deadline`: when to give up, by time.monotonic(); None: never.

    Raises TimeoutError at the deadline, and any other OSError where the other end is gone.
    """

    def __init__(self, connection: socket.socket):
        self.connection = connection
        self.deadline: float | None = None

    def send(self, message: dict, tensors: Sequence[torch.Tensor] = ()) -> None:
        text = json.dumps(message).encode()
        self._send_bytes(LENGTH.pack(len(text)) + text)
        for tensor in tensors:
            on_cpu = tensor.detach().cpu().contiguous()
            self._send_bytes(memoryview(on_cpu.reshape(-1).view(torch.uint8).numpy()))

    def _send_bytes(self, data: bytes | memoryview) -> None:
        self._set_timeout()
        self.connection.sendall(data)

    def receive(self) -> bytes:
        """Return the JSON of a message. Raises ValueError for one that is too long."""
        (length,) = LENGTH.unpack(self._receive_bytes(LENGTH.size).numpy())
        if length > MOST_JSON:
            raise ValueError(f"a message of {length} bytes")
        return self._receive_bytes(length).numpy().tobytes()

    def receive_tensors(self, kinds: Sequence[TensorKind]) -> Iterator[torch.Tensor]:
        """Yield the tensors that follow a message, on the CPU."""
        for kind in kinds:
            dtype = getattr(torch, kind.dtype)
            data = self._receive_bytes(prod(kind.shape) * dtype.itemsize)
            yield data.view(dtype).reshape(kind.shape)

    def close(self) -> None:
        self.connection.close()

    def _receive_bytes(self, count: int) -> torch.Tensor:
        data = torch.empty(count, dtype=torch.uint8)
        view = memoryview(data.numpy())
        received = 0
        while received < count:
            self._set_timeout()
            size = self.connection.recv_into(view[received:])
            if size == 0:
                raise ConnectionError("the other end is closed")
            received += size
        return data

    def _set_timeout(self) -> None:
        """Let the socket wait until the deadline. Raises TimeoutError where that is past."""
        seconds = None
        if self.deadline is not None:
            seconds = self.deadline - time.monotonic()
            if seconds <= 0:
                raise TimeoutError("no answer in time")
        self.connection.settimeout(seconds)
