"""The layer that FIB builds of a packed solution, and the workloads that it is run on."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from every_solution import built
from flashinfer_bench import Trace, Workload
from flashinfer_bench.data import load_jsonl_file
from moebench.core import paths
from moebench.operators import catalogue, workload_files


@dataclass(frozen=True)
class Records:
    """The workloads of a definition, and the folder that holds their tensors."""

    root: Path
    workloads: list[Workload]


@pytest.fixture(scope="session")
def records(tmp_path_factory):
    """A function of a layer key that returns its Records, made once."""
    records_of = {}

    def get(layer_key):
        if layer_key not in records_of:
            root = tmp_path_factory.mktemp(layer_key)
            workload_files.make(layer_key, root)
            path = paths.workload_file(catalogue.definition_name(layer_key), root)
            traces = load_jsonl_file(Trace, path)
            records_of[layer_key] = Records(root, [trace.workload for trace in traces])
        return records_of[layer_key]

    return get


@pytest.fixture
def layer(solution, layer_key):
    """The runnable that FIB builds of a packed solution."""
    runnable = built(solution, layer_key)
    assert runnable.metadata.destination_passing_style
    return runnable
