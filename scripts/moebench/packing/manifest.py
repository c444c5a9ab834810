"""solution.toml: what a solution is called, what it needs and serves; the one place that reads
it.
"""

import tomllib
from collections.abc import Collection
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from flashinfer_bench.data import SupportedLanguages
from pydantic import Field, StrictBool, StringConstraints, ValidationError

from moebench.core import paths
from moebench.core.errors import UserError
from moebench.core.names import unknown
from moebench.core.schema import Strict, first_fault
from moebench.operators import catalogue
from moebench.packing.serves import Rule, served

MANIFEST = "solution.toml"
ENTRY_POINTS = (
    "renorm_entry_point",
    "routed_entry_point",
    "mxfp4_entry_point",
)  # beside `entry_point`
INHERITED = ("common", "stages", *ENTRY_POINTS)  # of the base, where a manifest has none of its own
SERVING = ("definitions", "serves")  # likewise, where it has neither
DEFAULT = ["full", "small"]
NOT_SOLUTIONS = {"engines", "common", "packed"}


class PackingError(UserError):
    """A solution cannot be packed; the message is one line for the user."""

    status = 1


Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Author = Annotated[Text, StringConstraints(pattern=r"^[^./\\][^/\\]*$")]  # a folder in data sets
Hardware = Literal[
    "cpu", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121"
]


class Manifest(Strict):
    """The keys of solution.toml. `first_use`, `start`, `stages` and `facts` are not packed and do
    not change the hash.

    entry_point: FILE::FUNCTION; renorm_entry_point, routed_entry_point, mxfp4_entry_point: those for
    definitions with renorm routing, for routed ones and for MXFP4 experts. FUNCTION_bf16 beside one
    of them, for tokens in bf16, is exported by packages as run_bf16. common: files of
    solutions/common/, each packed under its path in solutions/. definitions: keys of
    catalogue.GEOMETRIES; once it is read, those that `serves` takes, too. based_on: the solution
    whose files this one's replace. first_use: what the first use takes. start: what
    `moebench new --from` calls a copy. stages: pattern of a kernel's plain name -> stage.
    """

    name: Text
    author: Author
    description: Text
    language: SupportedLanguages
    entry_point: Text
    target_hardware: Annotated[list[Hardware], Field(min_length=1)]
    renorm_entry_point: Text | None = None
    routed_entry_point: Text | None = None
    mxfp4_entry_point: Text | None = None
    destination_passing_style: StrictBool = True
    dependencies: list[Text] = []
    common: list[Text] = []
    definitions: list[Literal[*catalogue.GEOMETRIES]] = []
    serves: list[Rule] = []
    based_on: Text | None = None
    first_use: Text | None = None
    start: Text | None = None
    stages: dict[str, Text] = {}
    facts: dict[str, Text] = {}


def solution_names() -> list[str]:
    """Sorted."""
    return sorted(
        {path.parent.name for path in paths.SOLUTIONS.glob(f"*/{MANIFEST}")} - NOT_SOLUTIONS
    )


def folder_name(packed: str, definition: str) -> str:
    """The solution behind the name of a packed one: mine of mine_e16.

    Packing adds parts of the definition's name, as `pack.packed_name`. As it is where no solution
    here goes with it.
    """
    parts = {"", *definition.split("_")}
    fits = [
        n
        for n in solution_names()
        if f"{packed}_".startswith(f"{n}_") and parts >= {*packed[len(n) :].split("_")}
    ]
    return max(fits, key=len, default=packed)


def readable() -> dict[str, Manifest]:
    """Name -> manifest of each solution whose manifest can be read; see `pack.pack_all` for the
    others.
    """
    found = {}
    for name in solution_names():
        with suppress(PackingError):
            found[name] = read_manifest(name)
    return found


def choose(names: list[str]) -> list[str]:
    """names, or every readable solution when there are none. Raises UserError for an unknown
    one.
    """
    existing = solution_names()
    for name in names:
        if name not in existing:
            raise UserError(unknown("solution", name, existing))
    return list(dict.fromkeys(names)) or list(readable())


def solutions_of(geometries: Collection[str]) -> list[str]:
    """Names of the readable solutions that serve one of these geometries."""
    return [
        name for name, manifest in readable().items() if set(manifest.definitions) & set(geometries)
    ]


def refusal(name: str, key: str, got: object, want: str) -> PackingError:
    """The error of a key that is well formed but cannot be followed."""
    return PackingError(f"{name}: {MANIFEST}: {key}: got {got!r}, want {want}")


def read_manifest(name: str) -> Manifest:
    """A solution's manifest, with what is INHERITED of its base.

    Raises PackingError for missing, unknown or contradicting keys.
    """
    manifest = _parse(name)
    if manifest.based_on is None:
        return with_served(manifest)
    if manifest.based_on not in (others := [other for other in solution_names() if other != name]):
        raise refusal(
            name,
            "based_on",
            manifest.based_on,
            f"another solution: {', '.join(others) or 'there is none'}",
        )
    base = _parse(manifest.based_on)
    if base.based_on is not None:
        raise refusal(
            name,
            "based_on",
            manifest.based_on,
            f"a solution without a base; this one's is {base.based_on}",
        )
    own = manifest.model_fields_set
    wanted = [*INHERITED, *(SERVING if own.isdisjoint(SERVING) else ())]
    return with_served(
        manifest.model_copy(update={key: getattr(base, key) for key in wanted if key not in own})
    )


def with_served(manifest: Manifest) -> Manifest:
    """With the definitions that its rules take. Raises PackingError where they take none."""
    listed = manifest.definitions or ([] if manifest.serves else DEFAULT)
    if not (found := [*dict.fromkeys([*listed, *served(manifest.serves)])]):
        raise refusal(
            manifest.name,
            "serves",
            "rules that take no definition",
            "one that `moebench data` lists",
        )
    return manifest.model_copy(update={"definitions": found})


def read_source(name: str, path: Path) -> str:
    """The text of a solution's file. Raises PackingError for one that cannot be read or is no
    UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PackingError(f"{name}: {path.name}: {error}") from error


@cache  # by text, as tests and `new` change files: listing solutions reads every manifest
def _validated(text: str) -> Manifest:
    return Manifest.model_validate(tomllib.loads(text))


def _parse(name: str) -> Manifest:
    try:
        manifest = _validated(read_source(name, paths.SOLUTIONS / name / MANIFEST))
    except tomllib.TOMLDecodeError as error:
        raise PackingError(f"{name}: {MANIFEST}: {error}") from error
    except ValidationError as error:
        raise PackingError(f"{name}: {MANIFEST}: {first_fault(error, 'file')}") from error
    if manifest.name != name:
        raise refusal(name, "name", manifest.name, f"the folder's, {name!r}")
    return manifest
