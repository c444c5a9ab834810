"""Read solution.toml, the manifest in a solution's folder:

    name = "mine"
    author = "me"
    description = "One kernel for each stage."
    language = "triton"
    entry_point = "main.py::run"
    target_hardware = ["sm_90"]
    definitions = ["glm-5-ep8"]

Everything that needs a manifest calls `read_manifest` or one of the lists of solutions below it.
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
# Keys that a manifest has from the solution it is based on, where it does not state them
INHERITED = (
    "units",
    "stages",
    "renorm_entry_point",
    "routed_entry_point",
    "mxfp4_entry_point",
)
SERVING = ("definitions", "serves")  # both are inherited where neither is stated
DEFAULT = ["full", "small"]  # definitions of a solution that says nothing of them
NOT_SOLUTIONS = {"common", "packed"}  # folders beside those of solutions


class PackingError(UserError):
    """A solution cannot be packed; the message is one line for the user."""

    status = 1


Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
# a folder in data sets
Author = Annotated[Text, StringConstraints(pattern=r"^[^./\\][^/\\]*$")]
Hardware = Literal[
    "cpu", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121"
]


class Manifest(Strict):
    """The keys of solution.toml.

    entry_point: FILE::FUNCTION. renorm_entry_point, routed_entry_point, mxfp4_entry_point: the
    entry points for definitions with softmax routing inside, with top-k given, and with MXFP4
    experts, where they differ from it. A FUNCTION_bf16 beside one of these functions takes tokens
    in bf16; in packages it is `run_bf16`.

    units: .cu files of solutions/common/ that are compiled and that no file includes, as
    "common/cuda/host/binding.cu". definitions: layer keys; `read_manifest` adds those that the
    rules in `serves` take. based_on: the solution whose files this one has, too; its
    folder's files stand in for those of the same name.

    The other keys are not packed, and so have no effect on FIB's hash. first_use: what the first
    call takes, "compiles for two minutes". start: the name under which `moebench new --from` copies
    the solution. stages: pattern of a kernel's plain name -> stage. facts: what the docs' tables
    say of the solution.
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


def read_manifest(name: str) -> Manifest:
    """Return a solution's manifest, with inherited keys and all definitions that it serves.

    Raises PackingError for missing, unknown or contradicting keys.
    """
    manifest = read_stated_manifest(name)
    if manifest.based_on is not None:
        base = read_base(manifest)
        stated = manifest.model_fields_set
        inherited = [key for key in INHERITED if key not in stated]
        if stated.isdisjoint(SERVING):
            inherited += SERVING
        values = {key: getattr(base, key) for key in inherited}
        manifest = manifest.model_copy(update=values)

    listed = manifest.definitions
    if not listed and not manifest.serves:
        listed = DEFAULT

    definitions = list(dict.fromkeys([*listed, *served(manifest.serves)]))
    if not definitions:
        wanted = "one that `moebench data` lists"
        raise refusal(manifest.name, "serves", "rules that take no definition", wanted)
    return manifest.model_copy(update={"definitions": definitions})


def read_stated_manifest(name: str) -> Manifest:
    """Return what a solution.toml states, without inherited keys. Raises PackingError."""
    try:
        manifest = validated(read_source(name, paths.SOLUTIONS / name / MANIFEST))
    except tomllib.TOMLDecodeError as error:
        raise PackingError(f"{name}: {MANIFEST}: {error}") from error
    except ValidationError as error:
        raise PackingError(
            f"{name}: {MANIFEST}: {first_fault(error, 'file')}"
        ) from error
    if manifest.name != name:
        raise refusal(name, "name", manifest.name, f"the folder's, {name!r}")
    return manifest


@cache  # by text: every list of solutions reads all manifests, and a file may change
def validated(text: str) -> Manifest:
    """Return the manifest with this text."""
    return Manifest.model_validate(tomllib.loads(text))


def read_source(name: str, path: Path) -> str:
    """Return the text of a solution's file. Raises PackingError for one that cannot be read or is
    no UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PackingError(f"{name}: {path.name}: {error}") from error


def read_base(manifest: Manifest) -> Manifest:
    """Return the manifest of the solution that `manifest` is based on.

    Raises PackingError where there is no such solution, and where it is based on another itself.
    """
    base_name = manifest.based_on
    others = [name for name in solution_names() if name != manifest.name]
    if base_name not in others:
        wanted = f"another solution: {', '.join(others) or 'there is none'}"
        raise refusal(manifest.name, "based_on", base_name, wanted)

    base = read_stated_manifest(base_name)
    if base.based_on is not None:
        wanted = f"a solution without a base; this one's is {base.based_on}"
        raise refusal(manifest.name, "based_on", base_name, wanted)
    return base


def refusal(name: str, key: str, got: object, want: str) -> PackingError:
    """Return the error for a key whose value has the right type, but cannot be."""
    return PackingError(f"{name}: {MANIFEST}: {key}: got {got!r}, want {want}")


def solution_names() -> list[str]:
    """Return the names of the folders with a manifest, sorted."""
    names = {path.parent.name for path in paths.SOLUTIONS.glob(f"*/{MANIFEST}")}
    return sorted(names - NOT_SOLUTIONS)


def folder_name(packed: str, definition: str) -> str:
    """Return the folder of the solution that is packed under a name: mine for mine_e16.

    `pack.packed_name` adds parts of the definition's name to the folder's. The name of a solution
    that is not in this repository is returned as it is.
    """
    added_parts = {"", *definition.split("_")}
    fitting = []
    for name in solution_names():
        rest = packed.removeprefix(name)
        if f"{packed}_".startswith(f"{name}_") and added_parts.issuperset(
            rest.split("_")
        ):
            fitting.append(name)
    return max(fitting, key=len, default=packed)


def readable_manifests() -> dict[str, Manifest]:
    """Return name -> manifest, without solutions whose manifest is faulty; `pack.pack_all` says
    what is wrong with them.
    """
    manifests = {}
    for name in solution_names():
        with suppress(PackingError):
            manifests[name] = read_manifest(name)
    return manifests


def choose(names: list[str]) -> list[str]:
    """Return the names, each once; for [] those of all solutions whose manifest is readable.

    Raises UserError for a name that no solution has.
    """
    existing = solution_names()
    for name in names:
        if name not in existing:
            raise UserError(unknown("solution", name, existing))
    return list(dict.fromkeys(names)) or list(readable_manifests())


def solutions_of(layer_keys: Collection[str]) -> list[str]:
    """Return the names of the readable solutions that serve one of these layer keys."""
    wanted = set(layer_keys)
    manifests = readable_manifests()
    return [name for name in manifests if wanted & set(manifests[name].definitions)]
