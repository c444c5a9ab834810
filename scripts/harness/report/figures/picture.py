"""A figure of docs/ as a file: what it is made from, and whether the file is still the one to be made."""

import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from harness.operators.catalogue import geometry_of
from harness.report.figures import style
from harness.results.comparison import Comparison, RunGroup, Section


@dataclass(frozen=True)
class Picture:
    """file: its name; made_from: a line in the SVG that changes with the figures drawn and with how they are drawn."""

    file: str
    made_from: str
    figure: Callable[[], Figure]

    def svg(self) -> str:
        with style.settings():
            figure = self.figure()
        return style.svg(figure, self.made_from)

    def is_in(self, folder: Path) -> bool:
        """Whether the file in folder was made from the same."""
        path = folder / self.file
        return path.is_file() and self.made_from in path.read_text()


def picture(file: str, draw: Callable[..., Figure], *arguments) -> Picture:
    """Of draw(*arguments), which JSON can hold; they and the source of draw's module are what it is made from."""
    digest = hashlib.sha256(json.dumps(arguments, sort_keys=True).encode())
    for source in (sys.modules[draw.__module__].__file__, style.__file__):
        digest.update(Path(source).read_bytes())
    return Picture(file, f"made from {digest.hexdigest()}", lambda: draw(*arguments))


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def run_groups(comparison: Comparison, tolerance: str) -> Iterator[tuple[Section, RunGroup, str]]:
    """The full FP8 layer's run groups at this tolerance, each with a name for its files.

    Those of one machine that differ in versions or protocol are numbered from 2.
    """
    taken: dict[str, int] = {}
    for section in comparison.sections:
        for group in section.groups:
            if geometry_of(section.definition) != "full" or group.tolerance_name != tolerance:
                continue
            where = slug(section.hardware)
            taken[where] = taken.get(where, 0) + 1
            yield section, group, where if taken[where] == 1 else f"{where}-{taken[where]}"


def conditions(section: Section, group: RunGroup) -> str:
    """Small print: versions, protocol and days."""
    return f"{section.versions_text}; {group.protocol}; {' to '.join(group.days)}"
