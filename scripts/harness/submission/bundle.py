"""A solution in the layout of the public starter kit: config.toml, solution/<language>/ and solution.json.

The kit packs the files that lie directly in solution/<language>/ and drops folders below it, so the shared stages
move up beside main.py and relative imports are rewritten to follow them. Nothing else in a source changes.
"""

import ast
import json
import re
from pathlib import Path, PurePosixPath

from flashinfer_bench import BuildSpec, Solution
from flashinfer_bench.agents import pack_solution_from_files

from harness.packing.manifest import PackingError

LANGUAGES = ("triton", "cuda", "python")  # those that the contest's FAQ gives a folder
MARK = "# Written by moebench submit"
CONFIG = """\
{mark}; the repository's own source hash is {sha1}.
[solution]
name = {name}
definition = {definition}
author = {author}

[build]
language = {language}
entry_point = {entry_point}
destination_passing_style = {destination_passing_style}
"""


def flatten(name: str, sources: dict[str, str]) -> dict[str, str]:
    """Path -> text of a packed solution, with every file in one folder and relative imports that fit.

    Raises PackingError where two files would get one name.
    """
    flat = {}
    modules = {PurePosixPath(path).with_suffix("").parts for path in sources if path.endswith(".py")}
    for path, text in sources.items():
        target = PurePosixPath(path).name
        if target in flat:
            raise PackingError(f"{name}: two files called {target}, and a submission has a single folder")
        flat[target] = _with_flat_imports(PurePosixPath(path), text, modules) if target.endswith(".py") else text
    return dict(sorted(flat.items()))


def _with_flat_imports(path: PurePosixPath, text: str, modules: set[tuple[str, ...]]) -> str:
    """text with each `from .a.b import c` reduced to `from .b import c`, or to `from . import c` for a folder a.b."""
    folders = {module[:-1] for module in modules}
    lines = text.encode().splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ImportFrom) or node.level == 0:
            continue
        parent = path.parts[: len(path.parts) - node.level]
        target = (*parent, *(node.module.split(".") if node.module else ()))
        if target not in modules | folders:
            continue
        start, line = node.col_offset, lines[node.lineno - 1]
        wanted = f"from .{target[-1] if target in modules else ''} import".encode()
        lines[node.lineno - 1] = line[:start] + re.sub(rb"from\s*\.[\s.\w]*?\s+import\b", wanted, line[start:], count=1)
    return b"".join(lines).decode()


def write(solution: Solution, folder: Path) -> Solution:
    """Write the submission of a packed solution into folder, which is created; return what solution.json holds.

    solution.json is what FIB packs from the folder, as the kit's own script does, so both ways of handing in agree:
    no dependencies, no description and target_hardware "cuda". Raises PackingError.
    """
    spec = solution.spec
    language = spec.language.value
    entry_file, symbol = spec.entry_point.split("::")
    entry_point = f"{PurePosixPath(entry_file).name}::{symbol}"
    sources = folder / "solution" / language
    sources.mkdir(parents=True)
    for path, text in flatten(solution.name, {s.path: s.content for s in solution.sources}).items():
        (sources / path).write_text(text)
    strings = {
        "name": solution.name,
        "definition": solution.definition,
        "author": solution.author,
        "language": language,
        "entry_point": entry_point,
    }
    config = CONFIG.format(
        mark=MARK,
        sha1=solution.hash(),
        destination_passing_style=str(spec.destination_passing_style).lower(),
        **{key: json.dumps(text, ensure_ascii=False) for key, text in strings.items()},
    )
    (folder / "config.toml").write_text(config)
    packed = pack_solution_from_files(
        path=str(sources),
        spec=BuildSpec(
            language=language,
            target_hardware=["cuda"],
            entry_point=entry_point,
            destination_passing_style=spec.destination_passing_style,
        ),
        name=solution.name,
        definition=solution.definition,
        author=solution.author,
    )
    (folder / "solution.json").write_text(packed.model_dump_json(indent=2))
    return packed
