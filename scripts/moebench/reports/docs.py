"""All that is generated in README.md and docs/: tables between markers, and figures.

In a page `<!-- generated: NAME -->` and `<!-- end of NAME -->` hold a table that commands/docs.py
lists, with the SVGs.
"""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from moebench.core import paths
from moebench.core.atomic_file import write_atomically
from moebench.reports.figures import style

BLOCK = re.compile(
    r"(?P<begin>^<!-- generated: (?P<name>.+?) -->$)"
    r"(?P<content>(?:(?!^<!-- )(?s:.))*)"
    r"(?P<end>^<!-- end of (?P=name) -->$)",
    re.M,
)

Tables = dict[tuple[str, str], Callable[[], str]]  # (page, name of the block) -> its Markdown
Figures = dict[str, Callable[[], Figure]]  # file in docs/ -> the figure


def update_page(page: str, check: bool, root: Path, tables: Tables) -> list[str]:
    """As `update`, of one page."""
    text, problems, found = (root / page).read_text(encoding="utf-8"), [], set()

    def renew(block: re.Match) -> str:
        found.add((page, block["name"]))
        if (page, block["name"]) not in tables:
            problems.append(f"{page}: nothing makes the block {block['name']!r}")
            return block[0]
        new = f"\n\n{tables[page, block['name']]()}\n\n"
        if check and new != block["content"]:
            problems.append(f"{page}: block {block['name']!r} is out of date: run `moebench docs`")
        return block["begin"] + new + block["end"]

    made = BLOCK.sub(renew, text)
    problems += [
        f"{page}: the block {name!r} is missing" for at, name in set(tables) - found if at == page
    ]
    if not check:
        write_atomically(root / page, made)
    return problems


def update_figure(file: str, make: Callable[[], Figure], check: bool, root: Path) -> list[str]:
    """As `update`, of one figure: its SVG says which figures it was drawn from, and by which
    code.
    """
    path, sources = root / "docs" / file, sorted(Path(style.__file__).parent.glob("*.py"))
    with style.settings():
        figure = make()
        drawn = json.dumps(style.values(figure)).encode() + b"".join(
            source.read_bytes() for source in sources
        )
        made_from = f"made from {hashlib.sha256(drawn).hexdigest()}"
        if path.exists() and made_from in path.read_text(encoding="utf-8"):
            return []
        if check:
            return [f"docs/{file} is out of date: run `moebench docs`"]
        write_atomically(path, style.svg(figure, made_from))
    return []


def update(check: bool, tables: Tables, figures: Figures, root: Path = paths.ROOT) -> list[str]:
    """Write the tables of README and of the pages of docs/, and the figures; or only check. A line
    for each problem.
    """
    pages = sorted(
        path.relative_to(root).as_posix()
        for path in (*(root / "docs").glob("*.md"), root / "README.md")
    )
    problems = [line for page in pages for line in update_page(page, check, root, tables)]
    for file, make in figures.items():
        problems += update_figure(file, make, check, root)
    stray = {path.name for path in (root / "docs").glob("*.svg")} - set(figures)
    return problems + [f"docs/{name}: nothing makes this figure" for name in sorted(stray)]
