"""The pictures in docs/ are of the traces, look as they are meant to, and are missing only for a reason."""

import re
import xml.etree.ElementTree as ET

import pytest
from harness.core import paths
from harness.core.provenance import Provenance
from harness.operators.roofline import BYTES_PER_SECOND, FLOPS_PER_SECOND
from harness.packing import manifest
from harness.profiling.record import KernelTime, ProfileRecord, StageTime, WorkloadProfile
from harness.report import colours
from harness.report.figures import roofline, speed, stages, style
from harness.results import comparison
from recorded import DEFAULT, trace, write

STAGES = {"route": 5.0, "gemm1 + swiglu_quant": 60.0, "gemm2": 35.0}


def two(**changes):
    times = {"fast": {1: 0.05, 57: 0.3, 901: 0.5}, "slow": {1: 0.1, 57: 0.4, 901: 0.4}}
    return [trace(name, t, ms, 20.0, **changes) for name, of in times.items() for t, ms in of.items()]


def build(tmp_path, traces):
    return comparison.build([write(tmp_path / "traces.jsonl", traces)])


def profile(name="fast", clock="device", uuid="u", wall_us=112.0, hardware="NVIDIA H200"):
    """A record of two calls at T=57."""
    stages, sum_us = [], sum(STAGES.values())
    for stage, us in STAGES.items():
        kernel = KernelTime(name=f"{stage}_kernel", instances=2, total_us=2 * us, average_us=us)
        stages.append(StageTime(stage=stage, kernels=[kernel], total_us=2 * us, share=us / sum_us))
    known = {"other": [], "wall_us": wall_us, "host_us": wall_us - sum_us, "bound_us": 80.0, "warnings": []}
    workload = WorkloadProfile(uuid=uuid, T=57, calls=2, stages=stages, **known)
    made = Provenance(hardware=hardware, versions={}, timestamp="2026-01-01")
    return ProfileRecord(solution=name, definition="d", clock=clock, provenance=made, workloads=[workload])


def test_a_changed_figure_makes_a_picture_out_of_date(tmp_path):
    (drawn,) = speed.pictures(build(tmp_path, two()))
    (tmp_path / drawn.file).write_text(drawn.svg())
    assert drawn.is_in(tmp_path)
    changed = two()
    changed[0].evaluation.performance.latency_ms *= 1.01
    (other,) = speed.pictures(build(tmp_path, changed))
    assert other.file == drawn.file and not other.is_in(tmp_path)


def test_pictures_are_the_same_bytes_each_time(tmp_path):
    """A picture drawn again from the same traces must not show up as a change."""
    found = build(tmp_path, two())
    drawn = [*speed.pictures(found), *roofline.pictures(found), *stages.pictures([profile()])]
    assert [p.file for p in drawn] == ["speed-nvidia-h200.svg", "roofline-nvidia-h200.svg", "stages-nvidia-h200.svg"]
    for one in drawn:
        once = one.svg()
        assert once == one.svg()
        assert not re.search(r"<dc:date>", once)
        assert ET.fromstring(once).tag.endswith("svg")


@pytest.mark.parametrize("file", sorted(paths.DOCS.glob("*.svg")), ids=lambda file: file.name)
def test_a_picture_is_small_and_its_text_is_text(file):
    """It can be read in a diff, searched, and shown in the reader's font."""
    text = file.read_text()
    assert len(text) < 80_000
    assert "sans-serif" in text and 'id="DejaVuSans' not in text
    texts = [element for element in ET.fromstring(text).iter() if element.tag.endswith("}text")]
    assert len(texts) > 20 and all("".join(element.itertext()).strip() for element in texts)


def test_shortening_a_picture_keeps_its_text():
    text = '<text id="b" x="-0.125">580.1599</text>'
    old = f'<g id="a" style="fill: red"><use xlink:href="#b" x="1.23456"/></g>{text}</style>'
    new = '<g class="c0"><use xlink:href="#b" x="1.23"/></g><text id="b" x="-0.12">580.1599</text>.c0{fill: red}'
    assert style.shortened(old) == f"{new}\n</style>\n"


@pytest.mark.parametrize("geometry", ["full", "bf16", "mxfp8"])
def test_solutions_that_meet_have_colours_of_their_own(geometry):
    listed = [name for name in manifest.solutions_of([geometry]) if name in colours.LISTED]
    assert len(listed) > 2
    assert len({colours.colour(name) for name in listed}) == len({colours.mark(name) for name in listed}) == len(listed)
    assert set(colours.SPARE).isdisjoint(map(colours.colour, listed)), "a new solution's colour"


def test_a_new_solution_recolours_nobody():
    """Its colour is one of its own, made of the name alone."""
    assert {colours.colour(f"mine{at}") for at in range(50)} == set(colours.SPARE)
    assert {colours.mark(f"mine{at}") for at in range(100)} == set(range(colours.NUM_MARKS))
    assert style.look("mine")["color"] == colours.PALETTE[colours.colour("mine")][0]


def test_text_in_a_colour_is_legible_on_its_ground():
    """In figures and on the page, whose grounds these are: a contrast of at least 4.5."""

    def light(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return sum(v * weight for v, weight in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))

    for on_light, on_dark in colours.PALETTE.values():
        assert (light(style.GROUND) + 0.05) / (light(on_light) + 0.05) > 4.5
        assert (light(on_dark) + 0.05) / (light("#0f1317") + 0.05) > 4.5


def test_speed_draws_times_the_bound_at_equal_distances(tmp_path):
    found = build(tmp_path, [*two(), trace("slow", 7, status="RUNTIME_ERROR"), trace("fast", 80, 0.5)])
    group = found.groups[0]
    data = speed.data(group)
    assert [t for t, _ in data["fast"]] == [1, 57, 80, 901] and [t for t, _ in data["slow"]] == [1, 57, 901]
    bounds = {row.workload.seq_len: row.workload.bound_ms for row in group.rows}
    assert all(times == pytest.approx(0.5 / bounds[t]) for t, times in data["fast"] if t in (80, 901))
    (drawn,) = speed.pictures(found)
    (axes,) = drawn.draw(*drawn.arguments).axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "57", "80", "901"]
    assert list(axes.get_xticks()) == [0, 1, 2, 3] and axes.get_xscale() == axes.get_yscale() == "linear"
    texts = [text.get_text() for text in axes.texts]
    assert {"roofline bound", "fast", "slow (3/4)"} <= set(texts)
    assert [text for text in texts if "↑" in text] == ["5.1 ↑", "10 ↑"], "outliers of T=1"
    assert 1 > axes.get_ylim()[0] > 0.7 and data["fast"][2][1] < axes.get_ylim()[1] < 5.1


def test_labels_at_the_ends_do_not_touch():
    """And stay where they are wanted where there is room."""
    assert style.apart([0.1, 0.5, 0.9], 0.05) == [0.1, 0.5, 0.9]
    for wanted in ([0.5] * 6, [0.1, 0.12, 0.13, 0.5, 0.51], [0.2, 0.25, 0.26]):
        placed = style.apart(wanted, 0.04)
        assert all(b - a > 0.04 - 1e-9 for a, b in zip(placed, placed[1:], strict=False))
        assert sum(placed) == pytest.approx(sum(wanted))


def test_roofline_points_lie_where_bytes_and_operations_put_them(tmp_path):
    group = build(tmp_path, two()).sections[0].groups[0]
    data = roofline.data(group)
    assert set(data) == {"fast", "slow"}
    for row in group.rows:
        for name, cell in row.cells.items():
            info = row.workload
            (point,) = (p for p in data[name] if p[0] == info.seq_len)
            assert point[1:3] == [info.flops / info.bytes, pytest.approx(info.flops / cell.latency_ms * 1e3)]
            roof = min(point[1] * BYTES_PER_SECOND, FLOPS_PER_SECOND)
            assert point[2] / roof == pytest.approx(point[3], rel=1e-6)


def test_a_bar_of_stages_ends_at_the_wall_time():
    """Kernels that overlap add up to more than the call takes; those that leave gaps, to less."""
    data = stages.data([profile(), profile("slow", wall_us=80.0)])
    mine = [list(stage) for stage in STAGES.items()]
    assert data == {
        57: {
            "fast": {"stages": mine, "wall": 112.0, "device": 100.0, "bound": 80.0},
            "slow": {"stages": mine, "wall": 80.0, "device": 80.0, "bound": 80.0},
        }
    }
    (axes,) = stages.draw(data, "title").axes
    ends = {}
    for bar in axes.patches:
        ends[bar.get_y()] = max(ends.get(bar.get_y(), 0), bar.get_x() + bar.get_width())
    assert [ends[y] for y in sorted(ends)] == pytest.approx([112, 80])
    assert {"112", "80 (≥ 20 overlap)"} <= {text.get_text() for text in axes.texts}
    assert [line.get_xdata() for line in axes.lines if line.get_marker() == "|"] == [pytest.approx([80, 100])]


def test_times_of_the_interpreter_and_made_up_routing_are_not_drawn():
    """Neither says where a public workload's time goes on a GPU."""
    assert stages.pictures([profile(clock="cpu"), profile("slow", uuid="uniform:57")]) == []


def test_what_cannot_be_drawn_is_left_out(tmp_path):
    unknown = build(tmp_path, two(hardware="A GPU"))  # no bound is known for it
    assert speed.pictures(unknown) == roofline.pictures(unknown) == []
    other = build(tmp_path, two(tolerance=DEFAULT))
    assert speed.pictures(other) == roofline.pictures(other) == []


def test_versions_get_pictures_of_their_own(tmp_path):
    found = build(tmp_path, [*two(), *two(torch="2.13")])
    files = [drawn.file for drawn in speed.pictures(found)]
    assert files == ["speed-nvidia-h200.svg", "speed-nvidia-h200-2.svg"]
