"""Routing as it really happens: expert ids of this data set's workloads, or of a folder recorded in an engine.

An id file holds the experts of one layer and one batch: `*.pt`, a tensor as torch.save writes it, or `*.safetensors`
with one tensor in it: integers [T, 8], global expert numbers, -1 for a token's unused slot.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from definitions.moe_fp8_block_scale import NUM_EXPERTS, NUM_LOCAL_EXPERTS, TOP_K
from harness.core import paths
from harness.operators import routing_model, workloads


@dataclass(frozen=True)
class Batch:
    """Global expert ids [T, 8] int64 of one layer's batch. rank: the one that is looked at first."""

    name: str
    expert: torch.Tensor
    rank: int = 0


@dataclass(frozen=True)
class Layer:
    """What one rank sees of a batch: local expert numbers [T, 8] int32, -1 for another rank's."""

    name: str
    expert: torch.Tensor

    @property
    def rows(self) -> int:
        return int((self.expert >= 0).sum())

    @property
    def active(self) -> int:
        return len(self.expert[self.expert >= 0].unique())


def of_workloads(geometry: str, definition: str) -> list[Batch]:
    """The workloads' routing, as the route stage decides it from their logits and bias. T = 0 has none."""
    workloads.make(geometry)
    found = []
    for case in workloads.cases_by_uuid(geometry).values():
        if case.seq_len:
            stored = load_file(paths.ROOT / paths.blob_file(definition, case.uuid))
            logits, bias = (stored[name].float().numpy() for name in ("routing_logits", "routing_bias"))
            expert = routing_model.select(logits, bias).astype(np.int64)
            found.append(Batch(case.uuid[:8], torch.from_numpy(expert), case.offset // NUM_LOCAL_EXPERTS))
    return found


def of_folder(folder: Path) -> list[Batch]:
    """The id files of a folder, by name. Raises ValueError, one line, where there is none or one that is no id file."""
    if not folder.is_dir():
        raise ValueError(f"--routing: {folder} is not a folder")
    files = sorted(path for path in folder.iterdir() if path.suffix in {".pt", ".safetensors"})
    if not files:
        raise ValueError(f"--routing: {folder} holds no *.pt and no *.safetensors")
    return [Batch(path.stem, read_ids(path)) for path in files]


def read_ids(path: Path) -> torch.Tensor:
    """Expert ids of a file, checked. Raises ValueError, one line."""
    try:
        read = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"{path.name}: not readable: {str(error).strip().splitlines()[0]}") from error
    if isinstance(read, dict):
        if len(read) != 1:
            raise ValueError(f"{path.name}: holds {len(read)} tensors, want one of expert ids")
        (read,) = read.values()
    if not isinstance(read, torch.Tensor) or read.is_floating_point() or read.dtype == torch.bool:
        kind = read.dtype if isinstance(read, torch.Tensor) else type(read).__name__
        raise ValueError(f"{path.name}: holds {kind}, want a tensor of integers")
    if read.dim() != 2 or read.shape[1] != TOP_K or not len(read):
        raise ValueError(f"{path.name}: has shape {list(read.shape)}, want [T, {TOP_K}]")
    expert = read.long()
    if expert.min() < -1 or expert.max() >= NUM_EXPERTS:
        raise ValueError(
            f"{path.name}: experts {int(expert.min())} to {int(expert.max())}, want -1 to {NUM_EXPERTS - 1}"
        )
    ordered = expert.sort(1).values
    twice = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(1).nonzero()
    if len(twice):
        raise ValueError(f"{path.name}: token {int(twice[0])} has an expert twice")
    return expert


def views(batches: list[Batch], num_tokens: int) -> Iterator[Layer]:
    """Every rank's share of the first num_tokens tokens of every batch that has as many; a new rank of each in turn."""
    ranks = NUM_EXPERTS // NUM_LOCAL_EXPERTS
    for step in range(ranks):
        for batch in batches:
            if len(batch.expert) >= num_tokens:
                rank = (batch.rank + step) % ranks
                local = batch.expert[:num_tokens] - rank * NUM_LOCAL_EXPERTS
                local = torch.where((local >= 0) & (local < NUM_LOCAL_EXPERTS), local, -1)
                yield Layer(f"{batch.name}/rank{rank}", local.to(torch.int32))


def layers_of(batches: list[Batch], num_tokens: int, limit: int) -> list[Layer]:
    """The first `limit` views with a row in them.

    Raises ValueError, one line, where no batch is that long or no rank has a row.
    """
    longest = max(len(batch.expert) for batch in batches)
    if num_tokens > longest:
        raise ValueError(f"T = {num_tokens}: the longest batch has {longest} tokens; record one with --routing")
    found = []
    for layer in views(batches, num_tokens):
        if layer.rows:
            found.append(layer)
        if len(found) == limit:
            break
    if not found:
        raise ValueError(f"T = {num_tokens}: no rank has a row in any batch")
    return found
