"""Imports run one way through the rooms of scripts/moebench, which name no solution."""

import ast
import re

import pytest
from moebench.core import paths
from moebench.packing.manifest import readable_manifests

MOEBENCH = paths.ROOT / "scripts" / "moebench"
ORDER = (
    {"core"},
    {"operators"},
    {"models"},
    {"packing"},
    {"judging"},
    {"results"},
    {"profiling", "served"},
    {"reports"},
    {"submission"},
    {"commands"},
)
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms}
# of this repository's solutions; users' are somebody else's
AUTHOR = "moe-fp8-solutions"

# Not imported by another file: it runs in an environment without this package.
PROGRAMS = {"moebench.submission.build_alone"}

FILES = sorted(MOEBENCH.rglob("*.py"))
FOLDERS = sorted({file.parent for file in FILES} - {MOEBENCH})


def module_of(file):
    """Return moebench.core.paths, and moebench.core for its __init__.py."""
    parts = file.relative_to(MOEBENCH.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


MODULES = {module_of(file): file for file in FILES}


def imports(file):
    """Return the modules of the package that a file imports, wherever in the file."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name}:{node.lineno}: a relative import"
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names & MODULES.keys()


def room_of(module):
    """Return the room that a module is in; None for those beside the rooms, as moebench.cli is."""
    parts = module.split(".")
    if len(parts) > 1 and parts[1] in LEVEL:
        return parts[1]
    return None


def is_allowed(importing, imported):
    """Return whether one module may import another: from its own room, or a room below."""
    room = room_of(importing)
    other = room_of(imported)
    if imported == "moebench" or other == room:
        return True
    return other is not None and LEVEL[other] < LEVEL[room]


def name_of(path):
    return str(path.relative_to(paths.ROOT))


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_a_room_imports_only_the_rooms_below_it(folder):
    upwards = []
    for file in folder.glob("*.py"):
        module = module_of(file)
        for imported in imports(file):
            if not is_allowed(module, imported):
                upwards.append(f"{module} imports {imported}")
    assert upwards == []


def test_the_harness_names_no_solution():
    """What is about one solution alone lies beside it or in tools/.

    A user's solution may have any name, that of a variable of the harness, too.
    """
    names = []
    for name, manifest in readable_manifests().items():
        if manifest.author == AUTHOR:
            names.append(name)
    assert names

    named = re.compile(rf"\b({'|'.join(names)})(_|\b)")
    naming = []
    for file in FILES:
        if named.search(file.read_text(encoding="utf-8")):
            naming.append(name_of(file))
    assert naming == []


def test_every_file_is_used():
    """By another file of the harness, as a subcommand, or as a program of its own."""
    used = {"moebench.cli", "moebench.__main__"} | PROGRAMS
    for file in FILES:
        used |= {module for module in imports(file) if MODULES[module] != file}

    unused = []
    for module, file in MODULES.items():
        is_start = file.stem == "__init__" or room_of(module) == "commands"
        if module not in used and not is_start:
            unused.append(module)
    assert unused == []
