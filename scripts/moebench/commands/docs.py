"""Write the generated tables and figures of README.md and docs/, from traces/ and docs/data/.

--check writes nothing and says what is out of date. Exit status: 0, or 1 when something is out of
date or could not be made.
"""

import argparse
import sys
from dataclasses import replace
from functools import cache

import pandas as pd

from moebench.core import paths
from moebench.core.errors import UserError
from moebench.operators.roofline import H100, MEASURED_ON
from moebench.profiling import table as profiles
from moebench.report import comparison, docs, models
from moebench.report.figures import speed
from moebench.results import table
from moebench.served import table as served


@cache
def rows(clock: str = "events") -> pd.DataFrame:
    """This repository's traces. Raises UserError for one that cannot be read: no page leaves any of
    them out.
    """
    found, warnings = table.load([paths.ROOT if clock == "events" else paths.GPU_CLOCK])
    if warnings:
        raise UserError(warnings[0])
    return found[found.clock == clock]


def main_definition(clock: str = "events", gpu: str = MEASURED_ON) -> pd.DataFrame:
    found = rows(clock)
    return found[(found.geometry == "full") & (found.hardware == gpu)]


def with_provenance(made: str, cells: pd.DataFrame) -> str:
    return f"{made}\n\n<sub>{comparison.provenance(cells)}.</sub>"


def solutions(cells: pd.DataFrame) -> str:
    return with_provenance(
        replace(comparison.solutions(cells), caption="").markdown(), cells
    )  # the page explains it


def of_models() -> str:
    return with_provenance(
        models.use(rows()).markdown(), pd.concat([cells for _, cells in models.measured(rows())])
    )


TABLES: docs.Tables = {
    ("README.md", "solutions"): lambda: solutions(main_definition()),
    ("README.md", "models"): of_models,
    ("docs/compare.md", "clocks"): lambda: solutions(main_definition("gpu")),
    ("docs/compare.md", "h100"): lambda: solutions(main_definition(gpu=H100)),
    ("docs/models.md", "speeds"): lambda: models.speeds(rows()).markdown(),
    ("docs/tolerances.md", "passes"): lambda: comparison.exactness(main_definition()).markdown(),
    ("docs/served.md", "served"): served.block,
    ("docs/profile.md", "profile"): profiles.block,
}
FIGURES: docs.Figures = {
    "speed-nvidia-h200.svg": lambda: speed.figure(main_definition()),
    "stages-nvidia-h200.svg": profiles.figure,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="only say what is out of date")


def main(args: argparse.Namespace) -> int:
    paths.require_clone("moebench docs")
    problems = docs.update(args.check, TABLES, FIGURES)
    for line in problems:
        print(line, file=sys.stderr)
    return 1 if problems else 0
