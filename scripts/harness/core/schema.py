"""Files with a schema: pydantic models that refuse unknown keys, and errors of one line for what does not fit."""

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from harness.core.atomic_file import append, write_atomically
from harness.core.errors import UserError


class Strict(BaseModel):
    """A model that refuses unknown keys and does not change once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Model = TypeVar("Model", bound=BaseModel)
Head = TypeVar("Head", bound=BaseModel)


def first_fault(error: ValidationError, whole: str) -> str:
    """'libs.torch: Field required': the first fault; `whole` names the place where no one field is at fault.

    A single value that came is named: "target: Input should be 'loose' or 'tight', got 'harsh'".
    """
    first = error.errors()[0]
    got = f", got {first['input']!r}" if first["loc"] and isinstance(first["input"], str | int | float) else ""
    return f"{'.'.join(map(str, first['loc'])) or whole}: {first['msg'].removeprefix('Value error, ')}{got}"


def read_json(path: Path, model: type[Model]) -> Model:
    """The file's only object. Raises UserError that names the file and its first fault."""
    return _parse(path.read_text(encoding="utf-8"), model, path.name, "file")


def read_jsonl(path: Path, *models: type[BaseModel]) -> list[BaseModel]:
    """The file's objects, one a line: of the first model in the first line and so on, of the last in all that follow.

    Half a last line, of a process that was killed, is left out. Raises UserError that names the file, the line and its
    first fault.
    """
    lines = path.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()
    found = []
    for at, line in enumerate(lines):
        found.append(_parse(line, models[min(at, len(models) - 1)], f"{path.name}:{at + 1}", "line"))
    return found


def read_record(path: Path, head: type[Head], line: type[Model], what: str) -> tuple[Head, list[Model]]:
    """The head and the lines of a record file; what: it is of, for the error where the file is empty.

    Otherwise as `read_jsonl`.
    """
    if not (found := read_jsonl(path, head, line)):
        raise UserError(f"{path.name}: not a record of {what}: it is empty")
    return found[0], found[1:]


def add_line(path: Path | None, line: BaseModel, first: bool) -> None:
    """Append a line at once to a file as `read_jsonl` reads; the first overwrites it. Does nothing without a path."""
    if path is None:
        return
    (write_atomically if first else append)(path, line.model_dump_json(exclude_none=True) + "\n")


def _parse(text: str, model: type[Model], place: str, whole: str) -> Model:
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise UserError(f"{place}: not a {model.__name__}: {first_fault(error, whole)}") from error
