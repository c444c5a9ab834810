"""Every model's layer in a line: which solution, how fast, how far from the roofline bound; from traces/."""

from collections import defaultdict

from harness.operators.roofline import MEASURED_ON
from harness.operators.workloads import cases_by_uuid, generated_bound
from harness.report.comparison import decimal
from harness.report.table import Cell, Table
from harness.results.comparison import TOLERANCE_ORDER, Comparison, Row
from harness.results.model_names import layers, weight_bytes
from harness.results.models import TARGETS, Verdict, best_peer, meets_target, verdicts

BOUND_TOKENS = (1, 64, 1024, 8192)
TOKENS = (1, 8, 64, 256, 1024, 4096)
NEAR = 1.5  # a workload stands for T up to this factor away
MISSED = "✗"
NEAREST = "In brackets: T of the nearest workload, where there is none of that T."


def passes(of: Verdict) -> str:
    """'10, 12, 12/12': workloads passed at default, relaxed and contest tolerance, - where it was not run."""
    counts = (of.passed(tolerance) for tolerance in TOLERANCE_ORDER)
    return f"{', '.join('-' if count is None else str(count) for count in counts)}/{of.best.workloads}"


def ahead(of: Verdict) -> str:
    """'1.24 cutlass_grouped': how many times as fast as the nearest solution of another source."""
    return f"{of.peers[0].geometric_mean:.2f} {of.peers[0].b}" if of.peers else "-"


def line(of: Verdict) -> list[Cell | str]:
    if of.missing:
        return [of.layer.name, of.missing, *["-"] * 4]
    best = of.best
    return [
        of.layer.name,
        Cell(best.solution, "best"),
        decimal(best.mean, 1, "x"),
        decimal(best.over_bound, 2),
        passes(of),
        ahead(of),
    ]


def conditions(found: Comparison) -> str:
    """Machine, versions, protocol, tolerance and dates of what is shown; of which models where these differ."""
    shown = [of for of in verdicts(found) if of.group and any(cell.counts for cell in of.group.cells)]
    if not shown:
        return f"<sub>Nothing is recorded on {MEASURED_ON} with the sources as they are.</sub>"
    said = [MEASURED_ON]
    for words in (
        lambda of: of.section.versions_text,
        lambda of: f"protocol {of.group.protocol}",
        lambda of: f"{of.group.tolerance_name} tolerance",
    ):
        models = defaultdict(list)
        for of in shown:
            models[words(of)].append(of.layer.name)
        said += [f"{text} ({', '.join(names)})" if len(models) > 1 else text for text, names in models.items()]
    dates = sorted(cell.timestamp[:10] for of in shown for cell in of.group.cells)
    return f"<sub>{'; '.join(said)}; {' to '.join(dict.fromkeys((dates[0], dates[-1])))}.</sub>"


def block(found: Comparison) -> str:
    """Markdown for README.md: one row per layer."""
    head = ["model", "use", "score", "ms/bound", "passed", "ahead of"]
    table = Table(head, [[line(of) for of in verdicts(found)]], words=2).markdown()
    return f"{table}\n\n{conditions(found)}"


def sizes() -> str:
    """Markdown: what each layer is. Needs no traces."""
    rows = []
    for layer in layers():
        of = layer.sizes
        link = f"[{layer.geometry}](../definitions/moe/{layer.definition}.json)"
        experts = f"{of['num_local_experts']} of {of['num_experts']}"
        widths = [str(of[key]) for key in ("top_k", "hidden_size", "intermediate_size")]
        rows.append([layer.name, link, experts, *widths, f"{weight_bytes(layer) / 1e9:.2f}", str(layer.count)])
    head = ["model", "definition", "experts", "top-k", "H", "I", "weights, GB", "layers"]
    return Table(head, [rows], words=3).markdown()


def nearest(tokens: int, among: list[int]) -> int | None:
    """The token count that stands for `tokens`; None without one near enough."""
    near = min(among, key=lambda t: max(t, tokens) / min(t, tokens) if t else NEAR + 1)
    return near if near and max(near, tokens) / min(near, tokens) <= NEAR else None


def at(tokens: int, seq_len: int, text: str) -> str:
    return text if seq_len == tokens else f"{text} ({seq_len})"


def bounds() -> str:
    """Markdown: the roofline bound of each layer at a few T, from its workloads' routing."""
    rows = []
    for layer in layers():
        cases = {case.seq_len: uuid for uuid, case in cases_by_uuid(layer.geometry).items()}
        cells = []
        for tokens in BOUND_TOKENS:
            seq_len = nearest(tokens, list(cases))
            ms = None if seq_len is None else generated_bound(layer.geometry, cases[seq_len]).ms
            cells.append("-" if ms is None else at(tokens, seq_len, f"{ms:.3f}"))
        rows.append([layer.name, *cells])
    head = ["model", *(f"T={t}, ms" for t in BOUND_TOKENS)]
    return Table(head, [rows], caption=NEAREST).markdown()


def rows_at(of: Verdict, tokens: tuple[int, ...]) -> list[Row | None]:
    """The workload of the run group that stands for each token count."""
    by_tokens = {row.workload.seq_len: row for row in of.group.rows} if of.group else {}
    return [by_tokens.get(nearest(t, list(by_tokens)) if by_tokens else None) for t in tokens]


def over_bound(of: Verdict, row: Row | None, tokens: int) -> str:
    cell = row and row.cells.get(of.best.solution)
    if not cell or not cell.counts or cell.over_bound is None:
        return "-"
    missed = f" {MISSED}" if meets_target(row, of.best.solution) is False else ""
    return at(tokens, row.workload.seq_len, f"{cell.over_bound:.2f}{missed}")


def targets_met(of: Verdict) -> str:
    """'11 of 12': workloads with a target, and those that met it."""
    met = [each for row in of.group.rows if (each := meets_target(row, of.best.solution)) is not None]
    return f"{sum(met)} of {len(met)}" if met else "-"


def speeds(found: Comparison) -> str:
    """Markdown: the solution to use over the bound, by T, and whether the targets are met."""
    rows = []
    for of in verdicts(found):
        if of.missing:
            rows.append([of.layer.name, *["-"] * len(TOKENS), of.missing])
            continue
        cells = [over_bound(of, row, t) for row, t in zip(rows_at(of, TOKENS), TOKENS, strict=True)]
        rows.append([of.layer.name, *cells, targets_met(of)])
    head = ["model", *(f"T={t}" for t in TOKENS), "met"]
    caption = f"Latency over the roofline bound. Targets: {TARGETS}; {MISSED}: missed; met: of all workloads with one."
    return Table(head, [rows], caption=f"{caption} {NEAREST}").markdown()


def initials(solution: str) -> str:
    return "".join(word[0] for word in solution.split("_") if word)


def peers(found: Comparison) -> str:
    """Markdown: by T, how many times as fast the solution to use is as the fastest of another source."""
    rows, named = [], {}
    for of in verdicts(found):
        cells = []
        for row, tokens in zip(rows_at(of, TOKENS), TOKENS, strict=True):
            peer = row and of.best and best_peer(row, of.best.solution)
            if not peer:
                cells.append("-")
                continue
            name, times = peer
            named[initials(name)] = name
            behind = f" {MISSED}" if times < 1 else ""
            cells.append(at(tokens, row.workload.seq_len, f"{times:.2f} {initials(name)}{behind}"))
        rows.append([of.layer.name, *cells])
    known = ", ".join(f"{short}: {name}" for short, name in sorted(named.items())) or "no other solution was timed"
    caption = f"How many times as fast as the fastest of another source, and which ({known}); {MISSED}: behind it."
    table = Table(["model", *(f"T={t}" for t in TOKENS)], [rows], caption=f"{caption} {NEAREST}").markdown()
    return f"{table}\n\n{conditions(found)}"
