"""The answer and the results in README.md, made from traces/."""

from collections import defaultdict
from types import SimpleNamespace

from harness.report.comparison import LEVEL_WORDS
from harness.report.table import Cell, Table, decimal
from harness.results.comparison import TOLERANCE_ORDER, Comparison, RunGroup, Section, ratio

SHOWN = "relaxed"  # the tolerance whose times are shown; all solutions that were timed passed it
SHOWN_SEQ_LENS = (1, 57, 14107)
GAIN_SEQ_LENS = (1, 7, 57, 901, 11948, 14107)
SERVED, SGLANG = "hopper_fused", "sglang_triton"
YARDSTICKS = {SGLANG: "SGLang's Triton kernel", "flashinfer_cutlass": "FlashInfer's CUTLASS kernels"}
LINK = "[tolerance](docs/tolerances.md)"
STALE = "*stale*: the solution's source has changed since it was measured, and what was measured does not count."


def shown_group(section: Section) -> RunGroup:
    """The one whose times are shown: at SHOWN, else that in which the most passed."""
    return max(section.groups, key=lambda g: (g.tolerance_name == SHOWN, sum(cell.passed for cell in g.cells)))


def passed(section: Section, solution: str, tolerance: str) -> str:
    """'17/19' at a tolerance, of the run group with the most; 'not run'."""
    found = [g.total.of(solution) for g in section.groups if g.tolerance_name == tolerance and solution in g.solutions]
    if not found:
        return "not run"
    summary = max(found, key=lambda s: s.passed)
    if summary.stale == summary.workloads:
        return "stale"
    return f"{summary.passed}/{summary.workloads}{f', {summary.stale} stale' if summary.stale else ''}"


def row(section: Section, group: RunGroup, solution: str) -> list[Cell | str | None]:
    """Of one solution: means unless it failed somewhere, times where they count, workloads passed."""
    summary = group.total.of(solution)
    at = {row.workload.seq_len: row.cells[solution] for row in group.rows if solution in row.cells}
    over = decimal(summary.over_fastest if summary.complete else None, 2)
    times = [
        Cell(f"{at[t].latency_ms:.3f}", "best" if at[t].level else "") if t in at and at[t].counts else None
        for t in SHOWN_SEQ_LENS
    ]
    score = decimal(summary.mean if summary.complete else None, 1, "x")
    tolerances = (passed(section, solution, tolerance) for tolerance in TOLERANCE_ORDER)
    return [solution, Cell(over, "best" if solution in group.total.best else ""), *times, score, *tolerances]


def packages(group: RunGroup) -> str:
    """'flashinfer_cutlass with flashinfer-python 0.6.13; ...': what a trace's own packages were, where it says so."""
    users = defaultdict(list)
    for name in group.solutions:
        if found := {cell.packages for cell in group.cells if cell.solution == name and cell.packages}:
            users[" or ".join(sorted(found))].append(name)
    return "; ".join(f"{', '.join(names)} with {imported}" for imported, names in users.items())


def block(found: Comparison) -> str:
    """Markdown: for each set of versions of the first machine the one run group that is shown, best solution first.

    Other machines are in the `answer` and in docs/compare.md.
    """
    head = ["solution", "ratio", *(f"T={t}" for t in SHOWN_SEQ_LENS), "score", *TOLERANCE_ORDER]
    shown, parts = found.sections, []
    for section in (section for section in shown if section.hardware == shown[0].hardware):
        group = shown_group(section)
        said = [section.versions_text, f"protocol {group.protocol}", group.when, packages(group)]
        rows = [row(section, group, solution) for solution in group.solutions]
        title = f"{section.hardware}, {group.tolerance_name} tolerance, latency in ms"
        parts.append(Table(head, [rows], title).markdown(titled=True))
        parts.append(
            f"T: tokens in a call. Bold: the fastest, or {LEVEL_WORDS}. *ratio*: latency over that of whichever "
            "solution is fastest on each workload, geometric mean; the sentence at the top compares with one solution "
            "on all of them, so its figures differ slightly. *score*: FIB's, the arithmetic mean of the speed-ups over "
            "the torch reference; every run times the reference itself, so compare scores of one run only. Last three "
            f"columns: workloads passed at each {LINK}."
        )
        parts.append(f"<sub>{'; '.join(filter(None, said))}.</sub>")
    if any(summary.stale for group in found.groups for summary in group.total.summaries):
        parts.append(STALE)
    return "\n\n".join(parts)


def gain(found: Comparison) -> str:
    """Markdown: at a few T, what SERVED takes and what SGLang's kernel takes, where both count."""
    parts = []
    for section in found.sections:
        group = shown_group(section)
        times = ratio(group.rows, SERVED, SGLANG)
        rows = [
            [row.workload.seq_len, *(f"{row.ms(name):.3f}" for name in (SERVED, SGLANG)), f"{faster:.2f}x"]
            for row in group.rows
            if row.workload.seq_len in GAIN_SEQ_LENS and (faster := times.by_workload.get(row.workload.uuid))
        ]
        if not rows:
            continue
        head = ["T", f"{SERVED}, ms", f"{SGLANG}, ms", "times as fast"]
        said = f"{section.hardware}; {group.tolerance_name} tolerance; {section.versions_text}"
        said += f"; protocol {group.protocol}; {group.when}"
        parts += [Table(head, [rows], words=0).markdown(), f"<sub>{said}.</sub>"]
    return "\n\n".join(parts)


def spoken(words: list[str | int]) -> str:
    """'a, b and c'"""
    *most, last = map(str, words)
    return " and ".join(filter(None, [", ".join(most), last]))


def against(group: RunGroup, best: SimpleNamespace) -> str:
    """A sentence: the best's speed against each yardstick and the roofline bound, at a few T and over all."""
    at = [row for seq_len in SHOWN_SEQ_LENS for row in group.rows if row.workload.seq_len == seq_len]

    def values(of_rows: list, over_all: float) -> str:
        return f"{spoken([decimal(value, 2) for value in of_rows])} times ({decimal(over_all, 2)})"

    said = []
    for name, words in YARDSTICKS.items():
        times = ratio(group.rows, best.solution, name)
        if times.geometric_mean:
            of_rows = [times.by_workload.get(row.workload.uuid) for row in at]
            said.append(f"is {values(of_rows, times.geometric_mean)} as fast as {words}")
    if best.over_bound:
        of_rows = [row.cells[best.solution].over_bound for row in at]
        said.append(f"takes {values(of_rows, best.over_bound)} the workload's roofline bound")
    lengths = spoken([row.workload.seq_len for row in at])
    if not said:
        times = spoken([decimal(row.cells[best.solution].latency_ms, 3) for row in at])
        return f"At T = {lengths} tokens `{best.solution}` takes {times} ms; no peer was measured there."
    over = f"in brackets: geometric mean over all {len(group.rows)} workloads"
    return f"At T = {lengths} tokens `{best.solution}` {spoken(said)}; {over}."


def advice(section: Section) -> str:
    """Which solution to use at which tolerance; how fast the best of the shown group is, and against what."""
    shown, uses = shown_group(section), defaultdict(dict)
    for group in sorted(section.groups, key=lambda group: group is not shown):
        uses[" or ".join(f"`{name}`" for name in sorted(group.total.best))][group.tolerance_name] = None
    if not shown.total.best:
        return f"On {section.hardware} no solution has passed every workload."
    use = [f"{names} at {spoken(list(tolerances))} tolerance" for names, tolerances in uses.items() if names]
    said = f"On {section.hardware} use {spoken(use).replace('tolerance', LINK, 1)}."
    return f"{said} {against(shown, shown.total.of(shown.total.best[0]))}"


def answer(found: Comparison) -> str:
    """Markdown: for each machine and set of versions."""
    return "\n\n".join(map(advice, found.sections))
