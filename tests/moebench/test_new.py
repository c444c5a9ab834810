"""moebench new: what it writes runs and passes as it is, and a name that cannot be is refused."""

import shutil
import subprocess
import sys

import judged
import pytest
from moebench import cli
from moebench.commands import new
from moebench.core import paths
from moebench.operators import catalogue
from moebench.operators.moe_fp8_block_scale import cases
from moebench.packing import eligibility, manifest, pack

SLOW = pytest.mark.slow


@pytest.fixture
def solutions(tmp_path, monkeypatch):
    """A solutions folder with some of ours and the shared stages."""
    folder = tmp_path / "solutions"
    for name in ("torch_moe", "triton_fused_v2", "hopper_fused", "common"):
        shutil.copytree(
            paths.SOLUTIONS / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
        )
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
    packed = pack.pack("mine")
    assert list(packed) == ["full", "small"] and packed["full"].name == "mine"
    for hardware in ("cpu", "sm_90", "sm_100"):
        assert eligibility.why_skipped(packed["small"], hardware) is None
    found = judged.outcomes({"mine": packed["small"]}, workloads, tolerance, timeout_seconds=300)
    assert len(found) == len(workloads or cases("small")) and all(
        outcome.passed for outcome in found
    )


OTHERS = ["small-one-group", "small-renorm"]


@pytest.mark.parametrize(
    ("start", "small", "workloads"),
    [
        *(("torch", small, ["one-token", "no-tokens"]) for small in OTHERS),
        *(pytest.param("torch", small, [], marks=SLOW) for small in OTHERS),
        *(
            pytest.param("triton", small, ["one-token", "no-tokens", "harsh-scales"], marks=SLOW)
            for small in OTHERS
        ),
    ],
)
def test_a_start_passes_for_every_routing(solutions, start, small, workloads):
    """A user would miss: a start of Qwen3's layer, whose inputs are others, that runs as it is."""
    served = [key for key in catalogue.FP8_MOE if catalogue.small_like(key) == small]
    assert (
        cli.main(
            [
                "new",
                "mine",
                "--from",
                start,
                "--definition",
                *map(catalogue.definition_name, served),
            ]
        )
        == 0
    )
    packed = pack.pack("mine")
    assert list(packed) == served and packed[served[0]].name == "mine"
    found = judged.outcomes({"mine": packed[small]}, workloads, geometry=small, timeout_seconds=300)
    assert all(outcome.passed for outcome in found)


@pytest.mark.parametrize(
    ("args", "definitions"),
    [
        (["--definition", "kimi-k2-ep8"], ["kimi-k2-ep8", "small-one-group"]),
        (["--definition", "qwen3-30b", "qwen3-next"], ["qwen3-30b", "qwen3-next", "small-renorm"]),
        (["--from", "hopper_fused", "--definition", "glm-5-ep8"], ["glm-5-ep8", "small-one-group"]),
        ([], ["full", "small"]),
    ],
)
def test_it_serves_what_is_asked_for_and_the_small_one(solutions, args, definitions):
    assert cli.main(["new", "mine", *args]) == 0
    assert manifest.read_manifest("mine").definitions == definitions


def test_a_copy_has_the_folders_below_and_differs_in_its_name_alone(solutions):
    """A user would miss: a copy of hopper_fused whose headers stayed behind."""
    assert cli.main(["new", "mine", "--from", "hopper_fused"]) == 0
    copy, original = (pack.pack(name) for name in ("mine", "hopper_fused"))
    assert any("/" in source.path for source in original["full"].sources)
    assert {key: packed.sources for key, packed in copy.items()} == {
        k: p.sources for k, p in original.items()
    }
    ours, theirs = (manifest.read_manifest(name) for name in ("mine", "hopper_fused"))
    assert ours == theirs.model_copy(update={"name": "mine", "facts": {}, "start": None})


@pytest.mark.parametrize("start", ["torch", "triton"])
def test_it_is_formatted_and_no_start_of_its_own(solutions, start):
    """A user would miss: a start that `make lint` refuses."""
    assert cli.main(["new", "mine", "--from", start]) == 0 and start in new.starts()
    read = manifest.read_manifest("mine")
    assert read.start is None and not read.facts and new.starts().get(start) != solutions / "mine"
    for check in (["check"], ["format", "--check"]):
        ruff = [
            sys.executable,
            "-m",
            "ruff",
            *check,
            "--config",
            paths.ROOT / "pyproject.toml",
            solutions / "mine",
        ]
        assert subprocess.run(ruff, capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["Mine"], "NAME: got 'Mine'"),
        (["my-own"], "NAME: got 'my-own'"),
        (["../mine"], "NAME: got '../mine'"),
        (["hopper_fused"], "solutions/hopper_fused/"),
        (["packed"], "solutions/packed/"),
        (["mine", "--definition", "qwen3-30"], "qwen3-30b?"),
        (["mine", "--definition", "mxfp8"], "--definition: got mxfp8"),
        (["mine", "--from", "hoper_fused"], "hopper_fused?"),
        (["mine", "--from", "x"], "torch, triton, hopper_fused, torch_moe, triton_fused_v2"),
    ],
)
def test_bad_names_get_one_line_and_nothing_is_written(solutions, capsys, args, named):
    before = sorted(solutions.iterdir())
    assert cli.main(["new", *args]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line and sorted(solutions.iterdir()) == before
