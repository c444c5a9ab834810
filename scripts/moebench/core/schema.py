"""Files with a schema: pydantic models that refuse unknown keys, and errors of one line for what
does not fit.
"""

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from moebench.core.atomic_file import write_atomically
from moebench.core.errors import UserError


class Strict(BaseModel):
    """A model that refuses unknown keys and does not change once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Model = TypeVar("Model", bound=BaseModel)
Head = TypeVar("Head", bound=BaseModel)


def first_fault(error: ValidationError, whole: str) -> str:
    """'libs.torch: Field required': the first fault; `whole` names the place where no one field is
    at fault.

    A single value that came is named: "target: Input should be 'loose' or 'tight', got 'harsh'".
    """
    first = error.errors()[0]
    got = (
        f", got {first['input']!r}"
        if first["loc"] and isinstance(first["input"], str | int | float)
        else ""
    )
    return f"{'.'.join(map(str, first['loc'])) or whole}: {first['msg'].removeprefix('Value error, ')}{got}"


def read_json(path: Path, model: type[Model]) -> Model:
    """The file's only object. Raises UserError that names the file and its first fault."""
    return _parse(path.read_text(encoding="utf-8"), model, path.name, "file")


def read_record(
    path: Path, head: type[Head], line: type[Model], what: str
) -> tuple[Head, list[Model]]:
    """A record file's head, its first line, and the further lines; half a last one, of a killed
    run, is left out.

    what: the record is of. Raises UserError that names the file, the line and its first fault.
    """
    texts = (
        path.read_bytes().rpartition(b"\n")[0].splitlines()
    )  # a text's also end where JSON holds U+2028
    if not texts:
        raise UserError(f"{path.name}: not a record of {what}: it is empty")
    further = [
        _parse(text, line, f"{path.name}:{at}", "line") for at, text in enumerate(texts[1:], 2)
    ]
    return _parse(texts[0], head, f"{path.name}:1", "line"), further


def write_record(path: Path, lines: list[BaseModel]) -> None:
    """Replace a record file: its head, then the further lines."""
    write_atomically(
        path, "".join(f"{line.model_dump_json(exclude_none=True)}\n" for line in lines)
    )


def _parse(text: str | bytes, model: type[Model], place: str, whole: str) -> Model:
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise UserError(f"{place}: not a {model.__name__}: {first_fault(error, whole)}") from error
