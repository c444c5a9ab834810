"""Which tables and figures README.md and docs/ hold: TABLES and FIGURES, for `moebench docs`.

A function that ends in _block returns the Markdown of a table, with what stands below it.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pandas as pd

from moebench.core import paths
from moebench.core.errors import UserError
from moebench.core.provenance import CLOCKS
from moebench.operators.roofline import H100, MEASURED_ON
from moebench.operators.workloads import recorded_counts
from moebench.reports import (
    comparison,
    engines,
    layer_times,
    measured_with,
    models,
    predicted,
    profiles,
    repeats,
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


def main_definition(
    clock: str = "events", gpu: str | None = MEASURED_ON
) -> pd.DataFrame:
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
    return f"{table}\n\n{measured_with.caption(measured)}"


def rows_of_all(measured: list[MeasuredLayer]) -> pd.DataFrame:
    """Return the rows of all these layers."""
    return pd.concat([each.rows for each in measured])


def all_layers() -> list[MeasuredLayer]:
    return models.measured_layers(rows())


def shards() -> list[MeasuredLayer]:
    """Return the tensor-parallel ranks that were measured by the GPU's clock."""
    return models.measured_layers(rows("gpu"), models.is_shard)


def whole_layers() -> list[MeasuredLayer]:
    """Return the layers of whole experts that were measured by the GPU's clock."""
    return models.measured_layers(rows("gpu"), models.is_whole)


def versions_block() -> str:
    """Return what the tables of solutions and of models were measured with, in full."""
    measured = {}
    for gpu in (MEASURED_ON, H100):
        for clock in CLOCKS:
            table_rows = main_definition(clock, gpu)
            if len(table_rows):
                measured[f"DeepSeek-V3 EP8 on {gpu}, {TIMED[clock]}"] = table_rows

    by_events = f"on {MEASURED_ON}, {TIMED['events']}"
    by_gpu = f"on {MEASURED_ON}, {TIMED['gpu']}"
    measured[f"All models {by_events}"] = rows_of_all(all_layers())
    measured[f"Tensor-parallel ranks {by_gpu}"] = rows_of_all(shards())
    measured[f"Layers of whole experts {by_gpu}"] = rows_of_all(whole_layers())
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
    between_cards = repeats.between_cards(repeats.recorded())
    table = comparison.ranges_table(measured, between_cards)
    return str(table) if table.rows else "No cell was run more than once yet."


def layers_block(
    draw: Callable[[list[MeasuredLayer]], Table], measured: list[MeasuredLayer]
) -> str:
    """Return a table of models' layers. draw: one of the tables of models.py."""
    if not measured:
        return "Not measured."
    return with_provenance(draw(measured), rows_of_all(measured))


def served_block() -> str:
    """Return the first served record's table, then a row for each record; "" without any."""
    records = served.recorded()
    if not records:
        return ""

    first = served.table(records[0])
    parts = [first.markdown(titled=True), str(models.served(records))]
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


def servers_table(server: str, layers: int, backends: list[str], **dates: str) -> str:
    """Return the table of an engine's servers; see `engines.server_runs`."""
    runs = engines.server_runs(server, layers, **dates)
    return engines.servers_table(runs, backends)


VLLM = "integrations/vllm/README.md"
SGLANG = "integrations/sglang/README.md"
OURS = ["triton", "solution"]
TABLES: Tables = {
    ("README.md", "solutions"): lambda: solutions_block(headline_clock()),
    ("README.md", "models"): lambda: layers_block(models.ahead_table, whole_layers()),
    ("docs/compare.md", "solutions"): lambda: solutions_block("gpu"),
    ("docs/compare.md", "ranges"): ranges_block,
    ("docs/compare.md", "clocks"): lambda: solutions_block("events"),
    ("docs/compare.md", "h100"): lambda: solutions_block("events", H100),
    ("docs/compare.md", "versions"): versions_block,
    ("docs/models.md", "shards"): lambda: layers_block(models.times_table, shards()),
    ("docs/models.md", "whole"): lambda: layers_block(
        models.times_table, whole_layers()
    ),
    ("docs/models.md", "mxfp4"): lambda: layer_times.markdown(
        layer_times.peer_tables(layer_times.peer_rows())
    ),
    ("docs/models.md", "mxfp4-over-fp8"): lambda: layer_times.over_fp8_table(
        layer_times.peer_rows()
    ),
    ("docs/models.md", "models"): lambda: layers_block(
        models.recommended_table, all_layers()
    ),
    ("docs/models.md", "speeds"): lambda: models.speeds_table(all_layers()),
    ("docs/tolerances.md", "passes"): lambda: comparison.exactness_table(
        main_definition()
    ),
    ("docs/served.md", "served"): served_block,
    ("docs/served.md", "predicted"): lambda: predicted.table(served.recorded()),
    ("docs/multi_gpu.md", "all-reduce"): lambda: layer_times.markdown(
        layer_times.all_reduce_tables(layer_times.all_reduce_points())
    ),
    ("docs/profile.md", "profile"): profile_block,
    (VLLM, "qwen3-30b"): lambda: servers_table("vllm", 48, OURS, until="2026-11-26 03"),
    (VLLM, "deep-gemm"): lambda: servers_table(
        "vllm", 48, ["deep_gemm", "solution"], since="2026-11-26 07"
    ),
    (VLLM, "qwen3.5-35b"): lambda: servers_table("vllm", 40, OURS),
    (VLLM, "deepseek-v3"): lambda: servers_table("vllm", 12, OURS),
    (VLLM, "four-h200"): lambda: servers_table(
        "vllm", 36, [*OURS, "solution_sum"], since="2026-11-27 07:13"
    ),
    (VLLM, "four-h200-24"): lambda: servers_table(
        "vllm", 24, [*OURS, "solution_sum"], since="2026-11-27 16"
    ),
    (VLLM, "four-h100"): lambda: servers_table("vllm", 24, OURS, until="2026-11-27 01"),
    (VLLM, "logprobs"): engines.logprobs_table,
    (SGLANG, "qwen3-30b"): lambda: engines.sglang_table(24),
    (SGLANG, "four-h200"): lambda: servers_table("sglang_servers", 24, OURS),
    ("records/repeats.md", "repeats"): repeats.table,
    ("records/repeats.md", "ratios"): repeats.ratios_table,
}
FIGURES: Figures = {
    "speed-nvidia-h200.svg": lambda: speed.figure(main_definition(headline_clock())),
}
