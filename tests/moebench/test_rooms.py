"""Imports run one way through the rooms of scripts/moebench; every room is small, and names
no solution.
"""

import ast
import re
import tomllib

import pytest
from moebench.core import paths
from moebench.packing.manifest import solution_names

MOEBENCH = paths.ROOT / "scripts" / "moebench"
ORDER = (
    {"core"},
    {"operators"},
    {"packing"},
    {"judging"},
    {"results"},
    {"profiling", "served"},
    {"reports"},
    {"submission"},
    {"commands"},
)
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms}
DOZEN = 12  # files in a folder, beside __init__.py
# Not imported by another file, since it is a process of its own, and why.
PROGRAMS = {"moebench.submission.build_alone": "runs in an environment without this package"}
FILES = sorted(MOEBENCH.rglob("*.py"))
FOLDERS = sorted({file.parent for file in FILES} - {MOEBENCH})


def module_of(file):
    """moebench.core.paths, and moebench.core for its __init__.py."""
    return ".".join(file.relative_to(MOEBENCH.parent).with_suffix("").parts).removesuffix(
        ".__init__"
    )


MODULES = {module_of(file): file for file in FILES}


def imports(file):
    """Modules of the harness that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name}:{node.lineno}: a relative import"
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found & MODULES.keys()


def room_of(module):
    """The room that a module is in; None for those beside the rooms, as moebench.cli is."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LEVEL else None


def name_of(path):
    return str(path.relative_to(paths.ROOT))


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_a_room_imports_only_the_rooms_below_it(folder):
    upwards = []
    for file in folder.glob("*.py"):
        room = room_of(module_of(file))
        for module in imports(file):
            other = room_of(module)
            if (
                module != "moebench"
                and other != room
                and (other is None or LEVEL[other] >= LEVEL[room])
            ):
                upwards.append(f"{module_of(file)} imports {module}")
    assert not upwards


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_a_room_is_small_and_says_what_it_holds(folder):
    files = [path for path in folder.iterdir() if path.is_file() and path.name != "__init__.py"]
    assert len(files) <= DOZEN
    assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))


def test_the_harness_names_no_solution():
    """What is about one solution alone lies beside it or in tools/."""
    named = re.compile(rf"\b({'|'.join(solution_names())})(_|\b)")
    assert {
        name_of(file) for file in FILES if named.search(file.read_text(encoding="utf-8"))
    } == set()


def test_every_file_is_used():
    """By another file of the harness, as a subcommand, or as a program of its own."""
    used = {module for file in FILES for module in imports(file) if MODULES[module] != file}
    starts = {"moebench.cli", "moebench.__main__"} | PROGRAMS.keys()
    files = {
        module
        for module, file in MODULES.items()
        if file.stem != "__init__" and room_of(module) != "commands"
    }
    assert files - used - starts == set()


def test_every_folder_is_installed():
    """A folder that pyproject.toml does not list is missing in an install that is not editable."""
    project = tomllib.loads((paths.ROOT / "pyproject.toml").read_text())
    listed = set(project["tool"]["setuptools"]["packages"]) - {"definitions"}
    assert listed == {"moebench", *(module_of(folder / "__init__.py") for folder in FOLDERS)}
