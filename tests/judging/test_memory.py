"""What a run needs of a GPU's memory, and what is skipped where a GPU has less."""

import time
from threading import Event, Thread

import pytest
import torch
from flashinfer_bench import BenchmarkConfig
from flashinfer_bench.bench import utils
from flashinfer_bench.bench.evaluators import default
from flashinfer_bench.bench.runner.persistent_runner import PersistentSubprocessWorker
from flashinfer_bench.bench.timing import _clone_args
from harness import cli
from harness.core.errors import CannotRun
from harness.judging import calling, memory, run, selection, workers
from harness.operators.catalogue import FP8_MOE, FULL, definition
from harness.operators.workloads import recorded

H200, H100 = 150_000_000_000, 84_000_000_000  # bytes that are free on an idle one, about
LARGE = [key for key in FP8_MOE if key in FULL]


def todo(geometry):
    return [(f"T={w.axes['seq_len']}", w) for w in recorded(geometry)]


def test_weights_are_counted_as_the_models_have_them():
    """384 experts of 3 x 2048 x 7168 bytes, and a thousandth of that for their scales."""
    assert memory.input_bytes(definition("kimi-k2-ep1"), 0) == pytest.approx(384 * 3 * 2048 * 7168, rel=2e-3)
    assert memory.draw_bytes(definition("kimi-k2-ep1"), 8192) == 5 * 384 * 4096 * 7168


@pytest.mark.parametrize("geometry", ["small", "small-one-group", "small-renorm"])
def test_inputs_are_counted_as_fib_makes_them(geometry):
    full = definition(geometry)
    workload = next(w for w in recorded(geometry) if w.axes["seq_len"] > 30)
    shapes = dict(zip(full.inputs, full.get_input_shapes(workload.axes), strict=True))
    dtypes = dict(zip(full.inputs, full.torch_input_dtypes, strict=True))
    stored = {name: torch.zeros(shape, dtype=dtypes[name]) for name, shape in shapes.items() if shape is not None}
    made = [x for x in calling.seeded_inputs(full, workload, 1, "cpu", stored)[0] if isinstance(x, torch.Tensor)]
    assert memory.input_bytes(full, workload.axes["seq_len"]) == sum(x.nbytes for x in made)


def test_fib_allocates_what_is_counted():
    """A user would miss: a release of FIB that holds more or fewer copies than evaluation/memory.py says."""
    assert default.gen_inputs is utils.gen_inputs  # of all trials, before the first solution runs
    given = torch.zeros(1)
    assert _clone_args([given])[0] is not given  # once for each timed call
    assert BenchmarkConfig().profile_baseline and BenchmarkConfig().num_trials == 3


@pytest.mark.parametrize("geometry", LARGE)
def test_more_trials_and_solutions_need_more(geometry):
    at = [memory.needs(geometry, 8192, trials, 2) for trials in (1, 2, 3)]
    assert at[0].kept < at[1].kept < at[2].kept and at[0].renewed < at[1].renewed < at[2].renewed
    assert all(each.renewed < each.kept for each in at)
    assert memory.needs(geometry, 8192, 3, 1).renewed <= at[2].renewed


@pytest.mark.parametrize(
    ("geometry", "trials", "solutions", "free", "fits", "keeps"),
    [
        ("full", 3, 6, H100, True, True),
        ("deepseek-v3-ep1", 3, 2, H200, True, False),
        ("deepseek-v3-ep1", 2, 2, H200, True, True),
        ("deepseek-v3-ep1", 3, 2, H100, False, None),
        ("kimi-k2-ep1", 3, 2, H200, False, None),
        ("kimi-k2-ep1", 2, 2, H200, True, False),
        ("kimi-k2-ep1", 1, 2, H200, True, True),
        ("qwen3-next", 3, 6, H100, True, True),
    ],
)
def test_what_fits_where(geometry, trials, solutions, free, fits, keeps):
    how = geometry, trials, solutions
    if not fits:
        with pytest.raises(CannotRun, match="no workload fits on this GPU: T=1: SKIPPED: needs .* --num-trials"):
            memory.fitting(todo(geometry), free, *how)
        return
    wanted, skipped = memory.fitting(todo(geometry), free, *how)
    assert len(wanted) == len(recorded(geometry)) and not skipped
    assert memory.keeps_worker(wanted, free, *how) is keeps


def test_only_what_does_not_fit_is_skipped():
    between = memory.needs("full", 901, 3).renewed
    wanted, skipped = memory.fitting(todo("full"), between, "full", 3, 2)
    assert max(w.axes["seq_len"] for _, w in wanted) == 901 and len(wanted) == 17
    assert skipped[0].startswith("T=11948: SKIPPED: needs ")


def test_a_small_gpu_is_told_what_is_needed():
    text = memory.refusal(1, 20_000_000_000, "kimi-k2-ep1", 3, 4)
    assert text.endswith("20.0 GB are free; with one trial and one solution 69.9 GB"), text


def test_device_memory_is_given_back_after_draws_and_the_reference(monkeypatch):
    """A user would miss: 45 GB that hold nothing while a worker is out of memory."""
    given_back, kept = [], (utils._rand_tensor, PersistentSubprocessWorker.run_ref)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given_back.append(1))
    monkeypatch.setattr(workers, "PersistentRunner", lambda log_dir: type("", (), {"close": lambda self: None})())
    with workers.running(""):
        utils._rand_tensor((2,), torch.float8_e4m3fn, torch.device("cpu"))
        assert len(given_back) == 1 and PersistentSubprocessWorker.run_ref.__wrapped__.__wrapped__ is kept[1]
    assert (utils._rand_tensor, PersistentSubprocessWorker.run_ref) == kept


def test_without_one_worker_for_all_each_workload_gets_one(monkeypatch):
    began = []

    class Runner:
        def __init__(self, log_dir):
            began.append(log_dir)

        def run_workload(self, *_):
            raise RuntimeError("nothing is run")

        def close(self):
            began.append("ended")

    monkeypatch.setattr(workers, "PersistentRunner", Runner)
    config = run.BenchmarkConfig(log_dir="x")
    with run.judging("small", {}, None, config, "cuda:0", "", keep_worker=False) as judge:
        assert judge("a", None).error and judge("b", None).error
    assert began == ["x", "ended"] * 2
    with run.judging("small", {}, None, config, "cuda:0", "") as judge:
        judge("a", None), judge("b", None)
    assert began[4:] == ["x", "ended"]


@pytest.mark.gpu
@pytest.mark.parametrize("geometry", ["qwen3-30b", "minimax-m2"])
def test_a_run_takes_what_is_said(geometry, tmp_path):
    """The count, against what the device loses while three trials of two workloads are run."""
    used, done, before = [0], Event(), memory.free()

    def watch():
        while not done.is_set():
            used[0] = max(used[0], before - memory.free())
            time.sleep(0.002)

    names = [name for name in ("triton_fused_v2", "hopper_fused") if geometry in selection.pack.pack(name)]
    thread = Thread(target=watch)
    thread.start()
    try:
        few = ["--warmup-runs", "1", "--iterations", "2", "--workloads", "256", "4096", "--no-save"]
        assert cli.main(["run", "--definition", geometry, "--solutions", *names, *few]) == 0
    finally:
        done.set()
        thread.join()
    said = memory.needs(geometry, 4096, 3, len(names)).kept
    assert 0.5 * said < used[0] < 1.02 * said, f"{used[0] / 1e9:.1f} GB were taken, {said / 1e9:.1f} are said"
