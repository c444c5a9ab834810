"""What a run that is resumed need not do again."""

from pathlib import Path

from flashinfer_bench import Solution, Trace

from harness.core.provenance import of_trace
from harness.results import staleness, trace_files


def current(
    path: Path, solutions: dict[str, Solution], hardware: str, tolerance: str, protocol: str
) -> dict[str, dict[str, Trace]]:
    """A workload's uuid -> solution -> its trace in the file, if it is of the source as it is now and these conditions.

    What was wrong is there as well: it would be wrong again.
    """
    names = {packed.name: name for name, packed in solutions.items()}
    found = {}
    for trace in trace_files.load(path):
        by, name = of_trace(trace), names.get(trace.solution)
        alike = (by.hardware, by.tolerance, by.protocol) == (hardware, tolerance, protocol)
        if name and alike and staleness.judge(by, [solutions[name].hash()]) == "current":
            found.setdefault(trace.workload.uuid, {})[name] = trace
    return found
