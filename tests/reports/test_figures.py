"""The figure of docs/: no text lies on another, or so close beside it that they read as one."""

from itertools import combinations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from moebench.core import paths
from moebench.operators.roofline import MEASURED_ON
from moebench.reports.figures import speed, style
from moebench.results import measurements
from recorded import NAME


def drawn_speed():
    rows, _ = measurements.load([paths.trace_file(NAME)])
    return speed.figure(rows[(rows.hardware == MEASURED_ON) & (rows.clock == "events")])


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


def test_no_text_lies_on_another():
    with style.settings():
        texts = texts_of(drawn_speed())
    assert len(texts) > 20
    colliding = []
    for (first, box), (second, other) in combinations(texts, 2):
        if box.padded(2, 0).overlaps(other):
            colliding.append((first, second))
    assert colliding == []
