"""Figure: where one call's time goes, a stacked bar of stages for each solution, a plot for each workload."""

from matplotlib.figure import Figure

from harness.packing.stages import UNASSIGNED
from harness.profiling.record import ProfileRecord
from harness.report.figures.picture import Picture, slug
from harness.report.figures.style import BOUND_LINE, COLOURS

STAGES = ("route", "permute", "gemm1", "swiglu_quant", "gemm2", "combine")
BETWEEN = "host and gaps"
NO_STAGE = {UNASSIGNED: {"color": "#d9d9d6", "hatch": "xxx"}, BETWEEN: {"color": "#d9d9d6", "hatch": ""}}
HATCHES = ("///", "---", "xxx", "\\\\\\")
BOUND = "roofline bound"


def data(records: list[ProfileRecord]) -> dict:
    """What is drawn: {T: {solution: {"stages": [[stage, us]], "bound": us or None}}}, times of one call.

    Of records on a device, and of the public workloads. A stage's share is of what its kernels took; what the call
    took besides, where known, is the stage `BETWEEN`.
    """
    found: dict[int, dict] = {}
    for record in sorted(records, key=lambda record: record.solution):
        for profile in record.workloads if record.clock == "device" else []:
            if ":" in profile.uuid or not profile.calls:
                continue
            stages = [[stage.stage, stage.total_us / profile.calls] for stage in profile.stages]
            if profile.host_us is not None and profile.host_us > 0:
                stages.append([BETWEEN, profile.host_us])
            found.setdefault(profile.T, {})[record.solution] = {"stages": stages, "bound": profile.bound_us}
    return dict(sorted(found.items()))


def order(stage: str) -> tuple[int, int, str]:
    """Stages in the pipeline's order, a fused piece before those that follow its first; then what is no stage."""
    if stage in NO_STAGE:
        return (len(STAGES) + list(NO_STAGE).index(stage), 0, stage)
    parts = stage.split(" + ")
    first = STAGES.index(parts[0]) if parts[0] in STAGES else len(STAGES) - 1
    return (first, len(parts), stage)


def fills(stages: list[str]) -> dict[str, dict]:
    """bar's color and hatch for each stage: a single stage always the same colour, one of two fused with a hatch."""
    found, fused = dict(NO_STAGE), 0
    for stage in (stage for stage in stages if stage not in NO_STAGE):
        parts = stage.split(" + ")
        known = parts[0] in STAGES and len(parts) < 3
        hatch = HATCHES[fused % len(HATCHES)] if len(parts) > 1 else ""
        fused += len(parts) > 1
        found[stage] = {"color": COLOURS[STAGES.index(parts[0]) if known else -1], "hatch": hatch}
    return found


def draw(found: dict, title: str) -> Figure:
    """found as `data` returns it, with at least one workload. Each plot has a scale of its own."""
    solutions = sorted({name for by_solution in found.values() for name in by_solution})
    stages = sorted({s for by in found.values() for bar in by.values() for s, _ in bar["stages"]}, key=order)
    appearance = fills(stages)
    height = 1.3 + len(found) * (0.55 + 0.42 * len(solutions)) + 0.22 * len(stages) / 2
    figure = Figure(figsize=(10, height), layout="constrained")
    figure.suptitle(title)
    panels = figure.subplots(len(found), 1, squeeze=False)[:, 0]
    for axes, (seq_len, by_solution) in zip(panels, found.items(), strict=True):
        times = {solutions.index(name): dict(bar["stages"]) for name, bar in by_solution.items()}
        longest = max(sum(of_one.values()) for of_one in times.values())
        left = dict.fromkeys(times, 0.0)
        for stage in sorted({stage for of_one in times.values() for stage in of_one}, key=order):
            us = {row: of_one[stage] for row, of_one in times.items() if stage in of_one}
            starts = [left[row] for row in us]
            look = {"edgecolor": "white", "linewidth": 0.7, **appearance[stage]}
            bars = axes.barh(list(us), list(us.values()), left=starts, height=0.72, label=stage, **look)
            box = {"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 1.2}
            texts = [f"{each:.0f}" if each > 0.06 * longest else "" for each in us.values()]
            axes.bar_label(bars, texts, label_type="center", fontsize=8.5, bbox=box)
            for row, each in us.items():
                left[row] += each
        for row, total in left.items():
            axes.text(total + 0.01 * longest, row, f"{total:.0f}", va="center", fontweight="bold")
        if bounds := [bar["bound"] for bar in by_solution.values() if bar["bound"] is not None]:
            axes.axvline(min(bounds), label=BOUND, **BOUND_LINE)
        axes.set_yticks(range(len(solutions)), solutions)
        axes.invert_yaxis()
        axes.set_xlim(0, longest * 1.08)
        axes.set_title(f"T = {seq_len}", loc="left")
        axes.grid(axis="y", visible=False)
    panels[-1].set_xlabel("microseconds of one call")
    shown = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    names = [name for name in (*stages, BOUND) if name in shown]
    figure.legend([shown[n] for n in names], names, loc="outside lower center", ncols=2 if len(names) > 5 else 4)
    return figure


def pictures(records: list[ProfileRecord]) -> list[Picture]:
    """One for each machine with a profile on its GPU."""
    made = []
    for name in sorted({record.provenance.hardware for record in records}):
        if found := data([record for record in records if record.provenance.hardware == name]):
            made.append(Picture(f"stages-{slug(name)}.svg", draw, (found, f"Where one call's time goes, {name}")))
    return made
