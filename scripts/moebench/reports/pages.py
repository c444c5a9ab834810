"""Which tables and figures README.md and docs/ hold, and of what they are made."""

from dataclasses import replace
from functools import cache

import pandas as pd

from moebench.core import paths
from moebench.core.errors import UserError
from moebench.operators.roofline import H100, MEASURED_ON
from moebench.profiling.record import read_records
from moebench.reports import comparison, models, multi_gpu, profiles, served, versions
from moebench.reports.docs import Figures, Tables
from moebench.reports.figures import speed, stages
from moebench.results import measurements


@cache
def rows(clock: str = "events") -> pd.DataFrame:
    """Return this repository's measurements by a clock.

    Raises UserError for a trace that cannot be read: no page leaves any of them out.
    """
    folder = paths.ROOT if clock == "events" else paths.GPU_CLOCK
    measured, warnings = measurements.load([folder])
    if warnings:
        raise UserError(warnings[0])
    return measured[measured.clock == clock]


def main_definition(clock: str = "events", gpu: str = MEASURED_ON) -> pd.DataFrame:
    """Return the measurements of the first definition, DeepSeek-V3's layer on one rank of eight."""
    measured = rows(clock)
    is_main = measured.geometry == "full"
    return measured[is_main & (measured.hardware == gpu)]


def solutions_block(measured: pd.DataFrame, docs: str = "") -> str:
    """Return a row for each solution, without the caption, as the page explains it.

    docs: the folder docs/ as the page links to it.
    """
    table = replace(comparison.solutions(measured), caption="")
    return f"{table.markdown()}\n\n{versions.caption(measured, docs)}"


def of_all_models() -> pd.DataFrame:
    """Return the measurements of every layer of a model."""
    return pd.concat([of_layer for _, of_layer in models.measured(rows())])


def models_block() -> str:
    """Return a row for each model: which solution to use."""
    table = models.recommended(rows())
    return f"{table.markdown()}\n\n{versions.caption(of_all_models(), 'docs/')}"


def versions_block() -> str:
    """Return what every table of solutions or models was measured with."""
    return versions.block(
        {
            "README, DeepSeek-V3's layer": main_definition(),
            "README, results by model": of_all_models(),
            "Two clocks": main_definition("gpu"),
            "On an H100": main_definition(gpu=H100),
        }
    )


def served_block() -> str:
    """Return the first served record's table, then a row for each record; "" without any."""
    records = served.recorded()
    if not records:
        return ""

    first = records[0]
    parts = [
        served.table(first.head, first.points).markdown(titled=True),
        models.served(records).markdown(),
    ]
    for record in records:
        origin = f"<sub>{served.origin(record.head)}.</sub>"
        if origin not in parts:
            parts.append(origin)
    return "\n\n".join(parts)


def profile_block() -> str:
    """Return the table of all profiles, and how each was made; "" without any."""
    records = read_records(paths.PROFILES)
    if not records:
        return ""

    table = profiles.table(records).markdown(titled=True)
    origins = [profiles.origin(record) for record in records]
    return f"{table}\n\n<sub>{'<br>'.join(origins)}</sub>"


TABLES: Tables = {
    ("README.md", "solutions"): lambda: solutions_block(main_definition(), "docs/"),
    ("README.md", "models"): models_block,
    ("docs/compare.md", "clocks"): lambda: solutions_block(main_definition("gpu")),
    ("docs/compare.md", "h100"): lambda: solutions_block(main_definition(gpu=H100)),
    ("docs/compare.md", "versions"): versions_block,
    ("docs/models.md", "speeds"): lambda: models.speeds(rows()).markdown(),
    ("docs/tolerances.md", "passes"): lambda: comparison.exactness(main_definition()).markdown(),
    ("docs/served.md", "served"): served_block,
    ("docs/multi_gpu.md", "all-reduce"): multi_gpu.block,
    ("docs/profile.md", "profile"): profile_block,
}
FIGURES: Figures = {
    "speed-nvidia-h200.svg": lambda: speed.figure(main_definition()),
    "stages-nvidia-h200.svg": lambda: stages.figure(read_records(paths.PROFILES)),
}
