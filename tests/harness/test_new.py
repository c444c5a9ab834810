"""moebench new: what it writes runs and passes as it is, and a name that cannot be is refused."""

import shutil
import subprocess
import sys

import pytest
from flashinfer_bench import EvaluationStatus
from harness import cli
from harness.commands import new
from harness.core import paths
from harness.judging import cpu_judge, run
from harness.judging.tolerances import TOLERANCES
from harness.operators import catalogue
from harness.operators.moe_fp8_block_scale import cases
from harness.packing import eligibility, manifest, pack
from harness.report.blocks import solutions as solutions_block
from harness.results.comparison import Comparison

from definitions.moe_fp8_block_scale import definition

SLOW = pytest.mark.slow


@pytest.fixture
def solutions(tmp_path, monkeypatch):
    """A solutions folder with two of ours and the shared stages."""
    folder = tmp_path / "solutions"
    for name in ("triton_fused_v2", "hopper_fused", "kernels"):
        shutil.copytree(paths.SOLUTIONS / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(paths, "SOLUTIONS", folder)
    return folder


HARDEST = ["none-local", "no-tokens", "harsh-scales-one-token"]


@pytest.mark.parametrize(
    ("start", "tolerance", "workloads"),
    [
        ("torch", "default", HARDEST),
        ("triton", "relaxed", HARDEST),
        pytest.param("torch", "default", [], marks=SLOW),
        pytest.param("triton", "relaxed", [], marks=SLOW),
    ],
)
def test_a_new_solution_passes(solutions, start, tolerance, workloads, capsys):
    """A user would miss: a start that has to be repaired first."""
    assert cli.main(["new", "mine", "--from", start]) == 0
    assert capsys.readouterr().out.endswith("Next: moebench run --solutions mine\n")
    packed = pack.pack("mine")
    assert list(packed) == ["full", "small"] and packed["full"].name == "mine"
    for hardware in ("cpu", "sm_90", "sm_100"):
        assert eligibility.why_skipped(packed["small"], hardware) is None
    todo = run.load_workloads("small", workloads)
    assert len(todo) == len(workloads or cases("small"))
    for label, workload in todo:
        settings = TOLERANCES[tolerance].config(num_trials=1, timeout_seconds=300), paths.ROOT
        (found,) = cpu_judge.run_workload(definition("small"), workload, [packed["small"]], *settings).values()
        assert found.status == EvaluationStatus.PASSED, f"{label}: {found.log}"


OTHERS = ["small-one-group", "small-renorm"]


@pytest.mark.parametrize(
    ("start", "small", "workloads"),
    [
        *(("torch", small, ["one-token", "no-tokens"]) for small in OTHERS),
        *(pytest.param("torch", small, [], marks=SLOW) for small in OTHERS),
        *(pytest.param("triton", small, ["one-token", "no-tokens", "harsh-scales"], marks=SLOW) for small in OTHERS),
    ],
)
def test_a_start_passes_for_every_routing(solutions, start, small, workloads):
    """A user would miss: a start of Qwen3's layer, whose inputs are others, that runs as it is."""
    served = [key for key in catalogue.FP8_MOE if catalogue.small_like(key) == small]
    assert cli.main(["new", "mine", "--from", start, "--definition", *map(catalogue.definition_name, served)]) == 0
    packed = pack.pack("mine")
    assert list(packed) == served and packed[served[0]].name == "mine"
    full = catalogue.definition(small)
    settings = TOLERANCES["relaxed"].config(num_trials=1, timeout_seconds=300), paths.ROOT
    for label, workload in run.load_workloads(small, workloads):
        (found,) = cpu_judge.run_workload(full, workload, [packed[small]], *settings).values()
        assert found.status == EvaluationStatus.PASSED, f"{label}: {found.log}"


@pytest.mark.parametrize(
    ("args", "definitions"),
    [
        (["--definition", "kimi-k2-ep8"], ["kimi-k2-ep8", "small-one-group"]),
        (["--definition", "qwen3-30b,qwen3-next"], ["qwen3-30b", "qwen3-next", "small-renorm"]),
        (["--from", "hopper_fused", "--definition", "glm-5-ep8"], ["glm-5-ep8", "small-one-group"]),
        ([], ["full", "small"]),
    ],
)
def test_it_serves_what_is_asked_for_and_the_small_one(solutions, args, definitions):
    assert cli.main(["new", "mine", *args]) == 0
    assert manifest.read_manifest("mine").definitions == definitions


def test_a_copy_has_the_folders_below(solutions):
    """A user would miss: a copy of hopper_fused whose headers stayed behind."""
    assert cli.main(["new", "mine", "--from", "hopper_fused"]) == 0
    copy, original = (pack.pack(name) for name in ("mine", "hopper_fused"))
    assert any("/" in source.path for source in original["full"].sources)
    assert {key: packed.sources for key, packed in copy.items()} == {k: p.sources for k, p in original.items()}


def test_the_backends_page_stays_up_to_date(solutions, monkeypatch):
    """A user would miss: tests that fail as soon as a solution is begun; that one is forgotten once it is measured."""
    cli.main(["new", "mine"])
    cli.main(["new", "copy", "--from", "triton_fused_v2"])
    table = solutions_block.block(Comparison([]))
    assert "`triton_fused_v2`" in table and "`mine`" not in table and "`copy`" not in table
    monkeypatch.setattr(solutions_block, "level_at", lambda _: {"mine": {"A GPU": [1]}})
    with pytest.raises(manifest.PackingError, match=r"mine: solution.toml: \[facts\]"):
        solutions_block.block(Comparison([]))


@pytest.mark.parametrize("start", new.STARTS)
def test_it_is_short_and_formatted(solutions, start):
    """A user would miss: a start that `make lint` refuses."""
    cli.main(["new", "mine", "--from", start])
    assert len((solutions / "mine" / "solution.toml").read_text().splitlines()) == 9
    text = (solutions / "mine" / "main.py").read_text()
    assert max(map(len, text.splitlines())) <= 120 and text.endswith(")\n")
    for check in (["check"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *check, "--config", paths.ROOT / "pyproject.toml", solutions / "mine"]
        assert subprocess.run(ruff, capture_output=True).returncode == 0


def test_a_copy_differs_in_its_name_alone(solutions):
    assert cli.main(["new", "mine", "--from", "triton_fused_v2"]) == 0
    copy, original = (pack.pack(name)["full"] for name in ("mine", "triton_fused_v2"))
    assert copy.sources == original.sources and copy.spec == original.spec and copy.name == "mine"
    ours, theirs = (manifest.read_manifest(name) for name in ("mine", "triton_fused_v2"))
    assert ours == theirs.model_copy(update={"name": "mine", "facts": None})


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["Mine"], "NAME: got 'Mine', want lower-case letters, digits and underscores, a letter first"),
        (["my-own"], "NAME: got 'my-own', want lower-case letters"),
        (["../mine"], "NAME: got '../mine', want lower-case letters"),
        (["hopper_fused"], "NAME: there is a solutions/hopper_fused/ already, want another name"),
        (["packed"], "NAME: there is a solutions/packed/ already"),
        (["mine", "--definition", "qwen3-30"], "unknown definition 'qwen3-30'; did you mean qwen3-30b?"),
        (["mine", "--definition", "mxfp8"], "--definition: got mxfp8, want an FP8 MoE layer, or --from a solution"),
        (["mine", "--from", "hoper_fused"], "--from: unknown solution 'hoper_fused'; did you mean hopper_fused?"),
        (
            ["mine", "--from", "x"],
            "--from: unknown solution 'x'; there are: torch, triton, hopper_fused, triton_fused_v2",
        ),
    ],
)
def test_bad_names_get_one_line_and_nothing_is_written(solutions, capsys, args, said):
    before = sorted(solutions.iterdir())
    assert cli.main(["new", *args]) == 2
    error = capsys.readouterr().err
    assert error.startswith(said) and error.count("\n") == 1
    assert sorted(solutions.iterdir()) == before
