"""Read and write files with a schema, a pydantic model. What does not fit it is a UserError:

    results.jsonl:3: not a Provenance: versions.torch: Field required

A record file, *.jsonl, has a head as its first line, and lines of another model after it.
"""

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from moebench.core.atomic_file import write_atomically
from moebench.core.errors import UserError


class Strict(BaseModel):
    """A model that refuses unknown keys and, unless it says frozen=False, does not change once it
    is read.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)


Model = TypeVar("Model", bound=BaseModel)
Head = TypeVar("Head", bound=BaseModel)


def first_fault(error: ValidationError, whole: str) -> str:
    """Return an error's first fault: 'versions.torch: Field required', or with a plain value
    "target: Input should be 'loose' or 'tight', got 'harsh'".

    whole: named where no single field is at fault, "file" or "line".
    """
    fault = error.errors()[0]
    location = ".".join(map(str, fault["loc"]))
    message = fault["msg"].removeprefix("Value error, ")
    if not location:
        return f"{whole}: {message}"

    value = fault["input"]
    if isinstance(value, str | int | float):
        message += f", got {value!r}"
    return f"{location}: {message}"


def read_json(path: Path, model: type[Model]) -> Model:
    """Return a file's only object. Raises UserError that names the file and its first fault."""
    return _parse(path.read_text(encoding="utf-8"), model, path.name, "file")


def read_lines(path: Path, line: type[Model]) -> list[Model]:
    """Return a file's lines. Raises UserError that names the file, the line and its first fault."""
    return _parse_lines(path, path.read_bytes().splitlines(), line, first=1)


def read_record(
    path: Path, head: type[Head], line: type[Model], what: str
) -> tuple[Head, list[Model]]:
    """Return a record file's first line, its head, and its further lines.

    A last line without an end, which a killed run leaves, is left out. what: the kind of record,
    for the error of an empty file. Raises UserError that names the file, the line and its first
    fault.
    """
    complete, _, _ = path.read_bytes().rpartition(b"\n")
    # bytes, as a str's lines also end at U+2028, which JSON may have
    texts = complete.splitlines()
    if not texts:
        raise UserError(f"{path.name}: not a record of {what}: it is empty")

    (first_line,) = _parse_lines(path, texts[:1], head, first=1)
    return first_line, _parse_lines(path, texts[1:], line, first=2)


def write_record(path: Path, lines: list[BaseModel]) -> None:
    """Write a record file. lines: its head first."""
    text = ""
    for line in lines:
        text += line.model_dump_json(exclude_none=True) + "\n"
    write_atomically(path, text)


def _parse_lines(
    path: Path, texts: list[bytes], model: type[Model], first: int
) -> list[Model]:
    """Return a file's lines from the number `first` on, as models. Raises UserError."""
    lines = []
    for number, text in enumerate(texts, first):
        lines.append(_parse(text, model, f"{path.name}:{number}", "line"))
    return lines


def _parse(text: str | bytes, model: type[Model], place: str, whole: str) -> Model:
    """Return a JSON text as a model. Raises UserError. place, whole: for its message."""
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        fault = first_fault(error, whole)
        raise UserError(f"{place}: not a {model.__name__}: {fault}") from error
