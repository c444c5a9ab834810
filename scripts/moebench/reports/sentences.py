"""Figures in the sentences of README.md and docs/: each is recomputed from traces and records, or
it is said why it is no measurement of ours.

A template is a part of a sentence, word by word, with `{}` where a figure stands. Between its words
the page may break lines.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from moebench.core import paths
from moebench.core.atomic_file import write_atomically

HOLE = "{}"
NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
UNITS = r"%|x(?!\s?\d)|ms|us|s|seconds?|minutes?|[TGM]B/s|TFLOP/s|[TGMK]i?B|times"

# A number, or several, before a unit. Not within a name, a path or a version; 128 x 128 is a shape.
FIGURE = re.compile(
    rf"(?<![\w.`/=-]){NUMBER}(?:(?:\s(?:to|and|or)\s|,\s|\s/\s){NUMBER})*\s?(?:{UNITS})(?!\w)"
)

# What holds no sentence: what is generated, code and targets of links.
NO_SENTENCE = re.compile(
    r"^<!-- generated: (?P<name>.+?) -->$.*?^<!-- end of (?P=name) -->$"
    r"|^```.*?^```$|`[^`\n]*`|\]\([^)\n]*\)",
    re.M | re.S,
)

Place = tuple[str, str]  # (page, template)
Recomputed = dict[Place, Callable[[], list[str]]]  # what stands in the holes
NotMeasured = dict[Place, str]  # why it is no measurement of ours; the template has no holes


def update(
    check: bool, recomputed: Recomputed, not_measured: NotMeasured, root: Path = paths.ROOT
) -> list[str]:
    """Write the figures that are recomputed, or only check them, and return problems, a line each.

    Problems are figures that differ, that no template covers, and templates that no sentence fits.
    """
    problems = []
    for path in [*sorted((root / "docs").glob("*.md")), root / "README.md"]:
        page = path.relative_to(root).as_posix()
        problems += update_page(page, check, recomputed, not_measured, root)
    return problems


def update_page(
    page: str, check: bool, recomputed: Recomputed, not_measured: NotMeasured, root: Path
) -> list[str]:
    """Do for one page what `update` does for all."""
    text = (root / page).read_text(encoding="utf-8")
    problems = []
    covered = []
    changes = {}
    for template in templates_of(page, [*recomputed, *not_measured]):
        matches = list(pattern_of(template).finditer(text))
        if len(matches) != 1:
            count = len(matches) or "no"
            problems.append(f"{page}: {count} sentences fit {template!r}, want one")
            continue

        match = matches[0]
        covered.append(match.span())
        if (page, template) in recomputed:
            figures = figures_of(recomputed[page, template])
            if figures is None:
                where = f"{page}:{line_at(text, match.start())}"
                problems.append(f"{where}: no current trace or record gives {template!r}")
                continue
            for number, figure in enumerate(figures, 1):
                if match[number] != figure:
                    changes[match.span(number)] = figure

    for (first, end), figure in changes.items():
        if check:
            problems.append(
                f"{page}:{line_at(text, first)}: says {text[first:end]}, traces and records give "
                f"{figure}: run `moebench docs`"
            )
    problems += without_source(page, text, covered)
    if changes and not check:
        write_atomically(root / page, replaced(text, changes))
    return problems


def figures_of(compute: Callable[[], list[str]]) -> list[str] | None:
    """Return what stands in a template's holes, None where what it is computed from is not there.

    So it is with stale traces, which count for nothing.
    """
    try:
        figures = compute()
    except (LookupError, ValueError):
        return None
    is_complete = all(re.fullmatch(NUMBER, figure) for figure in figures)
    return figures if is_complete else None


def templates_of(page: str, places: Iterable[Place]) -> list[str]:
    return [template for of_page, template in places if of_page == page]


def pattern_of(template: str) -> re.Pattern:
    """Return what finds a template in a page, with a group for each hole."""
    words = []
    for word in template.split():
        parts = map(re.escape, word.split(HOLE))
        words.append(f"({NUMBER})".join(parts))
    return re.compile(r"\s+".join(words))


def without_source(page: str, text: str, covered: list[tuple[int, int]]) -> list[str]:
    """Return a line for each figure of a page's sentences that no template covers."""
    sentences = NO_SENTENCE.sub(lambda match: re.sub(r"[^\n]", "_", match[0]), text)
    problems = []
    for match in FIGURE.finditer(sentences):
        first, end = match.span()
        if not any(start <= first and end <= stop for start, stop in covered):
            figure = " ".join(match[0].split())
            problems.append(f"{page}:{line_at(text, first)}: {figure}: from which trace or record?")
    return problems


def line_at(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def replaced(text: str, changes: dict[tuple[int, int], str]) -> str:
    """Return a text with other words in these places."""
    for first, end in sorted(changes, reverse=True):
        text = text[:first] + changes[first, end] + text[end:]
    return text
