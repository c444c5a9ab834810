"""A record of `moebench served` as a table: ms for all layers, by token count and solution."""

from dataclasses import dataclass

from moebench.core import paths
from moebench.core.schema import read_record
from moebench.models.layer import layer_of
from moebench.operators import catalogue
from moebench.operators.roofline import MEASURED_ON
from moebench.packing.manifest import folder_name
from moebench.reports.table import Cell, Row, Table
from moebench.results import staleness
from moebench.results.bounds import by_ceilings_of_today
from moebench.served.record import Head, Point

CAPTION = (
    "ms a pass, the median of the rounds, and in brackets times the sum of the layers' roofline "
    "bounds, which stand under bound. Bold: the fastest, or tied with it, as the ranges of their "
    "rounds overlap. Scratch: the peak of torch's allocator beyond inputs and output."
)


@dataclass(frozen=True)
class ServedRecord:
    """What was run, and a point for each solution and token count."""

    head: Head
    points: list[Point]

    def points_at(self, tokens: int) -> list[Point]:
        return [point for point in self.points if point.tokens == tokens]

    def points_in_order(self, tokens: int) -> list[Point | None]:
        """Return the points at a token count in the order of `solutions`, None where one is not."""
        by_solution = {point.solution: point for point in self.points_at(tokens)}
        return [by_solution.get(name) for name in self.solutions]

    @property
    def tokens(self) -> list[int]:
        """Return the token counts that there are points of, the least first."""
        return sorted({point.tokens for point in self.points})

    @property
    def solutions(self) -> list[str]:
        """Return the solutions that there are points of, in the order of the run."""
        first = {point.solution for point in self.points_at(self.tokens[0])}
        return [name for name in self.head.sources if name in first]

    @property
    def has_bound(self) -> bool:
        """Return whether the bound's ceilings, which are one machine's, are this record's."""
        return self.head.provenance.hardware == MEASURED_ON


def recorded() -> list[ServedRecord]:
    """Return the records below paths.SERVED that hold points. Raises UserError for any other."""
    records = []
    for path in sorted(paths.SERVED.glob("*.jsonl")):
        head, points = read_record(path, Head, Point, "served")
        if points:
            records.append(ServedRecord(head, with_bounds_of_today(head, points)))
    return records


def with_bounds_of_today(head: Head, points: list[Point]) -> list[Point]:
    """Return the points of a record, whose bounds divide by today's ceilings."""
    renewed = []
    for point in points:
        bound_ms = point.bound_ms
        bound_ms = by_ceilings_of_today(bound_ms, head.ceilings, head.definition, point.tokens)
        renewed.append(point.model_copy(update={"bound_ms": bound_ms}))
    return renewed


def title(head: Head) -> str:
    """Return "DeepSeek-V3 EP8, 58 MoE layers"; the definition where it is no model's.

    The model's number of layers is the one that is known today.
    """
    layer = layer_of(catalogue.by_name().get(head.definition))
    name = layer.name if layer else head.definition
    layers_of_model = layer.count if layer else head.of_model
    if not layers_of_model or head.layers == layers_of_model:
        return f"{name}, {head.layers} MoE layers"
    if head.layers > layers_of_model:
        return f"{name}, {head.layers} MoE layers where the model has {layers_of_model}"
    return f"{name}, {head.layers} of {layers_of_model} MoE layers"


def origin(head: Head) -> str:
    """Return machine, versions, protocol, date, and whose source has changed since."""
    by = head.provenance
    parts = [by.hardware, by.versions_text, by.protocol, by.timestamp[:10]]
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


def table(head: Head, points: list[Point]) -> Table:
    """Return a row for each token count, and the scratch memory at the greatest one."""
    record = ServedRecord(head, points)
    rows = [time_row(record, tokens) for tokens in record.tokens]
    return Table(
        head=["T", "bound", *record.solutions],
        sections=[rows, scratch_rows(record)],
        title=title(head),
        words=0,
        caption=CAPTION,
        notes=[*not_captured(points), *failures(points)],
    )


def time_row(record: ServedRecord, tokens: int) -> Row:
    """Return T, the bound, and each solution's time."""
    points = record.points_in_order(tokens)
    timed = [point for point in points if point and point.ms]
    least = min((point.ms for point in timed), default=0)
    fastest = [point for point in timed if point.ms == least]
    highest = max((max(point.rounds) for point in fastest), default=0)

    bound = f"{points[0].bound_ms:.3f}" if record.has_bound else None
    cells = [time_cell(point, highest, record.has_bound) for point in points]
    return [tokens, bound, *cells]


def time_cell(point: Point | None, highest: float, has_bound: bool) -> Cell | None:
    """Return "12.500 (1.25)": ms and times the bound, with a star where there is no graph.

    highest: the slowest round of the fastest solution.
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
    return Cell(text, "best" if min(point.rounds) <= highest else "")


def scratch_rows(record: ServedRecord) -> list[Row]:
    """Return one row of MB at the greatest token count, none where nothing was recorded."""
    tokens = record.tokens[-1]
    row: Row = [f"scratch MB at {tokens}", ""]
    for point in record.points_in_order(tokens):
        is_recorded = point and point.scratch_mb
        row.append(f"{point.scratch_mb:,.1f}" if is_recorded else None)
    return [row] if any(row[2:]) else []


def not_captured(points: list[Point]) -> list[str]:
    """Return a note for each solution and reason why it was no graph."""
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
