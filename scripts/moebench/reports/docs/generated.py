"""Write what is generated in README.md and docs/: tables between markers, and figures.

`moebench docs` calls `update` with the tables and figures of pages.py. In a page the lines
`<!-- generated: NAME -->` and `<!-- end of NAME -->` hold a block, a table for instance.
"""

import re
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from moebench.core import paths
from moebench.core.atomic_file import write_atomically
from moebench.reports.docs.page import read_pages
from moebench.reports.figures import style
from moebench.reports.table import Table

BLOCK = re.compile(
    r"^<!-- generated: (?P<name>.+?) -->$"
    r"(?P<content>(?:(?!^<!-- )(?s:.))*)"
    r"^<!-- end of (?P=name) -->$",
    re.M,
)

# (page, name of the block) -> its content
Tables = dict[tuple[str, str], Callable[[], Table | str]]
Figures = dict[str, Callable[[], Figure]]  # file in docs/ -> the figure


def update(
    check: bool, tables: Tables, figures: Figures, root: Path = paths.ROOT
) -> list[str]:
    """Write the tables and figures, or only check them, and return a line for each problem."""
    problems = []
    filled = set()
    for page in read_pages(root).values():
        for block in BLOCK.finditer(page.text):
            place = (page.name, block["name"])
            if place in tables:
                filled.add(place)
                content = f"\n\n{tables[place]()}\n\n"
                reason = f"block {block['name']!r} is out of date"
                page.fill(block.span("content"), content, reason)
            else:
                page.problems.append(f"{page.name}: nothing makes {block['name']!r}")
        problems += page.finish(check)

    for page_name, name in tables.keys() - filled:
        problems.append(f"{page_name}: the block {name!r} is missing")

    folder = root / "docs"
    for file, make in figures.items():
        problems += update_figure(folder / file, make, check)
    for path in sorted(folder.glob("*.svg")):
        if path.name not in figures:
            problems.append(f"docs/{path.name}: nothing makes this figure")
    return problems


def update_figure(path: Path, make: Callable[[], Figure], check: bool) -> list[str]:
    """Write one figure, or only check it, and return a line if it is out of date.

    An SVG holds a digest of what was drawn, by which it is known to be up to date.
    """
    with style.settings():
        figure = make()
        made_from = f"made from {style.digest(figure)}"
        if path.exists() and made_from in path.read_text(encoding="utf-8"):
            return []
        if check:
            return [f"docs/{path.name} is out of date: run `moebench docs`"]
        write_atomically(path, style.svg(figure, made_from))
    return []
