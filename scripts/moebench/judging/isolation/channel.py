"""JSON and plain tensors through a socket, between two processes of which one is not trusted.

A message is the length of its JSON, the JSON, and the bytes of its tensors. Nothing is unpickled,
and whoever receives tensors says of which shape and dtype.
"""

import json
import socket
import struct
import time
from collections.abc import Sequence
from math import prod

import torch

LENGTH = struct.Struct("<Q")
MOST_JSON = 1 << 26  # bytes of a message's JSON; sources of a solution are in it


class Garbled(Exception):
    """What came is no message."""


class Channel:
    """One end of a socket. `deadline`: when to give up, by time.monotonic(); None: never.

    Raises TimeoutError at the deadline, OSError or EOFError where the other end is gone.
    """

    def __init__(self, connection: socket.socket):
        self.connection = connection
        self.deadline: float | None = None

    def send(self, message: dict, tensors: Sequence[torch.Tensor] = ()) -> None:
        text = json.dumps(message).encode()
        self._wait_no_longer()
        self.connection.sendall(LENGTH.pack(len(text)) + text)

        for tensor in tensors:
            self._wait_no_longer()
            self.connection.sendall(memoryview(_bytes_of(tensor).numpy()))

    def receive(self) -> dict:
        """Return the JSON of a message. Raises Garbled for anything else."""
        length = LENGTH.unpack(self._receive_bytes(LENGTH.size).numpy().tobytes())[0]
        if length > MOST_JSON:
            raise Garbled(f"a message of {length} bytes")

        text = self._receive_bytes(length).numpy().tobytes()
        try:
            message = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Garbled("what came is not JSON") from error
        if not isinstance(message, dict):
            raise Garbled("what came is not a JSON object")
        return message

    def receive_tensor(self, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
        """Return the next tensor of a message, on the CPU."""
        data = self._receive_bytes(prod(shape) * dtype.itemsize)
        return data.view(dtype).reshape(tuple(shape))

    def close(self) -> None:
        self.connection.close()

    def _receive_bytes(self, count: int) -> torch.Tensor:
        data = torch.empty(count, dtype=torch.uint8)
        view = memoryview(data.numpy())
        received = 0
        while received < count:
            self._wait_no_longer()
            got = self.connection.recv_into(view[received:])
            if got == 0:
                raise EOFError("the other end is closed")
            received += got
        return data

    def _wait_no_longer(self) -> None:
        if self.deadline is None:
            self.connection.settimeout(None)
            return

        seconds = self.deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("no answer in time")
        self.connection.settimeout(seconds)


def described(tensor: torch.Tensor) -> dict:
    """Return the dtype and the shape of a tensor as JSON has them."""
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
