"""The pictures in docs/ are of the traces, look as they are meant to, and are missing only for a reason."""

import re
import xml.etree.ElementTree as ET

import pytest
from harness.core import paths
from harness.core.provenance import Provenance
from harness.operators.roofline import BYTES_PER_SECOND, FLOPS_PER_SECOND
from harness.profiling.record import KernelTime, ProfileRecord, StageTime, WorkloadProfile
from harness.report.figures import roofline, speed, stages, style
from harness.results import comparison
from recorded import DEFAULT, trace, write

STAGES = {"route": 5.0, "gemm1 + swiglu_quant": 60.0, "gemm2": 35.0}


def two(**changes):
    times = {"fast": {1: 0.05, 57: 0.3, 901: 0.5}, "slow": {1: 0.1, 57: 0.4, 901: 0.4}}
    return [trace(name, t, ms, 20.0, **changes) for name, of in times.items() for t, ms in of.items()]


def build(tmp_path, traces):
    return comparison.build([write(tmp_path / "traces.jsonl", traces)])


def profile(name="fast", clock="device", uuid="u", host_us=12.0, hardware="NVIDIA H200"):
    """A record of two calls at T=57."""
    stages = []
    for stage, us in STAGES.items():
        kernel = KernelTime(name=f"{stage}_kernel", instances=2, total_us=2 * us, average_us=us)
        share = us / sum(STAGES.values())
        stages.append(StageTime(stage=stage, kernels=[kernel], total_us=2 * us, share=share))
    workload = WorkloadProfile(
        uuid=uuid,
        T=57,
        calls=2,
        stages=stages,
        other=[],
        wall_us=112.0,
        host_us=host_us,
        bound_us=80.0,
        warnings=[],
    )
    return ProfileRecord(
        solution=name,
        definition="d",
        clock=clock,
        provenance=Provenance(hardware=hardware, versions={}, timestamp="2026-01-01"),
        workloads=[workload],
    )


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
    assert len(text) < 60_000
    assert "sans-serif" in text and 'id="DejaVuSans' not in text
    texts = [element for element in ET.fromstring(text).iter() if element.tag.endswith("}text")]
    assert len(texts) > 20 and all("".join(element.itertext()).strip() for element in texts)


def test_shortening_a_picture_keeps_its_text():
    text = '<text id="b" x="-0.125">580.1599</text>'
    old = f'<g id="a" style="fill: red"><use xlink:href="#b" x="1.23456"/></g>{text}</style>'
    new = '<g class="c0"><use xlink:href="#b" x="1.23"/></g><text id="b" x="-0.12">580.1599</text>.c0{fill: red}'
    assert style.shortened(old) == f"{new}\n</style>\n"


def test_ground_is_opaque_and_solutions_differ_in_more_than_colour():
    """Legible in dark mode, in print, and whatever colours a reader can tell apart."""
    assert re.fullmatch(r"#[0-9a-f]{6}", style.GROUND) and style.GROUND > "#f0f0f0"
    looks = style.looks([f"solution{at}" for at in range(12)])
    kinds = {(look["color"], look["marker"]) for look in looks.values()}
    assert len(kinds) == 12
    first = list(looks.values())[:7]
    assert all(len({str(look[key]) for look in first}) == 7 for key in ("color", "marker", "linestyle"))


def test_speed_draws_what_was_measured_and_the_bound(tmp_path):
    found = build(tmp_path, [*two(), trace("slow", 7, status="RUNTIME_ERROR")])
    data = speed.data(found.groups[0])
    assert data["fast"] == [[1, 0.05, 400.0], [57, 0.3, 20 / 0.3], [901, 0.5, 40.0]]
    assert [t for t, _, _ in data["slow"]] == [t for t, _, _ in data["bound"]] == [1, 57, 901]
    for _, ms, speedup in data["bound"]:
        assert speedup == pytest.approx(20 / ms)
    (drawn,) = speed.pictures(found)
    figure = drawn.draw(*drawn.arguments)
    for axes in figure.axes:
        assert axes.get_xscale() == axes.get_yscale() == "log"
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["roofline bound", "fast (3 of 19 workloads)", "slow (3 of 19 workloads)"]


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


def test_stages_add_up_to_a_call():
    data = stages.data([profile(), profile("slow", host_us=None)])
    assert data == {
        57: {
            "fast": {"stages": [*map(list, STAGES.items()), [stages.BETWEEN, 12.0]], "bound": 80.0},
            "slow": {"stages": [*map(list, STAGES.items())], "bound": 80.0},
        }
    }
    figure = stages.draw(data, "title")
    (axes,) = figure.axes
    ends = {}
    for bar in axes.patches:
        ends[bar.get_y()] = max(ends.get(bar.get_y(), 0), bar.get_x() + bar.get_width())
    assert sorted(ends.values()) == [100.0, 112.0]
    keys = figure.legends[0].get_patches()
    assert {(key.get_facecolor(), key.get_hatch()) for key in keys} == {
        (bar.get_facecolor(), bar.get_hatch()) for bar in axes.patches
    }


def test_times_of_the_interpreter_and_made_up_routing_are_not_drawn():
    """Neither says where a public workload's time goes on a GPU."""
    assert stages.pictures([profile(clock="cpu"), profile("slow", uuid="uniform:57")]) == []


def test_what_cannot_be_drawn_is_left_out(tmp_path):
    unknown = build(tmp_path, two(hardware="A GPU"))  # no bound is known for it
    assert [drawn.file for drawn in speed.pictures(unknown)] == ["speed-a-gpu.svg"]
    assert roofline.pictures(unknown) == []
    other = build(tmp_path, two(tolerance=DEFAULT))
    assert speed.pictures(other) == roofline.pictures(other) == []


def test_machines_and_versions_get_pictures_of_their_own(tmp_path):
    found = build(tmp_path, [*two(), *two(torch="2.13"), *two(hardware="A GPU")])
    files = [drawn.file for drawn in speed.pictures(found)]
    assert files == ["speed-a-gpu.svg", "speed-nvidia-h200.svg", "speed-nvidia-h200-2.svg"]
