"""The layer that FIB builds of a packed solution, and the workloads that it is run on."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from flashinfer_bench import Trace, Workload
from flashinfer_bench.compile import BuilderRegistry
from flashinfer_bench.data import load_jsonl_file
from moebench.core import paths
from moebench.operators import catalogue, workloads
from moebench.packing import eligibility, pack


@dataclass(frozen=True)
class Records:
    """The workloads of a definition, and the folder that holds their tensors."""

    root: Path
    workloads: list[Workload]


@pytest.fixture(scope="session")
def records(tmp_path_factory):
    """A function of a geometry that returns its Records, made once."""
    records_of = {}

    def get(geometry):
        if geometry not in records_of:
            root = tmp_path_factory.mktemp(geometry)
            workloads.make(geometry, root)
            path = paths.workload_file(catalogue.definition_name(geometry), root)
            traces = load_jsonl_file(Trace, path)
            records_of[geometry] = Records(root, [trace.workload for trace in traces])
        return records_of[geometry]

    return get


@pytest.fixture
def layer(solution, geometry):
    """The runnable that FIB builds of a packed solution."""
    packed = pack.pack(solution)[geometry]
    reason = eligibility.why_skipped(packed, eligibility.here())
    if reason:
        pytest.skip(f"{solution} {reason}")

    runnable = BuilderRegistry.get_instance().build(catalogue.definition(geometry), packed)
    assert runnable.metadata.destination_passing_style
    return runnable
