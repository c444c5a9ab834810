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
from moebench.reports.docs.sentences import page_files, replace_spans
from moebench.reports.figures import style

BLOCK = re.compile(
    r"(?P<begin>^<!-- generated: (?P<name>.+?) -->$)"
    r"(?P<content>(?:(?!^<!-- )(?s:.))*)"
    r"(?P<end>^<!-- end of (?P=name) -->$)",
    re.M,
)

# (page, name of the block) -> its Markdown
Tables = dict[tuple[str, str], Callable[[], str]]
Figures = dict[str, Callable[[], Figure]]  # file in docs/ -> the figure


def update(
    check: bool, tables: Tables, figures: Figures, root: Path = paths.ROOT
) -> list[str]:
    """Write the tables and figures, or only check them, and return a line for each problem."""
    problems = []
    for page, path in page_files(root).items():
        problems += update_page(page, path, check, tables)

    folder = root / "docs"
    for file, make in figures.items():
        problems += update_figure(folder / file, make, check)
    for path in sorted(folder.glob("*.svg")):
        if path.name not in figures:
            problems.append(f"docs/{path.name}: nothing makes this figure")
    return problems


def update_page(page: str, path: Path, check: bool, tables: Tables) -> list[str]:
    """Write the tables of one page, or only check them, and return a line for each problem."""
    text = path.read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(text))
    problems = missing_blocks(page, blocks, tables)

    replacements = {}
    for block in blocks:
        name = block["name"]
        make = tables.get((page, name))
        if make is None:
            problems.append(f"{page}: nothing makes the block {name!r}")
            continue
        content = f"\n\n{make()}\n\n"
        if content != block["content"]:
            replacements[block.span("content")] = content
            if check:
                problems.append(
                    f"{page}: block {name!r} is out of date: run `moebench docs`"
                )

    if replacements and not check:
        write_atomically(path, replace_spans(text, replacements))
    return problems


def missing_blocks(page: str, blocks: list[re.Match], tables: Tables) -> list[str]:
    """Return a line for each table of a page that has no block there."""
    names = {block["name"] for block in blocks}
    problems = []
    for table_page, name in tables:
        if table_page == page and name not in names:
            problems.append(f"{page}: the block {name!r} is missing")
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
