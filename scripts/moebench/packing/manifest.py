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
# of the base, where a manifest has none of its own
INHERITED = ("units", "stages", "renorm_entry_point", "routed_entry_point", "mxfp4_entry_point")
SERVING = ("definitions", "serves")  # likewise, where it has neither
DEFAULT = ["full", "small"]
NOT_SOLUTIONS = {"common", "packed"}


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

    entry_point: FILE::FUNCTION; renorm_entry_point, routed_entry_point, mxfp4_entry_point: those
    for definitions with renorm routing, for routed ones and for MXFP4 experts. FUNCTION_bf16 beside
    one of them, for tokens in bf16, is exported by packages as run_bf16. units: .cu files of
    solutions/common/ that no file includes, as "common/cuda/host/binding.cu". definitions: keys of
    catalogue.layer_sizes(); once it is read, those that `serves` takes, too. based_on: the solution
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
    units: list[Text] = []
    definitions: list[Literal[*catalogue.layer_sizes()]] = []
    serves: list[Rule] = []
    based_on: Text | None = None
    first_use: Text | None = None
    start: Text | None = None
    stages: dict[str, Text] = {}
    facts: dict[str, Text] = {}


def solution_names() -> list[str]:
    """Return the names of the folders with a manifest, sorted."""
    names = {path.parent.name for path in paths.SOLUTIONS.glob(f"*/{MANIFEST}")}
    return sorted(names - NOT_SOLUTIONS)


def folder_name(packed: str, definition: str) -> str:
    """Return the solution behind the name of a packed one: mine for mine_e16.

    Packing adds parts of the definition's name, as `pack.packed_name`. A name that no solution here
    goes with is returned as it is.
    """
    added_parts = {"", *definition.split("_")}
    fitting = []
    for name in solution_names():
        rest = packed.removeprefix(name)
        if f"{packed}_".startswith(f"{name}_") and added_parts.issuperset(rest.split("_")):
            fitting.append(name)
    return max(fitting, key=len, default=packed)


def readable() -> dict[str, Manifest]:
    """Return name -> manifest of each solution whose manifest can be read. `pack.pack_all` says
    what is wrong with the others.
    """
    manifests = {}
    for name in solution_names():
        with suppress(PackingError):
            manifests[name] = read_manifest(name)
    return manifests


def choose(names: list[str]) -> list[str]:
    """Return names, or every readable solution when there are none. Raises UserError for an unknown
    one.
    """
    existing = solution_names()
    for name in names:
        if name not in existing:
            raise UserError(unknown("solution", name, existing))
    return list(dict.fromkeys(names)) or list(readable())


def solutions_of(layer_keys: Collection[str]) -> list[str]:
    """Return the names of the readable solutions that serve one of these layer keys."""
    wanted = set(layer_keys)
    return [name for name, manifest in readable().items() if wanted & set(manifest.definitions)]


def refusal(name: str, key: str, got: object, want: str) -> PackingError:
    """Return the error for a key that is well formed but cannot be followed."""
    return PackingError(f"{name}: {MANIFEST}: {key}: got {got!r}, want {want}")


def read_manifest(name: str) -> Manifest:
    """Return a solution's manifest, with what is INHERITED from its base.

    Raises PackingError for missing, unknown or contradicting keys.
    """
    manifest = read_own_manifest(name)
    if manifest.based_on is not None:
        manifest = with_inherited(manifest, read_base(manifest))
    return with_served(manifest)


def read_base(manifest: Manifest) -> Manifest:
    """Return the manifest of a solution's base. Raises PackingError if it cannot be one."""
    base_name = manifest.based_on
    others = [name for name in solution_names() if name != manifest.name]
    if base_name not in others:
        wanted = f"another solution: {', '.join(others) or 'there is none'}"
        raise refusal(manifest.name, "based_on", base_name, wanted)

    base = read_own_manifest(base_name)
    if base.based_on is not None:
        wanted = f"a solution without a base; this one's is {base.based_on}"
        raise refusal(manifest.name, "based_on", base_name, wanted)
    return base


def with_inherited(manifest: Manifest, base: Manifest) -> Manifest:
    stated = manifest.model_fields_set
    inherited = [key for key in INHERITED if key not in stated]
    if stated.isdisjoint(SERVING):
        inherited += SERVING
    return manifest.model_copy(update={key: getattr(base, key) for key in inherited})


def with_served(manifest: Manifest) -> Manifest:
    """Return it with the definitions that its rules take. Raises PackingError where they take
    none.
    """
    listed = manifest.definitions
    if not listed and not manifest.serves:
        listed = DEFAULT

    definitions = list(dict.fromkeys([*listed, *served(manifest.serves)]))
    if not definitions:
        wanted = "one that `moebench data` lists"
        raise refusal(manifest.name, "serves", "rules that take no definition", wanted)
    return manifest.model_copy(update={"definitions": definitions})


def read_source(name: str, path: Path) -> str:
    """Return the text of a solution's file. Raises PackingError for one that cannot be read or is
    no UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PackingError(f"{name}: {path.name}: {error}") from error


@cache  # by text, as tests and `new` change files: listing solutions reads every manifest
def validated(text: str) -> Manifest:
    return Manifest.model_validate(tomllib.loads(text))


def read_own_manifest(name: str) -> Manifest:
    """Return what a solution's solution.toml itself says. Raises PackingError."""
    try:
        manifest = validated(read_source(name, paths.SOLUTIONS / name / MANIFEST))
    except tomllib.TOMLDecodeError as error:
        raise PackingError(f"{name}: {MANIFEST}: {error}") from error
    except ValidationError as error:
        raise PackingError(f"{name}: {MANIFEST}: {first_fault(error, 'file')}") from error
    if manifest.name != name:
        raise refusal(name, "name", manifest.name, f"the folder's, {name!r}")
    return manifest
