"""The routing that tune.py uses: drawn as for the workloads, or recorded in an engine.

A recording is a folder of `*.pt` files, each a tensor written by torch.save with the experts of a
layer and a batch: integers [T, top-k], global expert numbers, -1 for an unused slot of a token.
"""

from pathlib import Path

import torch
from moebench.core.errors import UserError
from moebench.operators import catalogue
from moebench.operators.routing import trained_router
from moebench.operators.routing.kinds import offset_of


def local(expert: torch.Tensor, first: int, layer_key: str) -> torch.Tensor:
    """Return the experts [T, top-k] int32 as a rank numbers its own; -1 for those of other ranks.

    expert: [T, top-k], global numbers. first: the global number of the rank's first expert.
    """
    sizes = catalogue.layer_sizes()[layer_key]
    number = expert.long() - first
    is_local = (number >= 0) & (number < sizes["num_local_experts"])
    return torch.where(is_local, number, -1).to(torch.int32)


def drawn(layer_key: str, num_tokens: int, layer_count: int) -> list[torch.Tensor]:
    """Return, for each of layer_count layers, the experts as `local` returns them.

    They are what the rank in the middle of all ranks sees, and the same in every run.
    """
    sizes = catalogue.layer_sizes()[layer_key]
    first = offset_of(layer_key)
    layers = []
    for number in range(layer_count):
        seed = f"tune/{num_tokens}/{number}"
        outputs = trained_router.draw_typical(seed, num_tokens, first, sizes)
        chosen = torch.from_numpy(trained_router.select(outputs, sizes))
        layers.append(local(chosen, first, layer_key))
    return layers


def recorded(
    folder: Path, layer_key: str, num_tokens: int, most: int
) -> list[torch.Tensor]:
    """Return up to `most` routings, as `local` returns them, from the files of a folder.

    A file with at least num_tokens tokens gives one for each rank that any of its first num_tokens
    tokens goes to. Raises UserError where there is none.
    """
    sizes = catalogue.layer_sizes()[layer_key]
    batches = []
    for path in sorted(folder.glob("*.pt")):
        ids = expert_ids(path, sizes["top_k"])
        if len(ids) >= num_tokens:
            batches.append(ids[:num_tokens])

    shares = []
    for first in range(0, sizes["num_experts"], sizes["num_local_experts"]):
        for ids in batches:
            share = local(ids, first, layer_key)
            if (share >= 0).any():
                shares.append(share)
    if not shares:
        raise UserError(
            f"--routing: got {folder}, want *.pt files of {num_tokens} tokens or more (--tokens)"
        )
    return shares[:most]


def expert_ids(path: Path, top_k: int) -> torch.Tensor:
    """Return the tensor of a file. Raises UserError unless it is of integers [T, top_k]."""
    wanted = f"want integers [T, {top_k}]"
    try:
        ids = torch.load(path, "cpu", weights_only=True)
        is_integer = not ids.is_floating_point() and ids.dtype != torch.bool
        shape = list(ids.shape)
    except Exception as error:  # torch raises what its parsers raise
        fault = str(error).partition("\n")[0]
        raise UserError(f"--routing: {path.name}: got {fault}, {wanted}") from error

    has_shape = len(shape) == 2 and shape[1] == top_k
    if not is_integer or not has_shape:
        raise UserError(f"--routing: {path.name}: got {ids.dtype} {shape}, {wanted}")
    return ids
