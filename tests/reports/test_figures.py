"""The figures of docs/: no text lies on another, or so close beside it that they read as one."""

from itertools import combinations

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from moebench.core import paths
from moebench.operators.roofline import MEASURED_ON
from moebench.profiling.record import read_records
from moebench.reports.figures import speed, stages, style
from moebench.results import measurements
from recorded import NAME


def drawn_speed():
    rows, _ = measurements.load([paths.trace_file(NAME)])
    return speed.figure(rows[(rows.hardware == MEASURED_ON) & (rows.clock == "events")])


def drawn_stages():
    return stages.figure(read_records(paths.PROFILES))


def texts_of(figure):
    """Return each visible text and its box in pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()

    texts = []
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text().strip():
            texts.append((text.get_text(), text.get_window_extent(renderer)))
    return texts


@pytest.mark.parametrize("draw", [drawn_speed, drawn_stages])
def test_no_text_lies_on_another(draw):
    with style.settings():
        texts = texts_of(draw())
    assert len(texts) > 20
    colliding = []
    for (first, box), (second, other) in combinations(texts, 2):
        if box.padded(2, 0).overlaps(other):
            colliding.append((first, second))
    assert colliding == []
