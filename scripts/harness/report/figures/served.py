"""Figure: times the bound that a pass over all MoE layers takes in each solution, over the number of tokens."""

from harness.report.blocks import served as report
from harness.report.figures import speed
from harness.report.figures.picture import Picture
from harness.served.record import Record


def data(record: Record) -> dict[str, list[list]]:
    """What is drawn: solution -> [[T, ms a pass over the sum of the layers' bounds]], by T."""
    return {
        name: [[t, point.ms / point.bound_ms] for t in record.tokens if (point := record.at.get((name, t)))]
        for name in record.solutions
    }


def pictures(records: list[Record]) -> list[Picture]:
    """One for each record of the machine whose bound is known."""
    made = []
    for record in filter(report.has_bound, records):
        title = f"A pass over {report.layers_said(record)} MoE layers of {report.model_name(record)}: times the bound"
        made.append(Picture(report.picture_file(record), speed.draw, (data(record), title, report.origin(record))))
    return made
