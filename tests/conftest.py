"""What has to be set before any test is imported, which tests this machine can run, and fixtures
that several folders share.

A test's name is its claim. Its docstring says what the test catches, or which case this is.
`support/` has the modules that tests import: pyproject.toml puts it in reach.
"""

import importlib
import os
import shutil
import sys
import tempfile
from collections import Counter

import pytest

IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ

if not IS_WORKER:
    # pytest keeps the folders of three runs where it always does
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    # all else that tests and their processes leave behind, torchrun's logs for instance, goes with
    # this folder; its name is short for the sake of sockets
    TEMPORARY = tempfile.mkdtemp(prefix="moe-")
    os.environ["TMPDIR"] = tempfile.tempdir = TEMPORARY

os.environ["FIB_CACHE_PATH"] = tempfile.mkdtemp(prefix="fib-cache-")

import torch  # noqa: E402
from moebench.core import interpreter  # noqa: E402, F401  before any test imports Triton

if IS_WORKER:
    torch.set_num_threads(1)  # the workers have the cores already


def pytest_unconfigure():
    if not IS_WORKER:
        shutil.rmtree(TEMPORARY, ignore_errors=True)


def pytest_collection_modifyitems(items):
    skip = pytest.mark.skip(reason="needs a CUDA device; torch sees none")
    # tests side by side would share its memory and disturb what is timed
    one_worker = pytest.mark.xdist_group("gpu")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(one_worker if torch.cuda.is_available() else skip)


def pytest_terminal_summary(terminalreporter):
    """What was not tested here and why, a line a reason: pytest's own list has one for each
    place.
    """
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter()
    for report in skipped:
        _, _, reason = report.longrepr
        reasons[reason.removeprefix("Skipped: ")] += 1
    if reasons:
        terminalreporter.section("skipped", sep="-")
    for reason, count in reasons.most_common():
        terminalreporter.line(f"{count:5}  {reason}")


@pytest.fixture
def poisoned_scratch():
    """Fresh memory holds NaN and huge integers, so that nothing can lean on what it held before."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def no_gpu(monkeypatch):
    """As on a machine without a CUDA device."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def refusal(capsys):
    """A function that gives `moebench` arguments that it refuses, and returns its exit status and
    its one line of error. Nothing was evaluated before.
    """
    from moebench import cli

    def run(*arguments):
        capsys.readouterr()
        status = cli.main([str(argument) for argument in arguments])
        shown = capsys.readouterr()
        (line,) = shown.err.splitlines()
        assert "[1/" not in shown.out
        return status, line

    return run


@pytest.fixture
def packed_module(tmp_path_factory):
    """A function of a solution, a dotted name and a layer key (None: its first) that returns that
    module of the packed solution, new in each test.
    """
    from moebench.packing.manifest import read_manifest
    from packed_sources import packed_texts, write_texts

    parent = tmp_path_factory.mktemp("packed")
    names = {}

    def get(solution, dotted, layer_key=None):
        new_name = f"packed_{solution}_{len(names)}"
        name = names.setdefault((solution, layer_key), new_name)
        if not (parent / name).exists():
            first = read_manifest(solution).definitions[0]
            write_texts(parent / name, packed_texts(solution, layer_key or first))
        return importlib.import_module(f"{name}.{dotted}")

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(parent)
        yield get
    for name in list(sys.modules):
        if name.partition(".")[0] in names.values():
            del sys.modules[name]
