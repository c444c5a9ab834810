"""A record as a table: ms a pass and times the bound, by token count and solution; and all records
as one.
"""

from moebench.core import paths
from moebench.core.schema import read_record
from moebench.operators.catalogue import BY_NAME
from moebench.operators.models import layer_of
from moebench.operators.roofline import MEASURED_ON
from moebench.packing.manifest import folder_name
from moebench.report.table import Cell, Table
from moebench.results import staleness
from moebench.results.summary import source_of
from moebench.results.table import LEVEL
from moebench.served.record import Head, Point

TOKENS = (1, 8, 32, 128, 1024)  # of the table of all records
CAPTION = (
    "ms a pass, and in brackets times the sum of the layers' roofline bounds, which stand under bound. "
    "Bold: the fastest, or within 3% of it. Scratch: the peak of torch's allocator beyond inputs and output."
)


def title(head: Head) -> str:
    """'DeepSeek-V3 EP8, 58 MoE layers'; the definition where it is no model's.

    The model's number of layers is the one that is known today.
    """
    layer = layer_of(BY_NAME.get(head.definition))
    in_model = layer.count if layer else head.of_model
    name = layer.name if layer else head.definition
    if in_model and head.layers > in_model:
        return f"{name}, {head.layers} MoE layers where the model has {in_model}"
    of = f" of {in_model}" if in_model and head.layers < in_model else ""
    return f"{name}, {head.layers}{of} MoE layers"


def origin(head: Head) -> str:
    """Machine, versions, protocol, date, and whose source has changed since."""
    made, stale = head.provenance, []
    for name, sha1 in head.sources.items():
        own = made.model_copy(
            update={"source_sha1": sha1, "source_fingerprint": head.fingerprints.get(name)}
        )
        stale += (
            [name]
            if staleness.of_record(own, folder_name(name, head.definition)) == "stale"
            else []
        )
    where = [made.hardware, made.versions_text, made.protocol, made.timestamp[:10]]
    return "; ".join(
        where + [f"stale, as the source has changed since: {', '.join(stale)}"] * bool(stale)
    )


def table(head: Head, points: list[Point]) -> Table:
    """A row for each token count, and the scratch memory at the greatest one."""
    at, tokens = {(p.tokens, p.solution): p for p in points}, sorted({p.tokens for p in points})
    names = [name for name in head.sources if (tokens[0], name) in at]
    bounded = head.provenance.hardware == MEASURED_ON  # the bound's ceilings are one machine's

    def cell(point: Point | None, least: float) -> Cell | None:
        if point is None or point.ms is None:
            return point and Cell("failed", "failed")
        over = f" ({point.ms / point.bound_ms:.2f})" if bounded else ""
        return Cell(
            f"{point.ms:.3f}{over}{'' if point.graph else ' *'}",
            "best" if point.ms <= LEVEL * least else "",
        )

    rows = []
    for t in tokens:
        found = [at.get((t, name)) for name in names]
        least = min((point.ms for point in found if point and point.ms), default=0)
        bound = f"{found[0].bound_ms:.3f}" if bounded else None
        rows.append([t, bound, *(cell(point, least) for point in found)])
    scratch = [(point := at.get((tokens[-1], name))) and point.scratch_mb for name in names]
    scratch = (
        [[f"scratch MB at {tokens[-1]}", "", *(mb and f"{mb:,.1f}" for mb in scratch)]]
        if any(scratch)
        else []
    )
    eager = {
        f"* {p.solution} is no graph: {p.not_captured}" for p in points if p.ms and not p.graph
    }
    wrong = [f"{p.solution} at T={p.tokens}: {p.error}" for p in points if p.error]
    head_row, notes = ["T", "bound", *names], [*sorted(eager), *wrong]
    return Table(head_row, [rows, scratch], title(head), words=0, caption=CAPTION, notes=notes)


def recorded() -> list[tuple[Head, list[Point]]]:
    """The records below docs/data/served that hold points. Raises UserError for what is no
    record.
    """
    records = (
        read_record(path, Head, Point, "served") for path in sorted(paths.SERVED.glob("*.jsonl"))
    )
    return [(head, points) for head, points in records if points]


def by_model(records: list[tuple[Head, list[Point]]]) -> Table:
    """A row a record with two sources: the fastest, times the bound, and how many times as fast as
    the next source.
    """

    def cell(here: list[Point]) -> str | None:
        here = sorted((p for p in here if p.ms), key=lambda p: p.ms)
        others = [p.ms for p in here if source_of(p.solution) != source_of(here[0].solution)]
        return (
            f"{here[0].ms / here[0].bound_ms:.2f} ({others[0] / here[0].ms:.2f})"
            if others
            else None
        )

    known = [of for of in records if of[0].provenance.hardware == MEASURED_ON]
    rows = [
        [title(head), *(cell([p for p in points if p.tokens == t]) for t in TOKENS)]
        for head, points in known
    ]
    return Table(["model", *(f"T={t}" for t in TOKENS)], [rows])


def block() -> str:
    """Markdown: the first record's table, then each record's fastest."""
    records = recorded()
    origins = dict.fromkeys(f"<sub>{origin(head)}.</sub>" for head, _ in records)
    tables = [
        *(table(*of).markdown(titled=True) for of in records[:1]),
        by_model(records).markdown(),
    ]
    return "\n\n".join([*tables, *origins] if records else [])
