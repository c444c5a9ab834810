"""Which tokens go to which expert: drawn as for the workloads, or recorded in an engine.

A recording is a folder of `*.pt` files, each the experts of one layer and one batch as torch.save
writes a tensor: integers [T, top-k], global expert numbers, -1 for a token's unused slot.
"""

from pathlib import Path

import torch
from moebench.core.errors import UserError
from moebench.operators import routing_model
from moebench.operators.catalogue import GEOMETRIES
from moebench.operators.routing_kinds import offset_of


def local(expert: torch.Tensor, first: int, geometry: str) -> torch.Tensor:
    """Local expert numbers [T, top-k] int32 of the rank with this first expert; -1 for another
    rank's.
    """
    own = expert.long() - first
    return torch.where((own >= 0) & (own < GEOMETRIES[geometry]["num_local_experts"]), own, -1).to(
        torch.int32
    )


def drawn(geometry: str, num_tokens: int, number: int) -> list[torch.Tensor]:
    """So many layers' ids, as seen from a rank in the middle; the same in every run."""
    of, first, found = GEOMETRIES[geometry], offset_of(geometry), []
    for layer in range(number):
        seed = f"tune/{num_tokens}/{layer}"
        draw = routing_model.draw_typical(seed, num_tokens, first, of)
        found.append(local(torch.from_numpy(routing_model.select(*draw, of)), first, geometry))
    return found


def recorded(folder: Path, geometry: str, num_tokens: int, number: int) -> list[torch.Tensor]:
    """So many shares at most: each rank's of the first tokens of each file. Raises UserError where
    there is none.
    """
    of, batches = GEOMETRIES[geometry], []
    for path in sorted(folder.glob("*.pt")):
        try:
            ids = torch.load(path, "cpu", weights_only=True)
            if (
                ids.is_floating_point()
                or ids.dtype == torch.bool
                or ids.dim() != 2
                or ids.shape[1] != of["top_k"]
            ):
                raise ValueError(f"{ids.dtype} {list(ids.shape)}")
        except Exception as error:  # torch raises what its parsers raise
            got = str(error).partition("\n")[0]
            raise UserError(
                f"--routing: {path.name}: got {got}, want integers [T, {of['top_k']}]"
            ) from error
        batches.append(ids[:num_tokens])
    ranks = range(0, of["num_experts"], of["num_local_experts"])
    shares = [
        local(ids, first, geometry) for first in ranks for ids in batches if len(ids) == num_tokens
    ]
    found = [share for share in shares if (share >= 0).any()]
    if not found:
        raise UserError(
            f"--routing: got {folder}, want *.pt files of {num_tokens} tokens or more (--tokens)"
        )
    return found[:number]
