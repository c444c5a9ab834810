"""solution.toml: what a solution is called, what it needs and serves; the one place that reads it.

A key that is missing, unknown or not what it should be is one line: "NAME: solution.toml: KEY: got ..., want ...".
"""

import tomllib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any

from flashinfer_bench.data import SupportedLanguages
from pydantic import BeforeValidator, Field, ValidationError
from pydantic_core import PydanticCustomError

from harness.core import paths
from harness.core.errors import UserError
from harness.core.schema import Strict
from harness.operators import catalogue
from harness.packing.stages import UNASSIGNED

MANIFEST = "solution.toml"
HARDWARE = ["cpu", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121"]
INHERITED = ("kernels", "borrowed", "stages")  # of the base, where a manifest has none of its own
NOT_SOLUTIONS = {"kernels", "packed"}


class PackingError(UserError):
    """A solution cannot be packed; the message is one line for the user."""

    status = 1


def wanted(what: str, fits: Callable[[Any], bool]) -> BeforeValidator:
    """Refuses a value that does not fit with "got ..., want <what>"."""

    def check(value: Any) -> Any:
        if not fits(value):
            raise PydanticCustomError("unwanted", "got {got}, want {want}", {"got": repr(value), "want": what})
        return value

    return BeforeValidator(check)


def one_of(values: list[str]) -> BeforeValidator:
    return wanted(f"one of {', '.join(values)}", lambda value: value in values)


def is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


A_LIST = wanted("a list", lambda value: isinstance(value, list))
Text = Annotated[str, wanted("a text in quotes, not an empty one", is_text)]
Stage = Annotated[str, wanted("a stage's name in quotes", lambda value: is_text(value) and value != UNASSIGNED)]
Texts = Annotated[list[Text], A_LIST]


class Facts(Strict):
    """A solution's row in docs/backends.md; a field's description is the column's heading."""

    input: Text = Field(description="activations that gemm1 multiplies")
    intermediate: Text = Field(description="what gemm2 multiplies")
    granularity: Text = Field(description="quantisation granularity")
    layout: Text = Field(description="layout")
    activation: Text = Field(description="activation: order of gemm1's halves, where it is applied")
    launches: Text = Field(description="launches a call")
    best: Text = Field(description="best choice")


class Manifest(Strict):
    """The keys of solution.toml. `first_use`, `stages` and `facts` are not packed, so they do not change the hash.

    entry_point: FILE::FUNCTION. kernels: shared stages, packed as kernels/<stage>.py. borrowed: files of other
    solutions, as SOLUTION/FILE. definitions: geometries, keys of catalogue.GEOMETRIES. based_on: the solution whose
    files this one's replace. first_use: what the first use of this solution takes, after "on first use it".
    stages: pattern of a kernel's plain name -> stage.
    """

    name: Text
    author: Text
    description: Text
    language: Annotated[SupportedLanguages, one_of([language.value for language in SupportedLanguages])]
    entry_point: Annotated[str, wanted("FILE::FUNCTION", lambda value: is_text(value) and value.count("::") == 1)]
    target_hardware: Annotated[
        list[Annotated[str, one_of(HARDWARE)]],
        wanted("a list of what it runs on", lambda value: isinstance(value, list) and len(value) > 0),
    ]
    destination_passing_style: Annotated[bool, wanted("true or false", lambda value: isinstance(value, bool))] = True
    dependencies: Texts = []
    kernels: Texts = []
    borrowed: Texts = []
    definitions: Annotated[list[Annotated[str, one_of(list(catalogue.GEOMETRIES))]], A_LIST] = list(
        catalogue.OPERATORS[0].geometries
    )
    based_on: Text | None = None
    first_use: Text | None = None
    stages: Annotated[dict[str, Stage], wanted("'kernel name' = 'stage'", lambda value: isinstance(value, dict))] = {}
    facts: Annotated[Facts, wanted("a table", lambda value: isinstance(value, dict))] | None = None


def solution_names(folder: Path = paths.SOLUTIONS) -> list[str]:
    """Names of the solutions below folder, sorted."""
    found = (path.parent.name for path in folder.glob(f"*/{MANIFEST}"))
    return sorted(set(found) - NOT_SOLUTIONS)


def choose(names: list[str], folder: Path = paths.SOLUTIONS) -> list[str]:
    """names, or every solution when there are none. Raises UserError for an unknown one."""
    existing = solution_names(folder)
    for name in names:
        if name not in existing:
            listed = ", ".join(existing) or "none"
            raise UserError(f"unknown solution {name!r}; there are: {listed}")
    return list(dict.fromkeys(names)) or existing


def solutions_of(geometries: Collection[str], folder: Path = paths.SOLUTIONS) -> list[str]:
    """Names of the solutions that serve one of these geometries. Raises PackingError."""
    names = solution_names(folder)
    return [name for name in names if set(read_manifest(name, folder).definitions) & set(geometries)]


def refusal(name: str, key: str, got: object, want: str) -> PackingError:
    """The error of a key that is well formed but cannot be followed."""
    return PackingError(f"{name}: {MANIFEST}: {key}: got {got!r}, want {want}")


def read_manifest(name: str, folder: Path = paths.SOLUTIONS) -> Manifest:
    """A solution's manifest, with its base's `kernels`, `borrowed` and `stages` where it has none of its own.

    Raises PackingError for missing, unknown or contradicting keys.
    """
    manifest = _parse(name, folder)
    if manifest.based_on is None:
        return manifest
    if manifest.based_on not in (others := [other for other in solution_names(folder) if other != name]):
        raise refusal(name, "based_on", manifest.based_on, f"another solution: {', '.join(others) or 'there is none'}")
    base = _parse(manifest.based_on, folder)
    if base.based_on is not None:
        raise refusal(name, "based_on", manifest.based_on, f"a solution without a base; this one's is {base.based_on}")
    taken = {key: getattr(base, key) for key in INHERITED if key not in manifest.model_fields_set}
    return manifest.model_copy(update=taken)


def _parse(name: str, folder: Path) -> Manifest:
    try:
        manifest = Manifest.model_validate(tomllib.loads((folder / name / MANIFEST).read_text()))
    except tomllib.TOMLDecodeError as error:
        raise PackingError(f"{name}: {MANIFEST}: {error}") from error
    except ValidationError as error:
        raise PackingError(f"{name}: {MANIFEST}: {_fault(error)}") from error
    if manifest.name != name:
        raise refusal(name, "name", manifest.name, f"the folder's, {name!r}")
    return manifest


def _fault(error: ValidationError) -> str:
    """'target_hardware: got ..., want ...', '[stages] gemm1: got ..., want ...': what is wrong first."""
    first = error.errors()[0]
    table, *inner = first["loc"]
    key = str(table)
    if table in ("stages", "facts"):
        key = " ".join([f"[{table}]", *map(str, inner[:1])])
    if first["type"] == "missing":
        return f"{key}: got nothing, want it given"
    if first["type"] == "extra_forbidden":
        known = (Facts if inner else Manifest).model_fields
        return f"{key}: got an unknown key, want one of {', '.join(known)}"
    return f"{key}: {first['msg']}"
