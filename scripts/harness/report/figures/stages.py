"""Figure: where one call's time goes, a stacked bar of stages for each solution, a plot for each workload."""

from matplotlib.figure import Figure

from harness.packing.stages import UNASSIGNED
from harness.profiling.record import ProfileRecord
from harness.report.figures.picture import Picture, picture, slug
from harness.report.figures.style import BOUND_LINE, COLOURS, INK

STAGES = ("route", "permute", "gemm1", "swiglu_quant", "gemm2", "combine")
BETWEEN = "host and gaps"
HATCHES = ("", "///", "---", "xxx", "\\\\\\")


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
    if stage in (UNASSIGNED, BETWEEN):
        return (len(STAGES) + (stage == BETWEEN), 0, stage)
    parts = stage.split(" + ")
    first = STAGES.index(parts[0]) if parts[0] in STAGES else len(STAGES) - 1
    return (first, len(parts), stage)


def fills(stages: list[str]) -> dict[str, dict]:
    """bar's color and hatch for each stage: a single stage always the same colour, one of two fused with a hatch."""
    found, fused = {}, 0
    for stage in stages:
        parts = stage.split(" + ")
        if stage in (UNASSIGNED, BETWEEN):
            found[stage] = {"color": "#d9d9d6", "hatch": "" if stage == BETWEEN else "xxx"}
            continue
        known = parts[0] in STAGES and len(parts) < 3
        at = STAGES.index(parts[0]) if known else len(COLOURS) - 1
        fused += len(parts) > 1
        found[stage] = {"color": COLOURS[at], "hatch": HATCHES[1 + (fused - 1) % 4] if len(parts) > 1 else ""}
    return found


def draw(found: dict, title: str) -> Figure:
    """found as `data` returns it, with at least one workload. Each plot has a scale of its own."""
    solutions = sorted({name for by_solution in found.values() for name in by_solution})
    stages = sorted({s for by in found.values() for bar in by.values() for s, _ in bar["stages"]}, key=order)
    appearance = fills(stages)
    height = 1.3 + len(found) * (0.55 + 0.42 * len(solutions)) + 0.22 * len(stages) / 2
    figure = Figure(figsize=(10, height), layout="constrained")
    figure.suptitle(title, fontsize=11)
    panels = figure.subplots(len(found), 1, squeeze=False)[:, 0]
    labelled = {}
    for axes, (seq_len, by_solution) in zip(panels, found.items(), strict=True):
        bounds = [bar["bound"] for bar in by_solution.values() if bar["bound"] is not None]
        longest = max(sum(us for _, us in bar["stages"]) for bar in by_solution.values())
        for row, name in enumerate(solutions):
            left = 0.0
            for stage, us in sorted(by_solution.get(name, {"stages": []})["stages"], key=lambda item: order(item[0])):
                bar = axes.barh(row, us, left=left, height=0.72, edgecolor="white", linewidth=0.7, **appearance[stage])
                labelled.setdefault(stage, bar)
                if us > 0.06 * longest:
                    axes.text(
                        left + us / 2,
                        row,
                        f"{us:.0f}",
                        ha="center",
                        va="center",
                        fontsize=8.5,
                        color=INK,
                        bbox={"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 1.2},
                    )
                left += us
            if left:
                axes.text(left + 0.01 * longest, row, f"{left:.0f}", va="center", fontweight="bold")
        if bounds:
            line = axes.axvline(min(bounds), **BOUND_LINE)
            labelled.setdefault("roofline bound", line)
        axes.set_yticks(range(len(solutions)), solutions)
        axes.invert_yaxis()
        axes.set_xlim(0, longest * 1.08)
        axes.set_title(f"T = {seq_len}", loc="left")
        axes.grid(axis="y", visible=False)
    panels[-1].set_xlabel("microseconds of one call")
    names = [*stages, *(["roofline bound"] if "roofline bound" in labelled else [])]
    figure.legend([labelled[n] for n in names], names, loc="outside lower center", ncols=2 if len(names) > 5 else 4)
    return figure


def pictures(records: list[ProfileRecord]) -> list[Picture]:
    """One for each machine with a profile on its GPU."""
    machines = sorted({record.provenance.hardware for record in records})
    by_machine = {name: data([r for r in records if r.provenance.hardware == name]) for name in machines}
    return [
        picture(f"stages-{slug(name)}.svg", draw, found, f"Where one call's time goes, {name}")
        for name, found in by_machine.items()
        if found
    ]
