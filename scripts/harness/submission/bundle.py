"""A solution in the layout of the public starter kit: config.toml, solution/<language>/ and solution.json.

The kit packs the sources directly in solution/<language>/, no folders and no data. So all files move up beside main.py,
and imports and includes follow; t.csv becomes t.csv.h, and so does what is opened by that name.
"""

import json
from pathlib import Path, PurePosixPath

from flashinfer_bench import BuildSpec, Solution
from flashinfer_bench.agents import pack_solution_from_files

from harness.packing.flat import flatten

MARK = "# Written by moebench submit"


def write(solution: Solution, folder: Path) -> Solution:
    """Write the submission of a packed solution into folder, which is created; return what solution.json holds.

    solution.json is what FIB packs from the folder, as the kit's own script does: no dependencies, no description and
    target_hardware "cuda". Raises PackingError.
    """
    language = solution.spec.language.value
    entry_file, function = solution.spec.entry_point.split("::")
    sources = folder / "solution" / language
    sources.mkdir(parents=True)
    flat = flatten(solution.name, {s.path: s.content for s in solution.sources})
    for table in [path for path in flat if path.endswith(".csv")]:
        flat = {path: text.replace(f'"{table}"', f'"{table}.h"') for path, text in flat.items()}
        flat[f"{table}.h"] = flat.pop(table)
    for path, text in flat.items():
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
