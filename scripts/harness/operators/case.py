"""A workload before it is written down, and what every operator family does with one."""

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors
import torch
from flashinfer_bench import Trace, Workload

from harness.core import paths


@dataclass(frozen=True)
class Case:
    """A family adds what else its tensors are made from. uuid: the seed of every tensor, too."""

    geometry: str
    name: str
    uuid: str
    seq_len: int

    @property
    def size(self) -> str:
        return f"T={self.seq_len}"

    @property
    def label(self) -> str:
        """For a line of progress or a table; a case named after its size gets no second name."""
        return self.size if self.name.startswith("T=") else f"{self.name} {self.size}"


def uuid_of(definition: str, name: str) -> str:
    """uuid of a case that no public data set has: the same one everywhere."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{definition}/{name}"))


def trace(
    case: Case,
    definition: str,
    random: Iterable[str],
    stored: Iterable[str],
    scalars: Mapping[str, float] | None = None,
) -> Trace:
    """The case as a FIB workload trace: inputs that FIB draws, inputs in the case's safetensors file, and scalars."""
    blob = paths.blob_file(definition, case.uuid)
    inputs = {name: {"type": "random"} for name in random}
    inputs |= {name: {"type": "safetensors", "path": blob, "tensor_key": name} for name in stored}
    inputs |= {name: {"type": "scalar", "value": value} for name, value in (scalars or {}).items()}
    workload = Workload(axes={"seq_len": case.seq_len}, inputs=inputs, uuid=case.uuid)
    return Trace(definition=definition, workload=workload)


def stored_tensors(workload: Workload, root: Path) -> dict[str, torch.Tensor]:
    """The inputs that lie in safetensors files of the data set at root; without those whose file is not there."""
    found = {}
    for name, spec in workload.inputs.items():
        if spec.type == "safetensors" and (path := root / spec.path).is_file():
            with safetensors.safe_open(path, framework="pt") as file:
                if spec.tensor_key in file.keys():
                    found[name] = file.get_tensor(spec.tensor_key)
    return found
