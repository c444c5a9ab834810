"""A record of `moebench served` as a table: ms for all layers, by token count and solution.

`moebench served` shows what it has measured by `table`, and docs/pages.py the records in the
repository, which `recorded` returns.
"""

from dataclasses import replace

from moebench.core import paths
from moebench.packing.manifest import folder_name
from moebench.reports.table import Cell, Row, Table
from moebench.results import staleness
from moebench.results.bounds import by_ceilings_of_today
from moebench.served.record import Head, Point, ServedRecord, read_served

CAPTION = (
    "ms a pass, the median of the rounds, and in brackets times the sum of the layers' roofline "
    "bounds, which stand under bound. Bold: the fastest, or tied with it, as the ranges of their "
    "rounds overlap. Scratch: the peak of torch's allocator beyond inputs and output."
)


def recorded() -> list[ServedRecord]:
    """Return the records below paths.SERVED that hold points, with bounds by today's ceilings.

    Raises UserError for a file that is no such record.
    """
    records = []
    for path in sorted(paths.SERVED.glob("*.jsonl")):
        record = read_served(path)
        if record.points:
            points = []
            for point in record.points:
                points.append(with_bound_of_today(record.head, point))
            records.append(replace(record, points=points))
    return records


def with_bound_of_today(head: Head, point: Point) -> Point:
    """Return a record's point with its bound by today's ceilings."""
    bound_ms = by_ceilings_of_today(
        point.bound_ms, head.ceilings, head.definition, point.tokens
    )
    return point.model_copy(update={"bound_ms": bound_ms})


def title(head: Head) -> str:
    """Return what was measured: "DeepSeek-V3 EP8, 58 MoE layers", or "..., 20 of 58 MoE layers".

    The definition's name stands for the model where it is of none. How many layers the model has
    is said by layers.toml, and by the record only where that has no such model.
    """
    layer = head.model_layer
    name = layer.name if layer else head.definition
    layers_of_model = layer.count if layer else head.of_model
    if not layers_of_model or head.layers == layers_of_model:
        return f"{name}, {head.layers} MoE layers"
    if head.layers > layers_of_model:
        return f"{name}, {head.layers} MoE layers where the model has {layers_of_model}"
    return f"{name}, {head.layers} of {layers_of_model} MoE layers"


def origin(head: Head) -> str:
    """Return machine, versions, protocol and date, and the solutions whose source has changed since
    then.
    """
    by = head.provenance
    day = by.timestamp[:10]
    parts = [by.hardware, by.versions_text, by.protocol, day]
    stale = [name for name in head.sources if is_stale(head, name)]
    if stale:
        parts.append(f"stale, as the source has changed since: {', '.join(stale)}")
    if by.earlier_code:
        parts.append(f"of earlier code: {by.earlier_code}")
    return "; ".join(parts)


def is_stale(head: Head, solution: str) -> bool:
    """Return whether a solution's source has changed since the record was made."""
    hashes = {
        "source_sha1": head.sources[solution],
        "source_fingerprint": head.fingerprints.get(solution),
    }
    provenance = head.provenance.model_copy(update=hashes)
    folder = folder_name(solution, head.definition)
    return staleness.judge_record(provenance, folder) == "stale"


def table(record: ServedRecord) -> Table:
    """Return a row for each token count, and the scratch memory at the greatest one."""
    rows = [time_row(record, tokens) for tokens in record.tokens]

    tokens = record.tokens[-1]
    row = [f"scratch MB at {tokens}", ""]
    for point in record.points_in_order(tokens):
        is_recorded = point and point.scratch_mb
        row.append(f"{point.scratch_mb:,.1f}" if is_recorded else None)
    scratch_rows = [row] if any(row[2:]) else []

    return Table(
        head=["T", "bound", *record.solutions],
        sections=[rows, scratch_rows],
        title=title(record.head),
        word_columns=0,
        caption=CAPTION,
        notes=[*not_captured(record.points), *failures(record.points)],
    )


def time_row(record: ServedRecord, tokens: int) -> Row:
    """Return T, the bound, and each solution's time."""
    timed = record.timed_points(tokens)
    slowest_round = max(timed[0].rounds) if timed else 0

    bound_ms = record.points_at(tokens)[0].bound_ms
    row = [tokens, f"{bound_ms:.3f}" if record.has_bound else None]
    for point in record.points_in_order(tokens):
        row.append(time_cell(point, slowest_round, record.has_bound))
    return row


def time_cell(
    point: Point | None, slowest_round: float, has_bound: bool
) -> Cell | None:
    """Return ms and times the bound, "12.500 (1.25)", with a star where there is no graph.

    slowest_round: ms of the fastest solution's slowest round. A solution with a round as fast is
    tied with it.
    """
    if point is None:
        return None
    if point.ms is None:
        return Cell("failed", "failed")

    text = f"{point.ms:.3f}"
    if has_bound:
        over_bound = point.ms / point.bound_ms
        text += f" ({over_bound:.2f})"
    if not point.graph:
        text += " *"
    return Cell(text, "best" if min(point.rounds) <= slowest_round else "")


def not_captured(points: list[Point]) -> list[str]:
    """Return a note for each solution that was not captured as a graph, with the reason."""
    notes = set()
    for point in points:
        if point.ms and not point.graph:
            notes.add(f"* {point.solution} is no graph: {point.not_captured}")
    return sorted(notes)


def failures(points: list[Point]) -> list[str]:
    """Return a note for each point that failed."""
    notes = []
    for point in points:
        if point.error:
            notes.append(f"{point.solution} at T={point.tokens}: {point.error}")
    return notes
