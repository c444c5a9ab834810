"""Adapters of inference engines, an engine a folder.

`moebench pack --package` puts them beside a solution's sources. The __init__.py of such a package
defines what is declared here, so that an editor knows it.
"""

from collections.abc import Callable

DEFINITION: str  # the definition's name
SIZES: dict[str, int]  # of its layer
run: Callable[..., None]  # the solution's function
run_bf16: Callable[..., None]  # for tokens in bf16; not of a package for MXFP4 experts
run_allreduce_bf16: Callable[..., None]  # summed over ranks; of some solutions
Peers: Callable  # the ranks over which it is summed
