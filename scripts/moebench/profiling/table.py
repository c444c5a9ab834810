"""Records as one table, a column for each workload, and one figure, a bar for each call."""

from statistics import fmean

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from moebench.core import paths
from moebench.operators.roofline import MEASURED_ON
from moebench.profiling.record import Kernel, ProfileRecord, WorkloadProfile, read_records
from moebench.profiling.stages import UNASSIGNED
from moebench.report.figures import style
from moebench.report.table import Table, decimal
from moebench.results import staleness

CAPTION = (
    "us of one call. In brackets, under ncu: % of DRAM's peak, and % of the cycles in which tensor cores work. "
    "Busy: the time in which kernels run, less than the stages' sum where they overlap. Wall: a call as FIB times it."
)
CALL = {
    "busy": lambda of: f"{of.busy_us:.1f}",
    "host and gaps": lambda of: of.wall_us and f"{of.wall_us - of.busy_us:.1f}",
    "wall": lambda of: of.wall_us and f"{of.wall_us:.1f}",
    "wall / bound": lambda of: of.wall_us and of.bound_us and f"{of.wall_us / of.bound_us:.2f}",
}
# A fused kernel has the colour of its first stage here, except one that holds both GEMMs.
COLOURS = {
    "gemm1": "#2f6f9f",
    "gemm2": "#b4701c",
    "combine": "#4b8a35",
    "route": "#8a6fb3",
    "permute": "#c46a86",
}
WHOLE, BETWEEN = "whole layer in one kernel", "host and gaps"
COLOURS |= {"swiglu_quant": "#4fa3a5", WHOLE: "#56606e", UNASSIGNED: "#b9b9b4", BETWEEN: "#dededa"}


def counters(kernels: list[Kernel], field: str) -> str:
    """One of Counters' percentages, weighted by the time of the launches that have it."""
    known = [
        launch
        for kernel in kernels
        for launch in kernel.counters
        if getattr(launch, field) is not None
    ]
    return decimal(
        fmean([getattr(one, field) for one in known], [one.us for one in known]) if known else None,
        1,
    )


def stage_text(kernels: list[Kernel]) -> str:
    """'244.5 (86.5, 15.5)'; without brackets where ncu did not count."""
    counted = f" ({counters(kernels, 'dram_percent')}, {counters(kernels, 'tensor_percent')})"
    return f"{sum(kernel.us for kernel in kernels):.1f}{counted if any(kernel.counters for kernel in kernels) else ''}"


def table(records: list[ProfileRecord]) -> Table:
    """Of one machine. A section for each solution: its stages, those of the last workload first,
    then the call.
    """
    profiles = sorted(
        (of for record in records for of in record.workloads), key=lambda of: (of.T, of.uuid)
    )
    columns, sections, warnings = {of.uuid: of.label for of in profiles}, [], []
    for record in records:
        of: list[WorkloadProfile | None] = [
            next((w for w in record.workloads if w.uuid == u), None) for u in columns
        ]
        stages = dict.fromkeys(
            stage for profile in reversed(record.workloads) for stage in profile.stages
        )
        rows = [
            [s, *(each and s in each.stages and stage_text(each.stages[s]) or None for each in of)]
            for s in stages
        ]
        known = [*CALL][
            : None if record.provenance.hardware == MEASURED_ON else -1
        ]  # the bound is one machine's
        rows += [[name, *(each and CALL[name](each) for each in of)] for name in known]
        shown = [row for row in rows if any(row[1:])]
        sections.append([["" if at else record.solution, *row] for at, row in enumerate(shown)])
        warnings += [
            f"Warning: {record.solution}, {w.label}: {line}"
            for w in record.workloads
            for line in w.warnings
        ]
    title = f"{records[0].provenance.hardware}, us"
    return Table(["solution", "stage", *columns.values()], sections, title, 2, CAPTION, warnings)


def block() -> str:
    """Markdown: the table of docs/data/profile and how its records were made; '' without any.

    Raises UserError for a file that is no record."""
    made, records = [], read_records(paths.PROFILES)
    for record in records:
        by, state = record.provenance, staleness.of_record(record.provenance, record.solution)
        how = ", ".join([by.timestamp[:10], by.protocol or "", by.versions_text, f"`{by.command}`"])
        made.append(f"{record.solution}{'' if state == 'current' else f' ({state})'}: {how}")
    return (
        f"{table(records).markdown(titled=True)}\n\n<sub>{'<br>'.join(made)}</sub>"
        if records
        else ""
    )


def kind(stage: str) -> str:
    """What names a stage's colour in the legend."""
    parts = stage.split(" + ")
    if {"gemm1", "gemm2"} <= set(parts):
        return WHOLE
    return next((known for known in COLOURS if known in parts), UNASSIGNED)


def figure() -> Figure:
    """Where the wall time of one call goes: for each recorded workload a panel with a scale of its
    own.
    """
    records, panels = read_records(paths.PROFILES), {}
    for name, of in ((record.solution, of) for record in records for of in record.workloads):
        if of.wall_us and ":" not in of.uuid:
            panels.setdefault(of.T, {})[name] = of
    made = style.new(
        f"Where one call's time goes: {records[0].provenance.hardware}", 1.4 + 1.1 * len(panels)
    )
    for axes, (_, bars) in zip(
        made.subplots(len(panels), 1, squeeze=False)[:, 0], sorted(panels.items()), strict=True
    ):
        longest = 1.15 * max(of.wall_us for of in bars.values())
        for name, of in bars.items():
            us = {
                stage: sum(kernel.us for kernel in kernels) for stage, kernels in of.stages.items()
            }
            scale, left = of.busy_us / sum(us.values()), 0.0
            parts = [(stage, own, own * scale) for stage, own in us.items()]
            for stage, own, width in [
                *parts,
                (BETWEEN, of.wall_us - of.busy_us, of.wall_us - of.busy_us),
            ]:
                bar = axes.barh(
                    name, width, left=left, color=COLOURS[kind(stage)], edgecolor=style.GROUND
                )
                text, ink = (
                    f"{own:.0f}" if width > 0.03 * longest else "",
                    style.INK if stage == BETWEEN else "white",
                )
                axes.bar_label(bar, [text], label_type="center", fontsize=8, color=ink)
                left += width
            axes.text(left, name, f" {of.wall_us:.0f}", va="center", weight="bold")
        axes.axvline(of.bound_us, **style.BOUND_LINE)
        axes.set(title=of.label, xlim=(0, longest))
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
    axes.set_xlabel(
        "us of one call; numbers are the kernels' own times, which add up to more where kernels overlap"
    )
    keys = [Patch(color=colour, label=name) for name, colour in COLOURS.items()]
    bound = axes.plot([], [], label="roofline bound", **style.BOUND_LINE)
    made.legend(handles=[*keys, *bound], loc="outside lower center", ncols=4)
    return made
