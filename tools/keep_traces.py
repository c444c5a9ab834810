"""Add traces from files that `moebench run --output` wrote, perhaps on another machine, to this
repository's traces.

    python tools/keep_traces.py FILE.jsonl ...

Each trace goes to the file of its definition and clock, as if run here. Traces of workloads or
solutions that this repository does not have are left out and counted.
"""

import argparse
from collections import defaultdict
from pathlib import Path

from flashinfer_bench import Trace
from moebench.core import paths
from moebench.core.provenance import of_trace
from moebench.operators import catalogue
from moebench.operators.workloads import cases_by_uuid
from moebench.packing.manifest import folder_name, solution_names
from moebench.results import trace_files


def is_ours(trace: Trace) -> bool:
    """Return whether this repository has a trace's definition, workload and solution."""
    layer_key = catalogue.by_name().get(trace.definition)
    if layer_key is None or trace.workload.uuid not in cases_by_uuid(layer_key):
        return False
    return folder_name(trace.solution, trace.definition) in solution_names()


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.jsonl")
    args = parser.parse_args()

    by_path: dict[Path, list[Trace]] = defaultdict(list)
    left_out = 0
    for file in args.files:
        for trace in trace_files.read_saved(file):
            if not is_ours(trace):
                left_out += 1
                continue
            clock = of_trace(trace).clock
            path = paths.trace_file(trace.definition, clock=clock)
            by_path[path].append(trace)

    for path, traces in by_path.items():
        trace_files.merge(path, traces)
        shown_path = path.relative_to(paths.ROOT)
        print(f"{len(traces)} traces added to {shown_path}")
    if left_out:
        print(f"{left_out} left out: of other workloads or solutions")


if __name__ == "__main__":
    main()
