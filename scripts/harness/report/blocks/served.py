"""A forward pass in tables, and what it means for TPOT and TTFT; from the records below docs/data/served/."""

import statistics
from collections.abc import Callable

from harness.core import paths
from harness.operators.catalogue import BY_NAME, ROUTED
from harness.operators.roofline import MEASURED_ON
from harness.report.blocks.results import spoken
from harness.report.comparison import LEVEL_WORDS
from harness.report.table import Cell, Table, decimal
from harness.results import staleness
from harness.results.model_names import layer_of
from harness.results.models import source_of
from harness.results.summary import LEVEL, is_level
from harness.served import record as records
from harness.served.record import PREFILL, Point, Record

NOT_RUN = "**Not run**: no forward pass is recorded here."
SPOKEN = (1, 32, 256, 2048, 8192)  # token counts that the first paragraph names
PROMPT = 16384  # tokens of the prompt whose TTFT is stated
LIMITS = {
    "power_cap_w": "power limit {} W",
    "max_sm_mhz": "SM clock at most {} MHz",
    "max_memory_mhz": "memory clock at most {} MHz",
}
IN_SHORT = {"deepgemm": "DeepGEMM's kernels", "sglang_triton": "SGLang's"}
SHOWS = f"the gain is at least {LEVEL - 1:.0%} of the whole step while all else takes no more than this share"

Figure = Callable[[Record, Point], float | None]


# Title -> figure of a point, its format, and what it is
FIGURES: dict[str, tuple[Figure, str, str]] = {
    "us a layer": (lambda r, p: 1e3 * p.ms / r.head.layers, ",.1f", "A pass over the number of layers."),
    "Tokens/s of MoE layers alone": (
        # those that are not resident take as long
        lambda r, p: 1e3 * p.tokens / (p.ms * (r.head.of_model or r.head.layers) / r.head.layers),
        ",.0f",
        "Of all ranks' tokens, if the model had nothing but MoE layers.",
    ),
    "Eagerly, ms a pass": (
        lambda r, p: min(p.eager, default=None),
        ".3f",
        "Without a graph the host launches every kernel.",
    ),
    "Scratch memory, MB": (lambda r, p: p.scratch_mb, ",.1f", "Peak of torch's allocator beyond inputs and output."),
    "GPU energy, mJ a token": (
        lambda r, p: p.joules and 1e3 * p.joules / p.tokens,
        ",.2f",
        "The whole GPU's by NVML's counter, while it replays the graph; the resident layers alone.",
    ),
    "SM clock, MHz": (lambda r, p: p.sm_mhz, ".0f", "Median while the energy is read."),
}


def model_name(record: Record) -> str:
    """'DeepSeek-V3 EP8', or the definition where it is no model's."""
    geometry = BY_NAME[record.head.definition]
    layer = layer_of(geometry)
    behind = " behind a router" if geometry in ROUTED else ""
    return f"{layer.name}{behind}" if layer else record.head.definition


def layers_said(record: Record) -> str:
    of_model, count = record.head.of_model, record.head.layers
    return f"{count} of the {of_model}" if of_model and count < of_model else f"the {count}"


def origin(record: Record) -> str:
    """Machine, limits, versions, protocol, date, commit, and whose source has changed since."""
    head, made = record.head, record.head.provenance
    limits = [LIMITS[name].format(value) for name, value in head.gpu.items()]
    where = [made.hardware, *limits, made.versions_text, made.protocol, made.timestamp[:10]]
    where += [f"commit {head.commit}"] if head.commit else []
    return "; ".join(where + staleness.changed(made, head.sources, head.definition))


def has_bound(record: Record) -> bool:
    """The bound's ceilings are one machine's."""
    return record.head.provenance.hardware == MEASURED_ON


def passes(record: Record) -> Table:
    """ms a pass and times the bound, a row for each token count; the fastest and those level with it are marked."""

    points = {(p.tokens, p.solution): p for p in record.points}

    def cell(point: Point | None, least: float) -> Cell | None:
        if point is None:
            return None
        if point.ms is None:
            return Cell("failed", "failed")
        over = f" ({point.ms / point.bound_ms:.2f})" if has_bound(record) else ""
        return Cell(f"{point.ms:.3f}{over}{'' if point.graph else ' *'}", "best" if is_level(point.ms, least) else "")

    rows = []
    for tokens in record.tokens:
        found = [p for p in record.points if p.tokens == tokens]
        least = min((p.ms for p in found if p.ms), default=0)
        bound = decimal(found[0].bound_ms if has_bound(record) else None, 3)
        rows.append([tokens, bound, *(cell(points.get((tokens, name)), least) for name in record.solutions)])
    eager = {f"* {p.solution} eagerly, not as a graph: {p.not_captured}" for p in record.at.values() if not p.graph}
    wrong = [f"{p.solution} at T={p.tokens}: {p.error}" for p in record.points if p.error]
    return Table(
        ["T", "bound", *record.solutions],
        [rows],
        f"ms a pass of {record.head.layers} layers",
        caption=f"In brackets: times the sum of the layers' roofline bounds. Bold: the fastest, or {LEVEL_WORDS}.",
        words=0,
        notes=[*sorted(eager), *wrong],
    )


def figure_table(record: Record, title: str) -> Table | None:
    """One of FIGURES by solution and token count; None where no point has it."""
    figure, form, caption = FIGURES[title]
    found = {key: value for key, point in record.at.items() if (value := figure(record, point)) is not None}
    text = {key: f"{value:{form}}" for key, value in found.items()}
    rows = [[tokens, *(text.get((name, tokens)) for name in record.solutions)] for tokens in record.tokens]
    return Table(["T", *record.solutions], [rows], title, words=0, caption=caption) if found else None


def halves(record: Record) -> tuple[list[int], list[int]]:
    """The token counts of decode steps, and of prefill chunks."""
    return [t for t in record.tokens if t < PREFILL], [t for t in record.tokens if t >= PREFILL]


def best_overall(record: Record) -> str | None:
    """Of the solutions timed at every token count the one with the least geometric mean of its times."""
    able = [name for name in record.solutions if all((name, t) in record.at for t in record.tokens)]
    means = {name: statistics.geometric_mean(record.at[name, t].ms for t in record.tokens) for name in able}
    return min(means, key=means.get, default=None)


def gain(record: Record, best: str, peer: str, tokens: int) -> tuple[float, float] | None:
    """By how many ms a decode step, or the prefill of PROMPT tokens in chunks, gets shorter, and the share of the
    peer's step from which on other work makes that less than LEVEL - 1 of the step; None without both graphs."""
    a, b = record.at.get((best, tokens)), record.at.get((peer, tokens))
    if not (a and b and a.graph and b.graph):
        return None
    hidden = 1 - (LEVEL - 1) / (1 - a.ms / b.ms) if a.ms < b.ms else 0.0
    return (b.ms - a.ms) * (PROMPT / tokens if tokens >= PREFILL else 1), max(0.0, hidden)


def gains(record: Record, best: str, peers: list[str]) -> Table:
    sections = []
    for label, tokens in zip(("TPOT", f"TTFT of {PROMPT}"), halves(record), strict=True):
        found = {t: [gain(record, best, peer, t) for peer in peers] for t in tokens}
        sections.append([[label, t, *(of and f"{of[0]:.3f} ({of[1]:.0%})" for of in at)] for t, at in found.items()])
    return Table(
        ["", "T", *peers],
        sections,
        f"ms saved by {best}",
        words=1,
        caption=f"Against each peer: ms by which a decode step of T tokens, or a prompt of {PROMPT} tokens in chunks "
        f"of T, gets shorter. In brackets: {SHOWS} of the peer's.",
    )


def answer(record: Record, best: str, peers: list[str]) -> str:
    """The page's first paragraph: how much TPOT and TTFT move against each peer, and what hides it."""

    def said(peer: str, at: list[int]) -> str:
        found = [gain(record, best, peer, t) for t in at]
        if None in found:
            return f"`{peer}` without a graph at all of them"
        saved, hidden = zip(*found, strict=True)
        return f"{spoken([f'{ms:.2f}' for ms in saved])} ms against `{peer}` ({spoken([f'{x:.0%}' for x in hidden])})"

    parts = []
    steps = ("a decode step of T = {} tokens (TPOT)", f"a prompt of {PROMPT} tokens in chunks of {{}} (TTFT)")
    for what, tokens in zip(steps, halves(record), strict=True):
        if at := [t for t in tokens if t in SPOKEN]:
            parts.append(f"{what.format(spoken(at))} by {'; '.join(said(peer, at) for peer in peers)}")
    where = f"{layers_said(record)} MoE layers of {model_name(record)} in one CUDA graph"
    return (
        f"On one {record.head.provenance.hardware}, with {where}, `{best}` shortens {', and '.join(parts)}. In "
        f"brackets: {SHOWS} of the peer's."
    )


def in_short() -> str:
    """A sentence for the README: the first record's best against those of IN_SHORT, at SPOKEN's T; '' without them."""
    record = next(iter(recorded()), None)
    names = [best_overall(record), *IN_SHORT] if record else []
    at = [t for t in SPOKEN if all((point := record.at.get((name, t))) and point.graph for name in names)]
    if not names or not at:
        return ""
    times = {peer: [f"{record.at[peer, t].ms / record.at[names[0], t].ms:.2f}" for t in at] for peer in IN_SHORT}
    said = [f"{spoken(found)} times as fast as {IN_SHORT[peer]}" for peer, found in times.items()]
    where = (
        f"In a CUDA graph of {layers_said(record)} MoE layers on one {record.head.provenance.hardware}, as a server "
        f"replays it, at T = {spoken(at)}"
    )
    return f"{where} `{names[0]}` is {spoken(said)} ([docs/served.md](docs/served.md))."


def section(record: Record) -> str:
    parts, tables, best = [], [passes(record)], best_overall(record)
    if peers := [name for name in record.solutions if best and source_of(name) != source_of(best)]:
        parts.append(answer(record, best, peers))
        tables.append(gains(record, best, peers))
    parts += [f"![Times the bound, over tokens in a pass]({picture_file(record)})"] if has_bound(record) else []
    tables += filter(None, (figure_table(record, title) for title in FIGURES))
    return "\n\n".join([*parts, *(table.markdown(titled=True) for table in tables), f"<sub>{origin(record)}.</sub>"])


def picture_file(record: Record) -> str:
    return f"served-{BY_NAME[record.head.definition]}.svg"


def recorded() -> list[Record]:
    """Those with a time. Raises UserError for a file that is no such record."""
    found = [records.read(path) for path in sorted(paths.SERVED.glob("*.jsonl"))]
    order = list(BY_NAME)
    return sorted((r for r in found if r.at), key=lambda record: order.index(record.head.definition))


def block() -> str:
    """Markdown: the first definition's record first, without a heading, so that the page begins with the answer."""
    parts = []
    for record in recorded():
        parts.append(f"## {model_name(record)}\n\n{section(record)}" if parts else section(record))
    return "\n\n".join(parts) or NOT_RUN
