"""Figure: where the wall time of one call goes, from the records of `moebench profile`."""

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from moebench.profiling.record import ProfileRecord, WorkloadProfile
from moebench.profiling.stages import UNASSIGNED
from moebench.reports.figures import style

WHOLE = "whole layer in one kernel"
BETWEEN = "host and gaps"

# A fused kernel has the colour of the first of its stages in this order, but WHOLE's if it holds
# both GEMMs.
COLOURS = {
    "gemm1": "#2f6f9f",
    "gemm2": "#b4701c",
    "combine": "#4b8a35",
    "route": "#8a6fb3",
    "permute": "#c46a86",
    "swiglu_quant": "#4fa3a5",
    WHOLE: "#56606e",
    UNASSIGNED: "#b9b9b4",
    BETWEEN: "#dededa",
}
# A bar shorter than this share of the axis has no room for its number.
LEAST_SHARE = 0.03
CAPTION = (
    "us of one call; numbers are the kernels' own times, which add up to more where kernels overlap"
)


@dataclass(frozen=True)
class Part:
    """A piece of a bar. us: the number on it; width: in us of wall time."""

    stage: str
    us: float
    width: float


def figure(records: list[ProfileRecord]) -> Figure:
    """Return a panel for each recorded workload, with a scale of its own."""
    panels = {}
    for record in records:
        for profile in record.workloads:
            made_up_routing = ":" in profile.uuid
            if profile.wall_us and not made_up_routing:
                panels.setdefault(profile.T, {})[record.solution] = profile
    title = f"Where one call's time goes: {records[0].provenance.hardware}"
    drawn = style.new(title, 1.4 + 1.1 * len(panels))

    axes_of_panel = drawn.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axes, tokens in zip(axes_of_panel, sorted(panels), strict=True):
        draw_panel(axes, panels[tokens])
    last = axes_of_panel[-1]
    last.set_xlabel(CAPTION)

    keys = [Patch(color=colour, label=name) for name, colour in COLOURS.items()]
    keys += last.plot([], [], label="roofline bound", **style.BOUND_LINE)
    drawn.legend(handles=keys, loc="outside lower center", ncols=4)
    return drawn


def draw_panel(axes: Axes, profiles: dict[str, WorkloadProfile]) -> None:
    """Draw a bar for each solution, one below the other, and the bound of the workload."""
    longest = 1.15 * max(profile.wall_us for profile in profiles.values())
    for name, profile in profiles.items():
        draw_bar(axes, name, profile, longest)

    any_profile = next(iter(profiles.values()))  # all have the same workload, and so bound
    axes.axvline(any_profile.bound_us, **style.BOUND_LINE)
    axes.set(title=any_profile.label, xlim=(0, longest))
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)


def draw_bar(axes: Axes, name: str, profile: WorkloadProfile, longest: float) -> None:
    """Draw the bar of a solution. longest: us that the axis is long."""
    left = 0.0
    for part in parts(profile):
        colour = COLOURS[colour_key(part.stage)]
        bar = axes.barh(name, part.width, left=left, color=colour, edgecolor=style.GROUND)
        left += part.width

        has_room = part.width > LEAST_SHARE * longest
        text = f"{part.us:.0f}" if has_room else ""
        ink = style.INK if part.stage == BETWEEN else "white"
        axes.bar_label(bar, [text], label_type="center", fontsize=8, color=ink)
    axes.text(left, name, f" {profile.wall_us:.0f}", va="center", weight="bold")


def parts(profile: WorkloadProfile) -> list[Part]:
    """Return the pieces of a bar, which add up to the wall time.

    The stages' widths are scaled to the time in which any kernel runs, as kernels may overlap.
    """
    us = {}
    for stage, kernels in profile.stages.items():
        us[stage] = sum(kernel.us for kernel in kernels)
    scale = profile.busy_us / sum(us.values())

    between = profile.wall_us - profile.busy_us
    pieces = [Part(stage, time, time * scale) for stage, time in us.items()]
    pieces.append(Part(BETWEEN, between, between))
    return pieces


def colour_key(stage: str) -> str:
    """Return the key of COLOURS for a stage, or for several in one kernel, "a + b"."""
    stages = stage.split(" + ")
    if "gemm1" in stages and "gemm2" in stages:
        return WHOLE
    for key in COLOURS:
        if key in stages:
            return key
    return UNASSIGNED
