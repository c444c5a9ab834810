"""Write what is generated in README.md and docs/: tables between markers, and figures.

In a page `<!-- generated: NAME -->` and `<!-- end of NAME -->` hold a table. Which tables and
figures there are says reports/pages.py.
"""

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


def update(check: bool, tables: Tables, figures: Figures, root: Path = paths.ROOT) -> list[str]:
    """Write the tables and figures, or only check them, and return a line for each problem."""
    problems = []
    for path in [*sorted((root / "docs").glob("*.md")), root / "README.md"]:
        problems += update_page(path.relative_to(root).as_posix(), check, root, tables)

    for file, make in figures.items():
        problems += update_figure(file, make, check, root)
    for path in sorted((root / "docs").glob("*.svg")):
        if path.name not in figures:
            problems.append(f"docs/{path.name}: nothing makes this figure")
    return problems


def update_page(page: str, check: bool, root: Path, tables: Tables) -> list[str]:
    """Do for one page what `update` does for all."""
    text = (root / page).read_text(encoding="utf-8")
    problems = []
    names = []

    def renew(block: re.Match) -> str:
        name = block["name"]
        names.append(name)
        if (page, name) not in tables:
            problems.append(f"{page}: nothing makes the block {name!r}")
            return block[0]

        content = f"\n\n{tables[page, name]()}\n\n"
        if check and content != block["content"]:
            problems.append(f"{page}: block {name!r} is out of date: run `moebench docs`")
        return block["begin"] + content + block["end"]

    renewed = BLOCK.sub(renew, text)
    for of_page, name in tables:
        if of_page == page and name not in names:
            problems.append(f"{page}: the block {name!r} is missing")
    if not check:
        write_atomically(root / page, renewed)
    return problems


def update_figure(file: str, make: Callable[[], Figure], check: bool, root: Path) -> list[str]:
    """Do for one figure what `update` does for all. Its SVG says what it was drawn from."""
    path = root / "docs" / file
    with style.settings():
        figure = make()
        made_from = f"made from {style.digest(figure)}"
        if path.exists() and made_from in path.read_text(encoding="utf-8"):
            return []
        if check:
            return [f"docs/{file} is out of date: run `moebench docs`"]
        write_atomically(path, style.svg(figure, made_from))
    return []
