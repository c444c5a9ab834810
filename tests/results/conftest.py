"""Tables of results that tests make of traces with figures of their own."""

import pytest
from moebench.results import measurements
from recorded import trace_set


@pytest.fixture
def load(tmp_path):
    """A function that writes traces to a data set and returns the rows of its table. solutions: of
    which the data set has the source.
    """

    def rows_of(*traces, solutions=("fast", "slow")):
        root = trace_set(tmp_path / "set", traces, solutions)
        rows, warnings = measurements.load([root])
        assert warnings == []
        return rows

    return rows_of
