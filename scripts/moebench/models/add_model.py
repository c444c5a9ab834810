"""Add a checkpoint's layer: an entry in layers.toml, and its definitions in FIB's JSON, with
workloads.

    ["my-model"]
    name = "my-model"
    ...
    ranks = { "my-model-ep8" = 8 }    # the layer key, and on how many ranks its experts lie

Either all of it is written or nothing: if it is interrupted, the files are as they were. `moebench
model --add` calls `add`, and `moebench data --write` calls `write`.
"""

import json
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from moebench.core import paths
from moebench.core.atomic_file import write_atomically
from moebench.core.errors import UserError
from moebench.models.checkpoint import Checkpoint
from moebench.models.checkpoint.schemes import MXFP4
from moebench.operators import catalogue, workload_files, workloads
from moebench.operators.fp8.routed import routed_key
from moebench.operators.layers import (
    DEFAULTS,
    Sizes,
    Split,
    expert_ranks,
    layers_file,
    models,
    read_again,
)

KEY = re.compile(r"[a-z0-9][a-z0-9.-]*")
# of a layer key
RANKS_SUFFIX = re.compile(r"(-ep[0-9]+)?(-tp[0-9]+)?(-shared)?(-mxfp4)?$")
SMALL_BYTES = 32_000_000  # of experts' weights; a machine without a GPU can run as many


def add(key: str, checkpoint: Checkpoint, sizes: Sizes) -> list[str]:
    """Add a layer to layers.toml and write its definitions and workloads; return a line for each.

    key: of the new layer. sizes: of the checkpoint's layer on one rank. Raises UserError for a key
    that is malformed or taken, and for a layer that is in the catalogue already.
    """
    names = catalogue.names(sizes, checkpoint.kind)
    if not KEY.fullmatch(key):
        raise UserError(
            f"--add: got {key!r}, want lower-case letters, digits, dots and hyphens"
        )
    taken = {*catalogue.keys(), "all"}
    for each in (key, routed_key(key)):
        if each in taken:
            raise UserError(f"--add: got {key!r}, but {each} is there already")
    check_layer(key, names)

    table = layers_file()
    before = table.read_text(encoding="utf-8")
    after = with_layer(before, key, checkpoint, sizes)
    definitions = list(names.values())
    files = [table, *files_of(definitions)]

    folders = []
    for name in definitions:
        file = paths.ROOT / paths.blob_file(name, "any")
        folders.append(file.parent)

    with undone_on_failure(files, folders):
        write_atomically(table, after)
        read_again()
        keys = keys_of(key, names)
        return [write(each) for each in keys.values()]


def write(layer_key: str) -> str:
    """Write a layer's definition, its workloads and their tensors; return a line on what was
    done.
    """
    definition = catalogue.definition(layer_key)
    content = definition.model_dump_json(indent=2, exclude_unset=True) + "\n"
    write_atomically(paths.definition_file(definition.name), content)

    written, good = workload_files.make(layer_key)
    users = len(workloads.recorded(layer_key)) - written - good
    line = f"{definition.name}: {written} tensor files written, {good} already good"
    if users:
        line += f"; {users} of your own"
    return line


def keys_of(key: str, forms: Iterable[str]) -> dict[str, str]:
    """Return form of a layer -> key of the definition. key: of the layer in layers.toml."""
    keys = dict.fromkeys(forms, key)
    if "routed" in keys:
        keys["routed"] = routed_key(key)
    return keys


def check_layer(key: str, names: dict[str, str]) -> None:
    """Raise UserError if one of a layer's definitions is in the catalogue.

    key: that the layer shall have. names: form -> name of the definition.
    """
    by_name = catalogue.by_name()
    for name in names.values():
        if name in by_name:
            raise UserError(f"--add: got {key!r}, but {by_name[name]} is this layer")


def files_of(definitions: list[str]) -> list[Path]:
    """Return the files that are written for these definitions, without those of tensors."""
    files = []
    for name in definitions:
        files.append(paths.definition_file(name))
        for suffix in ("jsonl", "csv", "sha256"):
            files.append(paths.workload_file(name, suffix=suffix))
    return files


@contextmanager
def undone_on_failure(files: list[Path], folders: list[Path]) -> Iterator[None]:
    """Return a context that, if anything is raised inside, Ctrl-C too, restores the files and
    removes those of the folders that were not there before.
    """
    before = {file: file.read_bytes() for file in files if file.exists()}
    new_folders = [folder for folder in folders if not folder.exists()]
    try:
        yield
    except BaseException:
        for file in files:
            if file in before:
                write_atomically(file, before[file])
            else:
                file.unlink(missing_ok=True)
        for folder in new_folders:
            shutil.rmtree(folder, ignore_errors=True)
        read_again()
        raise


def with_layer(text: str, key: str, checkpoint: Checkpoint, sizes: Sizes) -> str:
    """Return the text of layers.toml with one more layer, in its model's table or in a new one.

    A new model is called after the key, without the ranks in it.
    """
    split = Split(
        expert_ranks(sizes), sizes["tensor_ranks"], sizes["num_shared_experts"]
    )
    entry = f"{json.dumps(key)} = {split.in_table()}"
    field = "mxfp4" if checkpoint.kind == MXFP4 else "ranks"
    table = model_of(checkpoint)
    if table:
        return with_entry(text, table, field, entry)

    name = RANKS_SUFFIX.sub("", key)
    if name in models():
        name = key
    with_table = f"{text.rstrip()}\n\n{new_table(name, checkpoint, sizes)}"
    return with_entry(with_table, name, field, entry)


def model_of(checkpoint: Checkpoint) -> str | None:
    """Return the name of the table in layers.toml with all of a checkpoint's sizes, or None."""
    wanted = DEFAULTS | checkpoint.sizes | {"layers": checkpoint.layers}
    for name, model in models().items():
        stated = DEFAULTS | model
        if stated | wanted == stated:
            return name
    return None


def with_entry(text: str, table: str, field: str, entry: str) -> str:
    """Return the text of layers.toml with one more entry in a table's `ranks` or `mxfp4` (field).

    A table without that field gets it, in the line after `ranks`. Lines are edited one by one, so
    that comments and layout of the file stay.
    """
    lines = text.split("\n")
    at = line_of(lines, table, field)
    if at is None:
        behind = line_of(lines, table, "ranks")
        lines.insert(behind + 1, f"{field} = {{ {entry} }}")
    else:
        start, brace, rest = lines[at].rpartition("}")
        start = start.rstrip()
        comma = "" if start.endswith("{") else ","
        lines[at] = f"{start}{comma} {entry} {brace}{rest}"
    return "\n".join(lines)


def line_of(lines: list[str], table: str, field: str) -> int | None:
    """Return the number of the line that assigns a table's field, from 0, or None."""
    headers = (f"[{table}]", f"[{json.dumps(table)}]")
    assignment = re.compile(rf"{field}\s*=")
    inside = False
    for number, line in enumerate(lines):
        if line.startswith("["):
            header, _, _ = line.partition("#")
            inside = header.strip() in headers
        elif inside and assignment.match(line):
            return number
    return None


def new_table(name: str, checkpoint: Checkpoint, sizes: Sizes) -> str:
    """Return the text of a new model's table, still without layers.

    sizes: of the model's first layer, on one rank.
    """
    lines = [
        f"[{json.dumps(name)}]",
        f"name = {json.dumps(name)}",
        f"layers = {checkpoint.layers}",
    ]
    for size, value in checkpoint.sizes.items():
        if value != DEFAULTS.get(size):
            lines.append(f"{size} = {json.dumps(value)}")
    lines.append("ranks = {}")
    if runs_on_cpu(checkpoint, sizes):
        lines.append("small = true")
    return "\n".join([*lines, ""])


def runs_on_cpu(checkpoint: Checkpoint, sizes: Sizes) -> bool:
    """Return whether a machine without a GPU can run a layer: its experts have few bytes, and with
    FP8 weights it has a form with the router inside.
    """
    forms = catalogue.names(sizes, checkpoint.kind)
    if list(forms) == ["routed"]:
        return False
    local = sizes["num_local_experts"]
    if local < max(sizes["top_k"], 4):
        return False
    return local * checkpoint.operator.expert_bytes(sizes) <= SMALL_BYTES
