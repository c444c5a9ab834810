"""Add traces that a run elsewhere wrote with --output to the files in which a run here keeps them.

python tools/keep_traces.py FILE.jsonl ...

Each goes to the file of its definition and clock, as one run more. Traces of workloads that are not
this repository's, and of solutions that it does not have, are left out and counted.
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
    """Whether a trace is of this repository's definition, workload and solution."""
    layer_key = catalogue.by_name().get(trace.definition)
    if layer_key is None or trace.workload.uuid not in cases_by_uuid(layer_key):
        return False
    return folder_name(trace.solution, trace.definition) in solution_names()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.jsonl")
    args = parser.parse_args()

    by_path: dict[Path, list[Trace]] = defaultdict(list)
    left_out = 0
    for file in args.files:
        for trace in trace_files.read_saved(file):
            if is_ours(trace):
                path = paths.trace_file(trace.definition, clock=of_trace(trace).clock)
                by_path[path].append(trace)
            else:
                left_out += 1

    for path, traces in by_path.items():
        trace_files.merge(path, traces)
        print(f"{len(traces)} traces added to {path.relative_to(paths.ROOT)}")
    if left_out:
        print(f"{left_out} left out: of other workloads or solutions")


if __name__ == "__main__":
    main()
