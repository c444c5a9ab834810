"""Write Python packages of packed solutions, which pip installs and engines find as plugins.

`moebench pack mine --package moe` writes a folder moe/ with a pyproject.toml and, for each packed
solution, moe/mine/: its sources, an __init__.py with `run`, and adapters for inference engines if
these can call it. `from moe.mine import run` then works without FIB and without this repository.
`pack_packages` does all of it.
"""

import hashlib
import importlib.metadata
import json
import re
import shutil
from dataclasses import dataclass
from keyword import iskeyword
from pathlib import Path

from flashinfer_bench import Solution

from moebench.core import paths
from moebench.core.atomic_file import write_atomically
from moebench.core.errors import UserError
from moebench.core.names import installed_as, is_pythons_own, normalised
from moebench.operators import catalogue
from moebench.packing.gather import COMMON
from moebench.packing.manifest import readable_manifests
from moebench.packing.pack import pack_all
from moebench.packing.references import outline

PROJECT = "pyproject.toml"
# the first line of a pyproject.toml that is written here
MARK = "# by moebench pack --package"
SUMMARY = "Written by moebench pack --package"  # the description in it, which pip shows

# Libraries that are imported beside a package; it cannot have the name of one
ENGINES = ("vllm", "sglang", "transformers", "numpy", "apache-tvm-ffi")
# Group of entry points in which an engine looks for plugins -> the adapter that it finds there
ADAPTERS = {
    "vllm.general_plugins": "for_vllm",
    "sglang.srt.plugins": "for_sglang",
}
# A package also exports functions that are named as its entry point with one of these endings: for
# tokens in bf16, and for a sum over several GPUs.
ENDINGS = ("_bf16", "_allreduce", "_allreduce_bf16")
# classes that are exported with a sum over several GPUs
PEERS = ("Peers", "RankMissing")
# not for MXFP4 experts
FP8_ADAPTERS = ("for_transformers", "for_vllm_fp8", "for_vllm_sum")
# by adapters
CHECKED_SIZES = ("num_local_experts", "top_k", "hidden_size", "intermediate_size")


@dataclass(frozen=True)
class Package:
    """A packed solution and the folder that it becomes."""

    folder: Path
    solution: Solution
    layer_key: str

    @property
    def exports(self) -> dict[str, str]:
        """Return name in the solution's main module -> name in the package, {"kernel": "run"}."""
        path, function = self.solution.spec.entry_point.split("::")
        texts = {source.path: source.content for source in self.solution.sources}
        names = outline(texts[path]).names

        exports = {function: "run"}
        for ending in ENDINGS:
            further = f"{function}{ending}"
            if further in names:
                exports[further] = f"run{ending}"
        if f"{function}_allreduce" in exports:
            exports |= {name: name for name in PEERS if name in names}
        return exports

    @property
    def has_bf16(self) -> bool:
        """Return whether there is a function for tokens in bf16."""
        return "run_bf16" in self.exports.values()

    @property
    def has_mxfp4(self) -> bool:
        """Return whether experts are in MXFP4. Engines then quantise tokens themselves."""
        return self.layer_key in catalogue.mxfp4()

    @property
    def has_adapters(self) -> bool:
        """Return whether engines can call the package: they route, and their tokens are bf16."""
        takes_tokens = self.has_mxfp4 or self.has_bf16
        return takes_tokens and catalogue.takes_top_k(self.layer_key)


def pack_packages(names: list[str], parent: Path, layer_keys: list[str]) -> list[Path]:
    """Write a package parent/<packed name>/ for each solution and layer, and parent/pyproject.toml;
    return the packages' folders. If anything is raised, none of them stays.

    layer_keys: of the layers; [] for the first that each solution serves. Raises what `pack_all`
    raises, and UserError where a solution serves none of the layers, where parent's name is taken,
    and where a package exists, since its sources would be compiled along with the new ones.
    """
    check_name(parent)
    file = parent / PROJECT
    if file.exists() and not file.read_bytes().startswith(MARK.encode()):
        raise UserError(
            f"--package: {file} is not of this command; name another folder"
        )
    packages = chosen_packages(names, parent, layer_keys)
    for package in packages:
        if package.folder.exists():
            raise UserError(
                f"--package: {package.folder} exists; remove it, or name another folder"
            )

    folders = [package.folder for package in packages]
    written = folders if parent.exists() else [parent]
    try:
        for package in packages:
            write_package(package)
        remove_pips_copies(parent)
        write_atomically(parent / PROJECT, project_text(parent))
    except BaseException:
        for folder in written:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return folders


def check_name(parent: Path) -> None:
    """Raise UserError for a folder whose name Python cannot import, and for one whose package would
    replace another when pip installs it.
    """
    name = parent.resolve().name
    if not re.fullmatch("[A-Za-z]([A-Za-z0-9_]*[A-Za-z0-9])?", name) or iskeyword(name):
        raise UserError(
            f"--package: got {parent}, want a folder with a name that Python imports and pip "
            "installs: letters, digits and underscores, a letter first"
        )

    if is_pythons_own(name):
        raise UserError(
            f"--package: got {parent}, but Python has its own {name}; want a new name"
        )

    needed = {*ENGINES}
    for manifest in readable_manifests().values():
        needed.update(manifest.dependencies)
    if normalised(name) in map(normalised, needed):
        raise UserError(
            f"--package: got {parent}, but packages need the library {name}; want a new name"
        )

    for distribution in installed_as(name):
        if importlib.metadata.metadata(distribution)["Summary"] != SUMMARY:
            raise UserError(
                f"--package: got {parent}, but {distribution} is installed under that name and "
                "would be replaced; want a new name"
            )


def chosen_packages(
    names: list[str], parent: Path, layer_keys: list[str]
) -> list[Package]:
    """Return the packages that `pack_packages` writes.

    Raises what `pack_all` raises, and UserError for a solution that serves none of the layers.
    """
    packed, _ = pack_all(names)
    packages = []
    for name, solutions in packed.items():
        wanted = [key for key in solutions if key in layer_keys]
        if not layer_keys:
            wanted = list(solutions)[:1]
        if not wanted:
            served = ", ".join(solutions)
            raise UserError(
                f"--definition: got {', '.join(layer_keys)}, want of {name}'s: {served}"
            )
        for key in wanted:
            solution = solutions[key]
            packages.append(Package(parent / solution.name, solution, key))
    return packages


def write_package(package: Package) -> None:
    for source in package.solution.sources:
        write_atomically(package.folder / source.path, source.content)

    if package.has_adapters:
        for adapter in paths.INTEGRATIONS.rglob("for_*.py"):
            if not package.has_mxfp4 or adapter.stem not in FP8_ADAPTERS:
                write_atomically(package.folder / adapter.name, adapter_text(adapter))

    write_atomically(package.folder / "__init__.py", init_text(package))


def adapter_text(adapter: Path) -> str:
    """Return an adapter's text with the imports that are right in a package, beside common/:

    from solutions.common... import    ->  from .common... import
    from integrations import SIZES     ->  from . import SIZES, which __init__.py defines
    from integrations.vllm.for_vllm_fp8 import    ->  from .for_vllm_fp8 import
    """
    text = adapter.read_text(encoding="utf-8")
    text = re.sub(
        r"^( *from )solutions\.common\b", r"\1.common", text, flags=re.MULTILINE
    )
    text = re.sub(
        r"^( *from )integrations import", r"\1. import", text, flags=re.MULTILINE
    )
    other_adapter = r"^( *from )integrations\.(?:\w+\.)?(for_\w+) import"
    return re.sub(other_adapter, r"\1.\2 import", text, flags=re.MULTILINE)


def init_text(package: Package) -> str:
    """Return the text of a package's __init__.py."""
    solution = package.solution
    file, _ = solution.spec.entry_point.split("::")
    module = file.removesuffix(".py").replace("/", ".")
    lines = [
        f'"""{solution.name}: packed source {solution.hash()}, by `moebench pack --package`."""',
        "",
    ]

    for name, exported in package.exports.items():
        renamed = name if exported == name else f"{name} as {exported}"
        lines.append(f"from .{module} import {renamed}  # noqa: F401")

    if package.has_adapters:
        layer = catalogue.layer_sizes()[package.layer_key]
        sizes = {key: layer[key] for key in CHECKED_SIZES}
        lines += ["", f'DEFINITION = "{solution.definition}"', f"SIZES = {sizes}"]
    return "\n".join([*lines, ""])


def remove_pips_copies(parent: Path) -> None:
    """Remove pip's builds of older packages from parent, as pip would install them again."""
    if not (parent / PROJECT).exists():
        return
    for path in (parent / "build").glob("*"):
        if path.name == "lib" or path.name.startswith("bdist."):
            shutil.rmtree(path, ignore_errors=True)


def project_text(parent: Path) -> str:
    """Return the text of parent's pyproject.toml, which lists all packages in parent."""
    name = parent.resolve().name
    packages = sorted(path.parent for path in parent.glob("*/__init__.py"))
    content = b"".join((package / "__init__.py").read_bytes() for package in packages)
    version = hashlib.sha1(content).hexdigest()[:8]
    compiles = any(parent.glob(f"*/{COMMON}/host/build_library.py"))

    lines = [
        MARK,
        "[project]",
        f'name = "{name}"',
        f'version = "1+{version}"',
        f'description = "{SUMMARY}"',
        f"dependencies = {json.dumps(['apache-tvm-ffi'] if compiles else [])}",
    ]

    for group, adapter in ADAPTERS.items():
        lines.append(f'[project.entry-points."{group}"]')
        for package in packages:
            if (package / f"{adapter}.py").exists():
                module = f"{name}.{package.name}.{adapter}"
                lines.append(f'{package.name} = "{module}:register"')

    lines += [
        "[tool.setuptools]",
        f"packages = {json.dumps(importable_folders(parent, packages))}",
        f'package-dir = {{ {name} = "." }}',
        'package-data = { "*" = ["*"] }',
    ]
    return "\n".join([*lines, ""])


def importable_folders(parent: Path, packages: list[Path]) -> list[str]:
    """Return the names of parent, of the packages and of all folders in them: "moe.mine.common"."""
    name = parent.resolve().name
    dotted = [name]
    for package in packages:
        for folder in (package, *sorted(package.rglob("*/"))):
            if folder.is_dir() and folder.name != "__pycache__":
                dotted.append(".".join([name, *folder.relative_to(parent).parts]))
    return dotted
