"""Workloads generated anew in a folder of their own, held against the committed ones."""

from moebench.core import paths
from moebench.operators import catalogue, workload_files, workloads


def make_below(root, layer_key):
    """Write the workloads of a layer key below root, each tensor as its sha256 says; return
    root.
    """
    name = catalogue.definition_name(layer_key)
    target = paths.workload_file(name, root, "sha256")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(paths.workload_file(name, suffix="sha256").read_bytes())
    workload_files.make(layer_key, root)
    return root


def assert_committed(layer_key, root):
    """Check that the files beside the tensors are the committed ones, byte for byte; a user's own
    workloads come last.
    """
    name = catalogue.definition_name(layer_key)
    for suffix in ("csv", "sha256"):
        committed = paths.workload_file(name, suffix=suffix).read_bytes()
        assert paths.workload_file(name, root, suffix).read_bytes() == committed

    workloads_here = paths.workload_file(name).read_bytes()
    assert workloads_here.startswith(paths.workload_file(name, root).read_bytes())


def bound(layer_key, uuid):
    """Return the roofline bound of a committed workload."""
    workload = next(each for each in workloads.recorded(layer_key) if each.uuid == uuid)
    return workloads.recorded_bound(catalogue.definition_name(layer_key), workload)
