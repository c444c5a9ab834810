"""Records as one table, a column for each workload, and one figure, a bar for each call."""

from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from harness.core import paths
from harness.packing.stages import UNASSIGNED
from harness.profiling.record import Kernel, ProfileRecord, WorkloadProfile, read_records
from harness.report.figures import style
from harness.report.table import Table, decimal
from harness.results import staleness

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
COLOURS = {"gemm1": "#2f6f9f", "gemm2": "#b4701c", "combine": "#4b8a35", "route": "#8a6fb3", "permute": "#c46a86"}
WHOLE, BETWEEN = "whole layer in one kernel", "host and gaps"
COLOURS |= {"swiglu_quant": "#4fa3a5", WHOLE: "#56606e", UNASSIGNED: "#b9b9b4", BETWEEN: "#dededa"}


def counters(kernels: list[Kernel], field: str) -> str:
    """One of Counters' percentages, weighted by the time of the launches that have it."""
    known = [launch for kernel in kernels for launch in kernel.counters if getattr(launch, field) is not None]
    mean = fmean([getattr(one, field) for one in known], [one.us for one in known]) if known else None
    return decimal(mean, 1)


def stage_text(profile: WorkloadProfile, stage: str) -> str | None:
    """'244.5 (86.5, 15.5)'; without brackets where ncu did not count."""
    if not (kernels := profile.stages.get(stage)):
        return None
    counted = f" ({counters(kernels, 'dram_percent')}, {counters(kernels, 'tensor_percent')})"
    return f"{sum(kernel.us for kernel in kernels):.1f}{counted if any(kernel.counters for kernel in kernels) else ''}"


def in_order(profiles: list[WorkloadProfile]) -> list[str]:
    """Every stage of a solution, each behind the one that it follows in a call."""
    order: list[str] = []
    for profile in profiles:
        at = 0
        for stage in profile.stages:
            if stage not in order:
                order.insert(at, stage)
            at = order.index(stage) + 1
    return order


def table(records: list[ProfileRecord]) -> Table:
    """Of one machine. A section for each solution: its stages, then the whole call."""
    profiles = sorted((of for record in records for of in record.workloads), key=lambda of: (of.T, of.uuid))
    columns, sections, warnings = {of.uuid: of.label for of in profiles}, [], []
    for record in records:
        of = {profile.uuid: profile for profile in record.workloads}
        texts = {stage: lambda each, stage=stage: stage_text(each, stage) for stage in in_order(record.workloads)}
        rows = [[name, *(text(of[u]) if u in of else None for u in columns)] for name, text in (texts | CALL).items()]
        rows = [row for row in rows if any(row[1:])]
        sections.append([["" if at else record.solution, *row] for at, row in enumerate(rows)])
        warnings += [f"{record.solution}, {each.label}: {line}" for each in of.values() for line in each.warnings]
    unit = "us" if records[0].clock == "device" else "CPU us of an interpreter"
    title = f"{records[0].provenance.hardware}, {unit}"
    return Table(["solution", "stage", *columns.values()], sections, title, 2, CAPTION, warnings=warnings)


def origin(record: ProfileRecord) -> str:
    made = record.provenance
    stale = " (stale)" if staleness.of_record(made, record.solution) != "current" else ""
    how = [made.timestamp[:10], made.protocol or "", made.versions_text, f"`{made.command}`"]
    return f"{record.solution}{stale}: {', '.join(filter(None, how))}"


def block() -> str:
    """Markdown: the table of docs/data/profile and how its records were made; '' without any.

    Raises UserError for a file that is no record."""
    records = read_records(paths.PROFILES)
    made = "<br>".join(map(origin, records))
    return f"{table(records).markdown(titled=True)}\n\n<sub>{made}</sub>" if records else ""


def kind(stage: str) -> str:
    """What names a stage's colour in the legend."""
    parts = stage.split(" + ")
    if {"gemm1", "gemm2"} <= set(parts):
        return WHOLE
    return next((known for known in COLOURS if known in parts), UNASSIGNED)


def draw_bar(axes: Axes, row: int, profile: WorkloadProfile, scale: float) -> None:
    """Stages are scaled to the time in which kernels run. scale: points per microsecond, about."""
    us = {stage: sum(kernel.us for kernel in kernels) for stage, kernels in profile.stages.items()}
    part, left = profile.busy_us / sum(us.values()), 0.0
    us[BETWEEN] = (profile.wall_us - profile.busy_us) / part
    for stage, of_stage in us.items():
        width = of_stage * part
        axes.barh(row, width, left=left, height=0.7, color=COLOURS[kind(stage)], edgecolor=style.GROUND, linewidth=0.8)
        text = f"{width if stage == BETWEEN else of_stage:.0f}"
        if 5.2 * len(text) < width * scale:
            ink = style.INK if stage == BETWEEN else "white"
            axes.text(left + width / 2, row, text, ha="center", va="center", color=ink, fontsize=8)
        left += width
    end = (profile.wall_us, row)
    axes.annotate(f"{profile.wall_us:.0f}", end, (5, 0), textcoords="offset points", va="center", weight="bold")


def figure() -> Figure:
    """Where the wall time of one call goes: a panel, with a scale of its own, for each T that has it."""
    records, bars = read_records(paths.PROFILES), {}
    for record in records:
        for profile in record.workloads:
            if profile.wall_us and ":" not in profile.uuid:
                bars.setdefault(profile.uuid, {})[record.solution] = profile
    panels = sorted(bars.values(), key=lambda of: next(iter(of.values())).T)
    made = style.new(
        f"Where one call's time goes: {records[0].provenance.hardware}",
        1.4 + sum(0.5 + 0.32 * len(of) for of in panels),
    )
    grid = made.subplots(len(panels), 1, squeeze=False, height_ratios=[1 + len(of) for of in panels])
    for axes, of in zip(grid[:, 0], panels, strict=True):
        longest = 1.15 * max(profile.wall_us for profile in of.values())
        for row, profile in enumerate(of.values()):
            draw_bar(axes, row, profile, 530 / longest)
        axes.axvline(profile.bound_us, **style.BOUND_LINE)
        axes.set(title=profile.label, xlim=(0, longest), yticks=range(len(of)), yticklabels=of)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
    axes.set_xlabel("us of one call; numbers are the kernels' own times, which add up to more where kernels overlap")
    shown = {kind(stage) for of in panels for profile in of.values() for stage in profile.stages} | {BETWEEN}
    keys = [Patch(color=colour, label=name) for name, colour in COLOURS.items() if name in shown]
    bound = axes.plot([], [], label="roofline bound", **style.BOUND_LINE)
    made.legend(handles=[*keys, *bound], loc="outside lower center", ncols=4)
    return made
