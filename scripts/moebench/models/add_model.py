"""A checkpoint's layer becomes a definition: a line in layers.toml, FIB's JSON and workloads.

Either all of it is written or nothing: whatever interrupts it, the files are as they were.
"""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moebench.core import paths
from moebench.core.atomic_file import write_atomically
from moebench.core.errors import UserError
from moebench.models.checkpoint import Checkpoint
from moebench.operators import catalogue, workloads
from moebench.operators.fp8_layer import expert_bytes
from moebench.operators.layers import DEFAULTS, Sizes, Split, layers_file, models, read_again
from moebench.operators.moe_fp8_block_scale_routed import routed_key

KEY = re.compile(r"[a-z0-9][a-z0-9.-]*")
RANKS_SUFFIX = re.compile(r"(-ep[0-9]+)?(-tp[0-9]+)?$")
SMALL_BYTES = 32_000_000  # of a layer that a CPU can run


def write(layer_key: str) -> str:
    """Write a definition's JSON, its workloads and their tensors; return what was done."""
    definition = catalogue.definition(layer_key)
    content = definition.model_dump_json(indent=2, exclude_unset=True) + "\n"
    write_atomically(paths.definition_file(definition.name), content)

    written, good = workloads.make(layer_key)
    users = len(workloads.recorded(layer_key)) - written - good
    line = f"{definition.name}: {written} tensor files written, {good} already good"
    if users:
        line += f"; {users} of your own"
    return line


def keys_of(key: str, sizes: Sizes) -> list[str]:
    """Return the keys of the definitions that a layer with this key has."""
    forms = catalogue.names(sizes)
    return [routed_key(key) if form == "routed" else key for form in forms]


def add(key: str, checkpoint: Checkpoint, sizes: Sizes) -> list[str]:
    """Add a layer to layers.toml and write its definitions and workloads; return what was done.

    sizes: the checkpoint's on one rank. Raises UserError for a key that cannot be or is taken, and
    for a layer that is there.
    """
    check_key(key)
    check_layer(key, sizes)

    table = layers_file()
    before = table.read_text(encoding="utf-8")
    definitions = list(catalogue.names(sizes).values())
    with undone_on_failure([table, *files_of(definitions)], folders_of(definitions)):
        write_atomically(table, with_layer(before, key, checkpoint, sizes))
        read_again()
        return [write(each) for each in keys_of(key, sizes)]


def check_key(key: str) -> None:
    """Raise UserError for a key that cannot be or is taken."""
    if not KEY.fullmatch(key):
        raise UserError(f"--add: got {key!r}, want lower-case letters, digits, dots and hyphens")
    taken = {*catalogue.keys(), "all"}
    for each in (key, routed_key(key)):
        if each in taken:
            raise UserError(f"--add: got {key!r}, but {each} is there already")


def check_layer(key: str, sizes: Sizes) -> None:
    """Raise UserError for a layer that has a definition."""
    by_name = catalogue.by_name()
    for name in catalogue.names(sizes).values():
        if name in by_name:
            raise UserError(f"--add: got {key!r}, but {by_name[name]} is this layer")


def files_of(definitions: list[str]) -> list[Path]:
    """Return the files that are written of these definitions, without tensors."""
    files = []
    for name in definitions:
        files.append(paths.definition_file(name))
        files += [paths.workload_file(name, suffix=each) for each in ("jsonl", "csv", "sha256")]
    return files


def folders_of(definitions: list[str]) -> list[Path]:
    """Return the folders of these definitions' tensors."""
    return [(paths.ROOT / paths.blob_file(name, "any")).parent for name in definitions]


@contextmanager
def undone_on_failure(files: list[Path], folders: list[Path]) -> Iterator[None]:
    """Put files back as they were, and remove folders that were not there, if anything is raised:
    Ctrl-C, too.
    """
    before = {file: file.read_bytes() if file.exists() else None for file in files}
    new_folders = [folder for folder in folders if not folder.exists()]
    try:
        yield
    except BaseException:
        for file, content in before.items():
            if content is None:
                file.unlink(missing_ok=True)
            else:
                write_atomically(file, content)
        for folder in new_folders:
            shutil.rmtree(folder, ignore_errors=True)
        read_again()
        raise


def with_layer(text: str, key: str, checkpoint: Checkpoint, sizes: Sizes) -> str:
    """Return layers.toml with the layer: among its model's if that is there, else as a new model's.

    The model is called after the key, without the ranks in it.
    """
    split = Split(sizes["num_experts"] // sizes["num_local_experts"], sizes["tensor_ranks"])
    entry = f"{json.dumps(key)} = {split.in_table()}"
    table = model_of(checkpoint)
    if table:
        return with_layer_key(text, table, entry)

    name = RANKS_SUFFIX.sub("", key)
    if name in models():
        name = key
    return f"{text.rstrip()}\n\n{new_table(name, entry, checkpoint, sizes)}"


def model_of(checkpoint: Checkpoint) -> str | None:
    """Return the table of layers.toml that has this checkpoint's layer, on whatever ranks."""
    wanted = DEFAULTS | checkpoint.sizes
    for name, model in models().items():
        sizes = DEFAULTS | model
        same_sizes = all(sizes[key] == value for key, value in wanted.items())
        if same_sizes and model.get("layers") == checkpoint.layers:
            return name
    return None


def with_layer_key(text: str, table: str, entry: str) -> str:
    """Return layers.toml with one more entry in a table's layers."""
    lines = text.split("\n")
    headers = (f"[{table}]", f"[{json.dumps(table)}]")
    inside = False
    for at, line in enumerate(lines):
        if line.startswith("["):
            inside = line.partition("#")[0].strip() in headers
        elif inside and line.startswith("geometries"):
            start, brace, rest = line.rpartition("}")
            lines[at] = f"{start.rstrip()}, {entry} {brace}{rest}"
    return "\n".join(lines)


def new_table(name: str, entry: str, checkpoint: Checkpoint, sizes: Sizes) -> str:
    """Return TOML of a model. entry: of its `geometries`.

    What is small enough for a CPU, with a router inside, is for machines without a GPU.
    """
    values = {"name": name, "layers": checkpoint.layers}
    for size, value in checkpoint.sizes.items():
        if value != DEFAULTS.get(size):
            values[size] = value

    lines = [f"[{json.dumps(name)}]"]
    lines += [f"{each} = {json.dumps(value)}" for each, value in values.items()]
    lines.append(f"geometries = {{ {entry} }}")
    if runs_on_cpu(sizes):
        lines.append("small = true")
    return "\n".join([*lines, ""])


def runs_on_cpu(sizes: Sizes) -> bool:
    """Whether a layer is for machines without a GPU."""
    local = sizes["num_local_experts"]
    fits = local * expert_bytes(sizes) <= SMALL_BYTES
    has_router = len(catalogue.names(sizes)) > 1
    return fits and has_router and local >= max(sizes["top_k"], 4)
