"""Which tables and figures README.md and docs/ hold: TABLES and FIGURES, for `moebench docs`.

A function that ends in _block returns the Markdown of a table, with what stands below it.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd

from moebench.core import paths
from moebench.core.errors import UserError
from moebench.core.provenance import CLOCKS
from moebench.operators.roofline import H100, MEASURED_ON
from moebench.operators.workloads import recorded_counts
from moebench.reports import (
    comparison,
    layer_times,
    measured_with,
    models,
    predicted,
    profiles,
    served,
)
from moebench.reports.docs.generated import Figures, Tables
from moebench.reports.figures import speed
from moebench.reports.measured_with import TIMED
from moebench.reports.models import MeasuredLayer
from moebench.reports.table import Table
from moebench.results import measurements
from moebench.results.bounds import BOUNDS
from moebench.results.summary import by_solution


@cache
def rows(clock: str = "events") -> pd.DataFrame:
    """Return this repository's measurements by a clock, as rows of `measurements.load`.

    Raises UserError for a trace that cannot be read, as no page leaves any of them out.
    """
    folder = paths.ROOT if clock == "events" else paths.GPU_CLOCK
    measured, warnings = measurements.load([folder])
    if warnings:
        raise UserError(warnings[0])
    return without_local_bounds(measured[measured.clock == clock])


def without_local_bounds(measured: pd.DataFrame) -> pd.DataFrame:
    """Return the rows, with NaN for bounds of workloads that no workload file holds.

    `moebench run --tokens` leaves the routing of such workloads in blob/, which git does not see;
    a page must be the same in every clone.
    """
    in_files = set()
    for layer_key in measured.geometry.dropna().unique():
        in_files.update(recorded_counts(layer_key))

    is_in_file = measured.uuid.isin(in_files)
    columns = [*BOUNDS, "over_bound"]
    return measured.assign(**measured[columns].where(is_in_file))


def main_definition(clock: str = "events", gpu: str | None = MEASURED_ON) -> pd.DataFrame:
    """Return the measurements of the first definition, DeepSeek-V3's layer on one rank of eight.

    gpu: None for all.
    """
    measured = rows(clock)
    of_layer = measured[measured.geometry == models.MAIN_LAYER]
    return of_layer[of_layer.hardware == gpu] if gpu else of_layer


def headline_clock() -> str:
    """Return the clock of the tables and figures that are shown first.

    It is "gpu" if every solution was timed by the GPU's clock on every workload of the main
    definition, as a ratio and a figure need whole curves, else "events".
    """
    by_gpu = main_definition("gpu")
    if len(by_gpu) and by_solution(by_gpu).complete.all():
        return "gpu"
    return "events"


def with_provenance(table: Table, measured: pd.DataFrame) -> str:
    """Return a table with the line below it that says what its rows were measured with."""
    return f"{table.markdown()}\n\n{measured_with.caption(measured)}"


def rows_of_all(measured: list[MeasuredLayer]) -> pd.DataFrame:
    """Return the rows of all these layers."""
    return pd.concat([each.rows for each in measured])


def versions_block() -> str:
    """Return what the tables of solutions and of models were measured with, in full."""
    measured = {}
    for gpu in (MEASURED_ON, H100):
        for clock in CLOCKS:
            table_rows = main_definition(clock, gpu)
            if len(table_rows):
                measured[f"DeepSeek-V3 EP8 on {gpu}, {TIMED[clock]}"] = table_rows
    all_models = rows_of_all(models.measured_layers(rows()))
    measured[f"All models on {MEASURED_ON}, {TIMED['events']}"] = all_models
    shards = rows_of_all(models.measured_shards(rows("gpu")))
    measured[f"Tensor-parallel ranks on {MEASURED_ON}, {TIMED['gpu']}"] = shards
    whole = rows_of_all(models.measured_whole(rows("gpu")))
    measured[f"Layers of whole experts on {MEASURED_ON}, {TIMED['gpu']}"] = whole
    return measured_with.block(measured)


def solutions_block(clock: str, gpu: str = MEASURED_ON) -> str:
    """Return a row for each solution on the main definition, by a clock.

    There is no caption, as the page explains the columns. Passes are counted over both clocks, as
    whether an answer is right does not depend on how it is timed.
    """
    measured = main_definition(clock, gpu)
    if not len(measured):
        return f"Not measured on an {gpu} by this clock."

    verdicts = pd.concat([main_definition(each, gpu) for each in CLOCKS])
    table = replace(comparison.solutions_table(measured, verdicts), caption="")
    return with_provenance(table, measured)


def ranges_block() -> str:
    """Return how far the runs of repeated cells of the main definition lie apart."""
    measured = pd.concat([main_definition(clock, gpu=None) for clock in CLOCKS])
    table = comparison.ranges_table(measured, between_cards())
    return table.markdown() if table.rows else "No cell was run more than once yet."


def between_cards() -> pd.Series:
    """Return T -> how far the medians of one solution on two H200s lie apart, at most.

    records/repeats.md says what was run on the cards.
    """
    runs = pd.read_csv(paths.REPEATS)
    medians = runs.groupby(["card", "tokens", "solution", "uuid"]).ms.median()
    ratio = (medians["B"] / medians["C"]).dropna()
    apart = np.maximum(ratio, 1 / ratio) - 1
    return apart.groupby("tokens").max()


def passes_block() -> str:
    """Return how exact each solution is on the main definition."""
    return comparison.exactness_table(main_definition()).markdown()


def ahead_block() -> str:
    """Return a row for each model: how close to the bound, and how far ahead of the next solution,
    by the GPU's clock.
    """
    measured = models.measured_whole(rows("gpu"))
    return with_provenance(models.ahead_table(measured), rows_of_all(measured))


def models_block() -> str:
    """Return a row for each model: which solution to use."""
    measured = models.measured_layers(rows())
    return with_provenance(models.recommended_table(measured), rows_of_all(measured))


def shards_block() -> str:
    """Return every solution's times on the measured tensor-parallel ranks, by the GPU's clock."""
    return times_block(models.measured_shards(rows("gpu")))


def whole_block() -> str:
    """Return every solution's times on the measured layers of whole experts, by the GPU's clock."""
    return times_block(models.measured_whole(rows("gpu")))


def times_block(measured: list[MeasuredLayer]) -> str:
    """Return the table of every solution's times on these layers."""
    if not measured:
        return "Not measured."
    return with_provenance(models.times_table(measured), rows_of_all(measured))


def served_block() -> str:
    """Return the first served record's table, then a row for each record; "" without any."""
    records = served.recorded()
    if not records:
        return ""

    first = served.table(records[0])
    parts = [first.markdown(titled=True), models.served(records).markdown()]
    for record in records:
        origin = f"<sub>{served.origin(record.head)}.</sub>"
        if origin not in parts:
            parts.append(origin)
    return "\n\n".join(parts)


def profile_block() -> str:
    """Return the table of all profiles, and how each was made; "" without any."""
    records = profiles.recorded()
    if not records:
        return ""

    table = profiles.table(records).markdown(titled=True)
    origins = "<br>".join(profiles.origin(record) for record in records)
    return f"{table}\n\n<sub>{origins}</sub>"


def mxfp4_block() -> str:
    """Return the tables of layers with MXFP4 experts."""
    return layer_times.markdown(layer_times.peer_tables(layer_times.peer_points()))


def all_reduce_block() -> str:
    """Return the tables of a layer over several GPUs."""
    return layer_times.markdown(layer_times.all_reduce_tables(layer_times.all_reduce_points()))


TABLES: Tables = {
    "README.md": {
        "solutions": lambda: solutions_block(headline_clock()),
        "models": ahead_block,
    },
    "docs/compare.md": {
        "solutions": lambda: solutions_block("gpu"),
        "ranges": ranges_block,
        "clocks": lambda: solutions_block("events"),
        "h100": lambda: solutions_block("events", H100),
        "versions": versions_block,
    },
    "docs/models.md": {
        "shards": shards_block,
        "whole": whole_block,
        "mxfp4": mxfp4_block,
        "models": models_block,
    },
    "docs/multi_gpu.md": {"all-reduce": all_reduce_block},
    "docs/profile.md": {"profile": profile_block},
    "docs/served.md": {
        "served": served_block,
        "predicted": lambda: predicted.table(served.recorded()).markdown(),
    },
    "docs/tolerances.md": {"passes": passes_block},
}
FIGURES: Figures = {
    "speed-nvidia-h200.svg": lambda: speed.figure(main_definition(headline_clock())),
}
