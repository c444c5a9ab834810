"""Expert ids of real batches: of this data set's workloads, or of a folder recorded in an engine.

An id file holds the experts of one layer and one batch: `*.pt`, a tensor as torch.save writes it, or `*.safetensors`
with one tensor in it: integers [T, top-k], global expert numbers, -1 for a token's unused slot.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from harness.core.errors import UserError
from harness.judging.calling import first_line
from harness.operators import catalogue, routing_model

ROUTER_INPUTS = ("routing_logits", "routing_bias")


@dataclass(frozen=True)
class Batch:
    """Global expert ids [T, top-k] int64 of one layer's batch. rank: the first whose share is taken."""

    name: str
    expert: torch.Tensor
    rank: int = 0


@dataclass(frozen=True, eq=False)
class Layer:
    """One rank's share of a batch: local expert numbers [T, top-k] int32, -1 for another rank's."""

    name: str
    expert: torch.Tensor

    @property
    def rows(self) -> int:
        return int((self.expert >= 0).sum())

    @property
    def active(self) -> int:
        return len(self.expert[self.expert >= 0].unique())


def of_workloads(geometry: str, num_tokens: int | None = None) -> list[Batch]:
    """The workloads' routing, as the route stage decides it from their logits and bias. T = 0 has none.

    num_tokens: leaves out batches that are larger than the smallest one with as many.
    """
    found, of = [], catalogue.GEOMETRIES[geometry]
    family = catalogue.operator(geometry)
    cases = [case for case in family.cases(geometry) if case.seq_len]
    enough = min((case.seq_len for case in cases if num_tokens and case.seq_len >= num_tokens), default=None)
    for case in cases:
        if enough is None or case.seq_len <= enough:
            inputs = family.tensors(case)
            logits, bias = (inputs[key].float().numpy() if key in inputs else None for key in ROUTER_INPUTS)
            expert = torch.from_numpy(routing_model.select(logits, bias, of).astype(np.int64))
            found.append(Batch(case.uuid[:8], expert, case.offset // of["num_local_experts"]))
    return found


def of_folder(folder: Path, geometry: str) -> list[Batch]:
    """The id files of a folder, by name. Raises UserError without any and for one with anything else in it."""
    if not folder.is_dir():
        raise UserError(f"--routing: {folder} is not a folder")
    files = sorted(path for path in folder.iterdir() if path.suffix in {".pt", ".safetensors"})
    if not files:
        raise UserError(f"--routing: {folder} holds no *.pt and no *.safetensors")
    return [Batch(path.stem, read_ids(path, geometry)) for path in files]


def read_ids(path: Path, geometry: str) -> torch.Tensor:
    """Expert ids of a file, [T, top_k] int64. Raises UserError."""
    try:
        read = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except Exception as error:  # torch and safetensors raise what their parsers raise
        raise UserError(f"{path.name}: not readable: {first_line(error)}") from error
    if isinstance(read, dict):
        if len(read) != 1:
            raise UserError(f"{path.name}: holds {len(read)} tensors, want one of expert ids")
        (read,) = read.values()
    of = catalogue.GEOMETRIES[geometry]
    top_k, experts = of["top_k"], of["num_experts"]
    kind = read.dtype if isinstance(read, torch.Tensor) else type(read).__name__
    if kind not in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        raise UserError(f"{path.name}: holds {kind}, want a tensor of integers")
    if read.dim() != 2 or read.shape[1] != top_k or not len(read):
        raise UserError(f"{path.name}: has shape {list(read.shape)}, want [T, {top_k}]")
    expert = read.long()
    if expert.min() < -1 or expert.max() >= experts:
        raise UserError(f"{path.name}: experts {expert.min()} to {expert.max()}, want -1 to {experts - 1}")
    ordered = expert.sort(1).values
    twice = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(1).nonzero()
    if len(twice):
        raise UserError(f"{path.name}: token {int(twice[0])} has an expert twice")
    return expert


def shares(batches: list[Batch], num_tokens: int, geometry: str) -> Iterator[Layer]:
    """Every rank's share of the first num_tokens tokens of every batch that has as many; ranks in the outer loop."""
    of = catalogue.GEOMETRIES[geometry]
    num_local = of["num_local_experts"]
    ranks = of["num_experts"] // num_local
    for step in range(ranks):
        for batch in batches:
            if len(batch.expert) >= num_tokens:
                rank = (batch.rank + step) % ranks
                local = batch.expert[:num_tokens] - rank * num_local
                local = torch.where((local >= 0) & (local < num_local), local, -1)
                yield Layer(f"{batch.name}/rank{rank}", local.to(torch.int32))


def longest(batches: list[Batch]) -> int:
    """Tokens of the longest batch."""
    return max(len(batch.expert) for batch in batches)


def layers_of(batches: list[Batch], num_tokens: int, geometry: str, limit: int) -> list[Layer]:
    """The first `limit` shares with a row in them. Raises UserError where there is none."""
    if num_tokens > longest(batches):
        raise UserError(f"T = {num_tokens}: the longest batch has {longest(batches)} tokens; record one with --routing")
    found = list(islice((layer for layer in shares(batches, num_tokens, geometry) if layer.rows), limit))
    if not found:
        raise UserError(f"T = {num_tokens}: no rank has a row in any batch")
    return found
