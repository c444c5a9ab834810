"""A figure of docs/ as a file: what it is made from, and whether the file is still the one to be made."""

import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from harness.report import colours
from harness.report.figures import style
from harness.results.comparison import Comparison

TOLERANCE = "relaxed"  # of what is drawn of the FP8 layer


@dataclass(frozen=True)
class Picture:
    """file: its name; draw makes it of the arguments, which JSON can hold."""

    file: str
    draw: Callable[..., Figure]
    arguments: tuple

    @property
    def made_from(self) -> str:
        """A line in the SVG that changes with the figures drawn and with how they are drawn."""
        digest = hashlib.sha256(json.dumps(self.arguments, sort_keys=True).encode())
        for source in (sys.modules[self.draw.__module__].__file__, style.__file__, colours.__file__):
            digest.update(Path(source).read_bytes())
        return f"made from {digest.hexdigest()}"

    def svg(self) -> str:
        return style.svg(lambda: self.draw(*self.arguments), self.made_from)

    def is_in(self, folder: Path) -> bool:
        """Whether the file in folder was made from the same."""
        path = folder / self.file
        return path.is_file() and self.made_from in path.read_text()


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def of_run_groups(comparison: Comparison, file: str, title: str, data: Callable, draw: Callable) -> list[Picture]:
    """One for each run group at TOLERANCE in which data(group) finds what can be drawn.

    file: {} stands for the machine; groups of one machine that differ in versions or protocol are numbered from 2.
    """
    made, taken = [], Counter()
    for section, group in comparison.runs:
        if group.tolerance_name != TOLERANCE or not (found := data(group)):
            continue
        where = slug(section.hardware)
        taken[where] += 1
        name = file.format(where if taken[where] == 1 else f"{where}-{taken[where]}")
        heading = f"{title}: {section.hardware}, {group.tolerance_name} tolerance"
        conditions = f"{section.versions_text}; {group.protocol}"
        made.append(Picture(name, draw, (found, heading, f"{section.definition}; {group.when}\n{conditions}")))
    return made
