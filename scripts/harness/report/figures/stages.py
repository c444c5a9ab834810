"""Figure: where one call's wall time goes, a bar of stages for each solution, a plot for each workload."""

from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from harness.packing.stages import UNASSIGNED
from harness.profiling.record import ProfileRecord
from harness.report.figures import style
from harness.report.figures.picture import Picture, slug

# A fused kernel has the colour of its first stage here, except one that holds both GEMMs.
COLOURS = {"gemm1": "#2f6f9f", "gemm2": "#b4701c", "combine": "#4b8a35", "route": "#8a6fb3", "permute": "#c46a86"}
COLOURS |= {"swiglu_quant": "#4fa3a5"}
WHOLE, BETWEEN = "whole layer in one kernel", "host and gaps"
OTHERS = {WHOLE: "#56606e", UNASSIGNED: "#b9b9b4", BETWEEN: "#dededa"}
NOTE = """A bar ends at the wall time of a call, as FlashInfer-Bench times it; numbers are the kernels' own times.
Where kernels overlap (programmatic dependent launch), their stages are scaled to the time in which they run, and a thin
line shows how much more they add up to."""


def data(records: list[ProfileRecord]) -> dict:
    """What is drawn: {T: {solution: {"stages": [[stage, us]], "wall": us, "device": us, ...}}}, times of one call.

    Of records on a device, and of the public workloads whose wall time is known. device: how long kernels run, of
    which the stages add up to more where kernels overlap; the wall time where they do and nothing more is known.
    "bound": us or None.
    """
    found: dict[int, dict] = {}
    for record in sorted(records, key=lambda record: record.solution):
        for profile in record.workloads if record.clock == "device" else []:
            if ":" not in profile.uuid and profile.calls and profile.wall_us:
                stages = [[stage.stage, stage.total_us / profile.calls] for stage in profile.stages]
                bar = {"stages": stages, "wall": profile.wall_us, "device": profile.device_us or profile.wall_us}
                found.setdefault(profile.T, {})[record.solution] = bar | {"bound": profile.bound_us}
    return dict(sorted(found.items()))


def kind(stage: str) -> str:
    """What names a stage's colour in the legend."""
    parts = stage.split(" + ")
    if {"gemm1", "gemm2"} <= set(parts):
        return WHOLE
    return next((known for known in (*COLOURS, *OTHERS) if known in parts), UNASSIGNED)


def draw_bar(axes: Axes, row: int, bar: dict, scale: float) -> None:
    """scale: points per microsecond, about. No text stands where the bound's line is drawn."""
    wall, device, total = bar["wall"], bar["device"], sum(us for _, us in bar["stages"])
    pieces = [(stage, us, us * device / total) for stage, us in bar["stages"]]
    if wall > device:
        pieces.append((BETWEEN, wall - device, wall - device))
    left = 0
    for stage, us, width in pieces:
        colour = (COLOURS | OTHERS)[kind(stage)]
        axes.barh(row, width, left=left, height=0.7, color=colour, edgecolor=style.GROUND, linewidth=0.8)
        edges = sorted({left, min(max(bar["bound"] or 0, left), left + width), left + width})
        low, high = max(pairwise(edges), key=lambda pair: pair[1] - pair[0])
        texts = (f"{stage}: {us:.0f}", f"{kind(stage)}: {us:.0f}", f"{us:.0f}")
        if fits := [text for text in texts if 5.2 * len(text) < (high - low) * scale]:
            box = {"facecolor": colour, "edgecolor": "none", "pad": 1}
            ink = {"color": style.INK if stage == BETWEEN else "white", "fontsize": 8, "bbox": box}
            axes.text((low + high) / 2, row, fits[0], ha="center", va="center", **ink)
        left += width
    text = f"{wall:.0f}"
    if total > 1.001 * device:
        axes.plot([wall, wall + total - device], [row, row], color=style.INK, linewidth=1, marker="|", markersize=5)
        text += f" ({'≥ ' if device == wall else ''}{total - device:.0f} overlap)"
    end = max(wall, wall + total - device)
    axes.annotate(text, (end, row), (5, 0), textcoords="offset points", va="center", weight="bold")


def draw(found: dict, title: str) -> Figure:
    """found as `data` returns it, with at least one workload. Each plot has a scale of its own."""
    figure = style.new(title, 1.6 + sum(0.5 + 0.32 * len(bars) for bars in found.values()))
    panels = figure.subplots(len(found), 1, squeeze=False, height_ratios=[1 + len(bars) for bars in found.values()])
    for axes, (seq_len, bars) in zip(panels[:, 0], found.items(), strict=True):
        longest = 1.32 * max(bar["wall"] for bar in bars.values())
        for row, bar in enumerate(bars.values()):
            draw_bar(axes, row, bar, 530 / longest)
        if bounds := [bar["bound"] for bar in bars.values() if bar["bound"]]:
            axes.axvline(min(bounds), **style.BOUND_LINE)
        axes.set(title=f"T = {seq_len}", xlim=(0, longest), yticks=range(len(bars)), yticklabels=bars)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
    axes.set_xlabel("microseconds of one call")
    shown = {kind(stage) for bars in found.values() for bar in bars.values() for stage, _ in bar["stages"]} | {BETWEEN}
    keys = [Patch(color=colour, label=name) for name, colour in (COLOURS | OTHERS).items() if name in shown]
    bound = axes.plot([], [], label="roofline bound", **style.BOUND_LINE)
    legend = figure.legend(handles=[*keys, *bound], loc="outside lower center", ncols=5, title=NOTE)
    legend.get_title().set(fontsize=7.5, color=style.FAINT)
    return figure


def pictures(records: list[ProfileRecord]) -> list[Picture]:
    """One for each machine with a profile on its GPU."""
    made = []
    for name in sorted({record.provenance.hardware for record in records}):
        if found := data([record for record in records if record.provenance.hardware == name]):
            made.append(Picture(f"stages-{slug(name)}.svg", draw, (found, f"Where one call's time goes: {name}")))
    return made
