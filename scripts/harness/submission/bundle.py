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

MARK = "# Written by moebench submit"


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
        flat[target] = with_flat_imports(PurePosixPath(path), text, modules) if target.endswith(".py") else text
    return dict(sorted(flat.items()))


def with_flat_imports(path: PurePosixPath, text: str, modules: set[tuple[str, ...]]) -> str:
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
    language = solution.spec.language.value
    entry_file, function = solution.spec.entry_point.split("::")
    sources = folder / "solution" / language
    sources.mkdir(parents=True)
    for path, text in flatten(solution.name, {s.path: s.content for s in solution.sources}).items():
        (sources / path).write_text(text, encoding="utf-8")
    named = {"name": solution.name, "definition": solution.definition, "author": solution.author}
    built = {
        "language": language,
        "entry_point": f"{PurePosixPath(entry_file).name}::{function}",
        "destination_passing_style": solution.spec.destination_passing_style,
    }
    lines = [f"{MARK}; the repository's own source hash is {solution.hash()}."]
    for table, values in (("solution", named), ("build", built)):
        lines.append(f"[{table}]")
        lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
        lines.append("")
    (folder / "config.toml").write_text("\n".join(lines), encoding="utf-8")
    packed = pack_solution_from_files(path=str(sources), spec=BuildSpec(target_hardware=["cuda"], **built), **named)
    (folder / "solution.json").write_text(packed.model_dump_json(indent=2), encoding="utf-8")
    return packed
