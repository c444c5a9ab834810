"""Adapters between a packed solution and inference engines, a folder for each engine.

`moebench pack --package` copies them into the package that it makes of a solution, and rewrites
their imports. There `from integrations import run` is an import from the package's own __init__.py,
which defines the names below. Here they are only declared, for editors and type checkers.
"""

from collections.abc import Callable

DEFINITION: str  # name of the definition that the package is compiled for
# num_local_experts, top_k, hidden_size and intermediate_size of its layer
SIZES: dict[str, int]
run: Callable[..., None]  # the solution's function, which computes the layer
# the same for bf16 tokens; a package for MXFP4 experts has none
run_bf16: Callable[..., None]
# with the output summed over ranks; few solutions have it
run_allreduce_bf16: Callable[..., None]
# class of the ranks over which it is summed (hopper_fused/allreduce.py)
Peers: Callable
