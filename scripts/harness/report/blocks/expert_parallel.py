"""The tables of docs/ep.md: what was measured on several GPUs, and what a model makes of it for more."""

from pathlib import Path

from harness.core import paths
from harness.core.names import counted
from harness.expert_parallel import cost, record
from harness.expert_parallel.forward import WAYS
from harness.expert_parallel.layer import Layer
from harness.report.blocks.results import spoken
from harness.report.table import Cell, Table, decimal
from harness.results import staleness
from harness.results.model_names import layer_of

NOT_RUN = "**Not run** on GPUs yet: it is tested over gloo, with two and four processes on a CPU and the small layer."
NOT_MEASURED = "No measurement is recorded here."
NO_MODEL = "No model without a measurement."
MORE_GPUS = (8, 64)


def recorded(folder: Path = paths.EXPERT_PARALLEL) -> list[record.Measured]:
    return [record.read(path) for path in sorted(folder.glob("*.jsonl"))]


def model(geometry: str) -> str:
    known = layer_of(geometry)
    return known.model if known else geometry


def status(found: list[record.Measured]) -> str:
    """A sentence: where it has run."""
    if not found:
        return NOT_RUN
    machines = sorted({f"{one.head.ranks} {one.head.provenance.hardware} of one host" for one in found})
    models = sorted({model(one.head.geometry) for one in found})
    return (
        f"Run on {', '.join(machines)}, over NCCL, with the layers of {spoken(models)}; between hosts **not run** yet."
    )


def measured(found: list[record.Measured]) -> str:
    """Markdown: a table for each record. Bold: the way whose call takes less, at that number of tokens."""
    return "\n\n".join(_measured(one).markdown(titled=True) for one in found) or NOT_MEASURED


def _measured(one: record.Measured) -> Table:
    head, by, rows = one.head, one.head.provenance, []
    cuts = max((point.call_ms for point in one.points), key=len)
    for point in sorted(one.points, key=lambda point: (point.tokens, list(WAYS).index(point.way))):
        best = {p.way: min(p.call_ms.values()) for p in one.points if p.tokens == point.tokens}
        wins = len(best) > 1 and min(best, key=best.get) == point.way
        calls = [Cell(f"{ms:.3f}", "best" if wins and ms == best[point.way] else "") for ms in point.call_ms.values()]
        calls += [None] * (len(cuts) - len(calls))
        sent = (point.there_bytes, point.there_ms), (point.back_bytes, point.back_ms)
        rates = [rate(count / ms / 1e6, head.link_gb_s) for count, ms in sent]
        apart = [f"{ms:.3f}" for ms in (point.there_ms, point.products_ms, point.back_ms)]
        rows.append([point.tokens, point.way, *apart, *rates, *calls, decimal(point.graph_ms, 3)])
    names = [f"call, {counted(pieces, 'chunk')}" for pieces in cuts] + ["call, graph"]
    columns = ["T a rank", "way", "dispatch", "experts", "combine", "dispatch, GB/s", "combine, GB/s", *names]
    sums = one.points[0].sum_in
    title = f"{head.solution}: {model(head.geometry)}'s layer on {head.ranks} {by.hardware}, parts in {sums}, ms"
    facts = [by.versions_text, by.protocol or "", by.timestamp[:10]]
    if head.link_gb_s:
        facts.insert(0, f"in brackets: of the {head.link_gb_s:.0f} GB/s that a GPU's NVLinks send, by data sheet")
    if staleness.of_record(by, head.solution) == "stale":
        facts.append("stale, as the source has changed since")
    return Table(columns, [rows], title, words=3, notes=[why(one), f"<sub>{'; '.join(facts)}.</sub>"])


def why(one: record.Measured) -> str:
    """What decides between the ways, and over chunks: bytes of weights, and tokens that another rank needs."""
    layer = Layer(one.head.geometry, one.head.ranks)
    hidden, inner = layer.of["hidden_size"], layer.of["intermediate_size"]
    said = f"A rank's {layer.local} experts have {layer.local * 3 * hidden * inner / 1e9:.1f} GB of weights."
    if exchanged := [point for point in one.points if point.way == "exchange"]:
        most = max(exchanged, key=lambda point: point.tokens)
        rows = most.there_bytes / cost.row_bytes(layer, "exchange") / most.tokens
        said += f" At T = {most.tokens} a token goes to {rows:.2f} of {one.head.ranks - 1} other ranks."
    return said


def rate(gb_s: float, link: float | None) -> str | None:
    """None where latency alone counts."""
    if link and gb_s < link / 100:
        return None
    return f"{gb_s:.0f}" + (f" ({gb_s / link:.0%})" if link else "")


def modelled(found: list[record.Measured]) -> str:
    """Markdown: us of the exchange alone, for more GPUs; layer and T are those of the record with the most points.

    The links' rates are from all records of those GPUs in which parts are bf16.
    """
    carried = [[p for p in one.points if (p.way, p.sum_in) == ("gather", "bf16")] for one in found]
    if not (usable := [one for one, points in zip(found, carried, strict=True) if len(points) > 1]):
        return NO_MODEL
    one = max(usable, key=lambda measured: len(measured.points))
    machine = one.head.ranks, one.head.provenance.hardware
    alike = [other for other in usable if (other.head.ranks, other.head.provenance.hardware) == machine]
    there, back = cost.links([point for other in alike for point in other.points])
    rows = []
    for ranks in (one.head.ranks, *MORE_GPUS):
        layer = Layer(one.head.geometry, ranks)
        for tokens in sorted({point.tokens for point in one.points}):
            times = {way: cost.exchanged_us(layer, way, tokens, there, back) for way in ("gather", "exchange")}
            least = min(times.values())
            best = [f"{us:.0f}" for us in times.values()]
            rows.append([ranks, tokens, *(Cell(us, "best" if us == f"{least:.0f}" else "") for us in best)])
    far = cost.BETWEEN_HOSTS
    caption = (
        f"A model. On a host {there.latency_us:.0f} us and {there.rate:.0f} GB/s to dispatch, {back.latency_us:.0f} us "
        f"and {back.rate:.0f} GB/s to combine, fitted to gather in the tables above with parts in bf16; between hosts "
        f"{far.latency_us:.0f} us and {far.rate:.0f} GB/s, assumed. us of the collectives alone: not routing, the "
        "host's wait, row counts, the experts, or the sum of what comes back, so a call by exchange takes more. "
        f"{model(one.head.geometry)}'s layer, {cost.GPUS_A_HOST} GPUs a host."
    )
    return Table(["GPUs", "T a rank", "gather", "exchange"], [rows], caption=caption, words=0).markdown()
