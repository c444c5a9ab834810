"""A workload before it is written down: its name, its record, and the random numbers that its
tensors are made from.

They are the same to the last bit everywhere: Philox bits, integer sums, exactly rounded operations,
no maths library.
"""

import hashlib
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
import torch
from flashinfer_bench import Trace, Workload

from moebench.core import paths

HALF_WORDS = 8
# A sum of 8 uniform 16-bit integers has this mean, and a standard deviation of 53509.9.
MEAN = HALF_WORDS * 65535 / 2
PER_STD = 1 / 53509.9


@dataclass(frozen=True)
class Case:
    """An operator adds what else its tensors are made from. uuid: the seed of every tensor, too."""

    layer_key: str
    name: str
    uuid: str
    seq_len: int


def uuid_of(definition: str, name: str) -> str:
    """Return the uuid of a case that no public data set has: the same one everywhere."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{definition}/{name}"))


def trace(
    case: Case,
    definition: str,
    random: Iterable[str],
    stored: Iterable[str],
    scalars: Mapping[str, float] | None = None,
) -> Trace:
    """Return the case as a FIB workload trace: inputs that FIB draws, inputs in the case's
    safetensors file, and scalars.
    """
    blob = paths.blob_file(definition, case.uuid)
    inputs = {name: {"type": "random"} for name in random}
    inputs |= {name: {"type": "safetensors", "path": blob, "tensor_key": name} for name in stored}
    inputs |= {name: {"type": "scalar", "value": value} for name, value in (scalars or {}).items()}
    workload = Workload(axes={"seq_len": case.seq_len}, inputs=inputs, uuid=case.uuid)
    return Trace(definition=definition, workload=workload)


def stored_tensors(workload: Workload, root: Path) -> dict[str, torch.Tensor]:
    """Return the inputs that lie in safetensors files of the data set at root; without those whose
    file is not there.
    """
    tensors = {}
    for name, spec in workload.inputs.items():
        if spec.type != "safetensors" or not (root / spec.path).is_file():
            continue
        with safetensors.safe_open(root / spec.path, framework="pt") as file:
            if spec.tensor_key in file.keys():
                tensors[name] = file.get_tensor(spec.tensor_key)
    return tensors


def bits(seed: str, count: int) -> np.ndarray:
    """Return `count` uint64 words of the Philox stream that belongs to `seed`."""
    key = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:16], "little")
    return np.random.Philox(key=key).random_raw(count)


def integers(seed: str, count: int, bound: int) -> np.ndarray:
    """Return `count` int64 in [0, bound), for a bound far below 2**32."""
    return (bits(seed, count) % np.uint64(bound)).astype(np.int64)


def normal(seed: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return numbers close to normal, mean 0 and deviation 1, float64; sums of integers, so within
    +-4.9.
    """
    count = int(np.prod(shape))
    words = bits(seed, count * HALF_WORDS // 4).astype("<u8")
    sums = words.view("<u2").reshape(count, HALF_WORDS).sum(axis=1, dtype=np.int64)
    return ((sums - MEAN) * PER_STD).reshape(shape)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return the float64 sigmoid for |x| <= 16, from products and sums alone; relative error below
    1e-12.
    """
    step = x * (-1 / 64)
    power = np.ones_like(step)
    # In place: these arrays are large, and new ones take four times as long.
    for n in range(12, 0, -1):
        power *= step
        power /= n
        power += 1
    for _ in range(6):
        power *= power
    power += 1
    return np.divide(1, power, out=power)
