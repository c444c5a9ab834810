"""Write packed solutions for FlashInfer's Trace Apply, which calls them in place of its kernels.

`moebench pack --trace-apply` calls `pack_for_trace_apply`. With FLASHINFER_TRACE_APPLY=1 FlashInfer
0.7.2 reads solutions/*.json below the folder in FLASHINFER_TRACE_APPLY_PATH. It makes a
definition's name of each call's sizes, and calls the solution for that definition. The arguments of
a call are FlashInfer's, so a written solution has one source more, ENTRY, whose function turns them
into those of the definition.
"""

import re
from pathlib import Path

from flashinfer_bench import Solution, SourceFile

from moebench.core import paths
from moebench.core.atomic_file import write_atomically
from moebench.core.errors import UserError
from moebench.operators import catalogue
from moebench.packing.pack import pack_all

ENTRY = "trace_apply_entry.py"
FUNCTION = "apply"
# The definition's name that FlashInfer makes of a call of trtllm_fp8_block_scale_moe.
NAME = (
    "moe_fp8_block_scale_ds_routing_topk{top_k}_ng{num_groups}_kg{kept_groups}"
    "_e{num_local_experts}_h{hidden_size}_i{intermediate_size}"
)


def pack_for_trace_apply(names: list[str], folder: Path, keys: list[str]) -> list[Path]:
    """Write folder/solutions/<packed name>.json for each layer that these solutions serve; return
    the files.

    keys: of the layers; [] for all that FlashInfer has a call for. Raises what `pack_all` raises,
    and UserError where there is no such layer, where two solutions serve the same layer, and where
    the folder has another solution for a layer already.
    """
    written = []
    for key, solution in solutions_to_write(names, keys).items():
        path = folder / "solutions" / f"{solution.name}.json"
        check_only_one(path, solution.definition)
        write_atomically(path, with_entry(solution, key).model_dump_json(indent=2))
        written.append(path)
    return written


def solutions_to_write(names: list[str], keys: list[str]) -> dict[str, Solution]:
    """Return layer key -> packed solution that is written for it.

    Raises what `pack_for_trace_apply` raises.
    """
    with_call = [key for key in catalogue.fp8_moe() if has_call(key)]
    wanted = set(with_call)
    if keys:
        wanted &= set(keys)

    chosen = {}
    packed, _ = pack_all(names)
    for solutions in packed.values():
        for key, solution in solutions.items():
            if key not in wanted:
                continue
            if key in chosen:
                raise UserError(
                    f"NAME: got {chosen[key].name} and {solution.name}, want one solution of {key},"
                    " as Trace Apply takes one for each definition"
                )
            chosen[key] = solution

    if not chosen:
        listed = ", ".join(with_call)
        raise UserError(
            f"--definition: got no layer that FlashInfer calls, want of {listed}"
        )
    return chosen


def has_call(key: str) -> bool:
    """Return whether FlashInfer has a call for which it makes the name of a layer's definition."""
    sizes = catalogue.layer_sizes()[key]
    return catalogue.definition_name(key) == NAME.format(**sizes)


def check_only_one(path: Path, definition: str) -> None:
    """Raise UserError where another file in the folder of `path` is for the same definition."""
    for other in path.parent.glob("*.json"):
        if other == path:
            continue
        solution = Solution.model_validate_json(other.read_text(encoding="utf-8"))
        if solution.definition == definition:
            raise UserError(
                f"--trace-apply: {other} is of the same definition; remove one of them"
            )


def with_entry(solution: Solution, key: str) -> Solution:
    """Return a packed solution with ENTRY, which Trace Apply can load and call, as entry point."""
    file, function = solution.spec.entry_point.split("::")
    sizes = catalogue.layer_sizes()[key]
    layer = {
        "top_k": sizes["top_k"],
        "n_group": sizes["num_groups"],
        "topk_group": sizes["kept_groups"],
    }
    values = {"ENTRY_FILE": file, "ENTRY_FUNCTION": function, "LAYER": layer}

    text = (paths.INTEGRATIONS / "flashinfer" / ENTRY).read_text(encoding="utf-8")
    for name, value in values.items():
        text, count = re.subn(
            rf"^{name} = .*$", f"{name} = {value!r}", text, flags=re.MULTILINE
        )
        assert count == 1, f"{ENTRY} has no line that begins with {name}"
    source = SourceFile(path=ENTRY, content=text)

    changes = {
        "entry_point": f"{ENTRY}::{FUNCTION}",
        "destination_passing_style": False,
    }
    spec = solution.spec.model_copy(update=changes)
    sources = [*solution.sources, source]
    return solution.model_copy(update={"spec": spec, "sources": sources})
