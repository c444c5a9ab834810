"""Which tokens go to which expert: drawn as for the workloads, or recorded in an engine.

A recording is a folder of `*.pt` files, each the experts of one layer and one batch as torch.save writes a tensor:
integers [T, top-k], global expert numbers, -1 for a token's unused slot.
"""

from itertools import islice
from pathlib import Path

import torch
from harness.core.errors import UserError
from harness.operators import routing_model
from harness.operators.catalogue import GEOMETRIES, RENORM


def local(expert: torch.Tensor, rank: int, num_local: int) -> torch.Tensor:
    """Local expert numbers [T, top-k] int32 of one rank; -1 for another rank's."""
    own = expert.long() - rank * num_local
    return torch.where((own >= 0) & (own < num_local), own, -1).to(torch.int32)


def drawn(geometry: str, num_tokens: int, number: int) -> list[torch.Tensor]:
    """So many layers' ids, as seen from a rank in the middle; the same in every run."""
    of = GEOMETRIES[geometry]
    num_local, found = of["num_local_experts"], []
    rank = of["num_experts"] // num_local * 3 // 8
    for layer in range(number):
        seed = f"tune/{num_tokens}/{layer}"
        draw = routing_model.draw_typical(seed, num_tokens, rank * num_local, of, biased=geometry not in RENORM)
        found.append(local(torch.from_numpy(routing_model.select(*draw, of)), rank, num_local))
    return found


def read_ids(path: Path, top_k: int) -> torch.Tensor:
    """Expert ids of a file, integers [T, top-k]. Raises UserError."""
    try:
        read = torch.load(path, "cpu", weights_only=True)
        if read.is_floating_point() or read.dtype == torch.bool or read.dim() != 2 or read.shape[1] != top_k:
            raise ValueError(f"{read.dtype} {list(read.shape)}")
    except Exception as error:  # torch raises what its parsers raise
        got = str(error).splitlines()[0]
        raise UserError(f"--routing: {path.name}: got {got}, want a tensor of integers [T, {top_k}]") from error
    return read


def recorded(folder: Path, geometry: str, num_tokens: int, number: int) -> list[torch.Tensor]:
    """So many shares at most: each rank's of the first tokens of each file. Raises UserError where there is none."""
    of = GEOMETRIES[geometry]
    batches = [read_ids(path, of["top_k"])[:num_tokens] for path in sorted(folder.glob("*.pt"))]
    shares = (
        local(expert, rank, of["num_local_experts"])
        for rank in range(of["num_experts"] // of["num_local_experts"])
        for expert in batches
        if len(expert) == num_tokens
    )
    if not (found := list(islice((share for share in shares if (share >= 0).any()), number))):
        raise UserError(f"--routing: got {folder}, want *.pt files of {num_tokens} tokens or more (--tokens)")
    return found
