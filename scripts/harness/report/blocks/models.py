"""Every model's layer in a line: which solution, how fast, how far from the roofline bound; from traces/."""

from collections.abc import Callable, Iterable

from harness.judging.tolerances import TOLERANCES
from harness.operators.roofline import MEASURED_ON
from harness.operators.workloads import cases_by_uuid, generated_bound
from harness.report.blocks.results import SGLANG
from harness.report.table import Cell, Table, decimal
from harness.results.comparison import Comparison, Row
from harness.results.model_names import Layer, layers, weight_bytes
from harness.results.models import SHOWN, TARGETS, Verdict, best_peer, meets_target, verdicts

BOUND_TOKENS = (1, 64, 1024, 8192)
FEW, MANY = (1, 2, 4, 8, 16, 32, 64), (128, 256, 1024, 4096, 8192)
NEAR = 1.5  # a workload stands for T up to this factor away
MISSED = TOO_LARGE = "✗"
GPU_GB = 141  # of MEASURED_ON
NEAREST = "In brackets: T of the nearest workload, where there is none of that T."


def model_gb(layer: Layer) -> float:
    """Weights of the experts of all the model's layers, on this rank."""
    return weight_bytes(layer) * layer.count / 1e9


def line(of: Verdict) -> list[Cell | str | None]:
    name = f"{of.layer.name} {TOO_LARGE}" if model_gb(of.layer) > GPU_GB else of.layer.name
    if of.missing:
        return [name, of.missing, *[None] * 4]
    strict, nearest_peer = of.at("default"), of.peers[0].geometric_mean if of.peers else None
    figures = (of.best.over_bound, of.over(SGLANG), nearest_peer)
    return [name, Cell(of.best.solution, "best"), strict and strict.solution, *(decimal(x, 2) for x in figures)]


def conditions(found: Comparison) -> str:
    """Machine, versions, protocol, tolerance and dates of what is shown; of which models where these differ."""
    shown = [of for of in verdicts(found) if of.group and any(cell.counts for cell in of.group.cells)]
    if not shown:
        return f"<sub>Nothing is recorded on {MEASURED_ON} with the sources as they are.</sub>"
    said = [MEASURED_ON]
    for texts in (
        [of.section.versions_text for of in shown],
        [f"protocol {of.group.protocol}" for of in shown],
        [f"{of.group.tolerance_name} tolerance" for of in shown],
    ):
        for text in dict.fromkeys(texts):
            names = [of.layer.name for of, its in zip(shown, texts, strict=True) if its == text]
            said.append(text if len(names) == len(shown) else f"{text} ({', '.join(names)})")
    dates = sorted(cell.timestamp[:10] for of in shown for cell in of.group.cells)
    return f"<sub>{'; '.join(said)}; {' to '.join(dict.fromkeys((dates[0], dates[-1])))}.</sub>"


def block(found: Comparison) -> str:
    """Markdown for README.md: one row per layer."""
    head = ["model", f"at {SHOWN}", "at default", "ms/bound", "over SGLang", "over the next"]
    table = Table(head, [[line(of) for of in verdicts(found)]], words=3).markdown()
    return f"{table}\n\n{conditions(found)}"


def sizes() -> str:
    """Markdown: what each layer is. Needs no traces."""
    rows = []
    for layer in layers():
        of = layer.sizes
        link = f"[{layer.geometry}](../definitions/moe/{layer.definition}.json)"
        experts = f"{of['num_local_experts']} of {layer.experts}"
        widths = [of[key] for key in ("top_k", "hidden_size", "intermediate_size")]
        large = f" {TOO_LARGE}" if model_gb(layer) > GPU_GB else ""
        gigabytes = [f"{weight_bytes(layer) / 1e9:.2f}", layer.count, f"{model_gb(layer):.0f}{large}"]
        rows.append([layer.name, link, experts, *widths, *gigabytes])
    head = ["model", "definition", "experts", "top-k", "H", "I", "GB", "layers", "all, GB"]
    caption = f"{TOO_LARGE}: more than the {GPU_GB} GB of one {MEASURED_ON}."
    return Table(head, [rows], words=3, caption=caption).markdown()


def passes(found: Comparison) -> str:
    """Markdown: at default tolerance which solution passes, and how narrowly."""
    rows = []
    for of in verdicts(found):
        cells = [None] * 3
        if best := of.at("default"):
            least = decimal(of.least_matched(best.solution, "default"), 3)
            cells = [best.solution, f"{best.passed} of {best.workloads}", least]
        rows.append([of.layer.name, *cells])
    wanted = TOLERANCES["default"].ratio
    return Table(["model", "at default", "passed", f"lowest ratio ({wanted:g})"], [rows], words=2).markdown()


def nearest(tokens: int, among: Iterable[int]) -> int | None:
    """The token count that stands for `tokens`; None without one near enough."""

    def factor(t: int) -> float:
        return max(t, tokens) / min(t, tokens) if t else NEAR + 1

    return min((t for t in among if factor(t) <= NEAR), key=factor, default=None)


def at(tokens: int, seq_len: int, text: str) -> str:
    return text if seq_len == tokens else f"{text} ({seq_len})"


def bounds() -> str:
    """Markdown: the roofline bound of each layer at a few T, from its workloads' routing."""
    rows = []
    for layer in layers():
        cases = {case.seq_len: uuid for uuid, case in cases_by_uuid(layer.geometry).items()}
        row = [layer.name]
        for tokens in BOUND_TOKENS:
            seq_len = nearest(tokens, cases)
            ms = seq_len and generated_bound(layer.geometry, cases[seq_len]).ms
            row.append(ms and at(tokens, seq_len, f"{ms:.3f}"))
        rows.append(row)
    head = ["model", *(f"T={t}, ms" for t in BOUND_TOKENS)]
    return Table(head, [rows], caption=NEAREST).markdown()


def over_bound(of: Verdict, row: Row, tokens: int) -> str | None:
    cell = row.cells.get(of.best.solution)
    if cell and cell.counts and cell.over_bound is not None:
        missed = f" {MISSED}" if meets_target(row, of.best.solution) is False else ""
        return at(tokens, row.workload.seq_len, f"{cell.over_bound:.2f}{missed}")


def by_tokens(found: Comparison, entry: Callable[[Verdict, Row, int], str | None]) -> list[Table]:
    """Two tables, as one of all token counts is too wide."""
    tables = []
    for tokens in (FEW, MANY):
        rows = []
        for of in verdicts(found):
            measured = {row.workload.seq_len: row for row in of.group.rows} if of.best else {}
            at_tokens = [(measured.get(nearest(t, measured)), t) for t in tokens]
            rows.append([of.layer.name, *(row and entry(of, row, t) for row, t in at_tokens)])
        tables.append(Table(["model", *(f"T={t}" for t in tokens)], [rows]))
    return tables


def speeds(found: Comparison) -> str:
    """Markdown: the solution to use over the bound, by T, and where it misses its target."""
    caption = f"Latency over the roofline bound. Targets: {TARGETS}; {MISSED}: missed. {NEAREST}"
    return "\n\n".join([*(table.markdown() for table in by_tokens(found, over_bound)), caption])


def peers(found: Comparison) -> str:
    """Markdown: by T, how many times as fast the solution to use is as the fastest of another source."""
    named = {}

    def entry(of: Verdict, row: Row, tokens: int) -> str | None:
        if peer := best_peer(row, of.best.solution):
            name, times = peer
            short = "".join(word[0] for word in name.split("_") if word)
            named[short] = name
            return at(tokens, row.workload.seq_len, f"{times:.2f} {short}{f' {MISSED}' if times < 1 else ''}")

    tables = [table.markdown() for table in by_tokens(found, entry)]
    known = ", ".join(f"{short}: {name}" for short, name in sorted(named.items())) or "no other solution was timed"
    caption = f"How many times as fast as the fastest of another source, and which ({known}); {MISSED}: behind it."
    return "\n\n".join([*tables, f"{caption} {NEAREST}", conditions(found)])
