"""moebench new: what it writes runs and passes as it is, and a name that cannot be is refused."""

import shlex
import shutil
import subprocess
import sys

import judged
import pytest
from every_solution import slow
from moebench import cli
from moebench.commands import new
from moebench.core import paths
from moebench.operators import catalogue
from moebench.packing import eligibility, manifest, pack

AUTHOR = "A. N. Author"
HARDEST = ["none-local", "no-tokens", "one-expert-takes-all", "harsh-scales-one-token"]
FEW = ["one-token", "no-tokens"]


@pytest.fixture
def solutions(tmp_path, monkeypatch):
    """A solutions folder with some of ours and the shared stages."""
    folder = tmp_path / "solutions"
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("torch_moe", "triton_fused_v2", "hopper_fused", "common"):
        shutil.copytree(paths.SOLUTIONS / name, folder / name, ignore=ignored)
    monkeypatch.setattr(paths, "SOLUTIONS", folder)
    monkeypatch.setattr(new, "default_author", lambda: AUTHOR)
    return folder


def passes(packed, workloads, layer_key="small", tolerance="relaxed"):
    """Return whether each of these workloads passes."""
    mine = {"mine": packed[layer_key]}
    outcomes = judged.outcomes(
        mine, workloads, tolerance, layer_key=layer_key, timeout_seconds=300
    )
    return [outcome.passed for outcome in outcomes]


@pytest.mark.parametrize(
    ("start", "tolerance"), [("torch", "default"), ("triton", "relaxed")]
)
def test_a_new_solution_passes(solutions, start, tolerance):
    assert cli.main(["new", "mine", "--from", start]) == 0

    packed = pack.pack("mine")
    assert list(packed) == ["full", "small"]
    assert packed["full"].name == "mine"
    for hardware in ("cpu", "sm_90", "sm_100"):
        assert eligibility.why_skipped(packed["small"], hardware) is None
    assert passes(packed, HARDEST, tolerance=tolerance) == [True] * len(HARDEST)


@pytest.mark.parametrize("small", ["small-one-group", "small-renorm"])
@pytest.mark.parametrize("start", ["torch", slow("triton")])
def test_a_start_passes_for_every_routing(solutions, start, small):
    served = [key for key in catalogue.fp8_moe() if catalogue.small_like(key) == small]
    names = map(catalogue.definition_name, served)
    assert cli.main(["new", "mine", "--from", start, "--definition", *names]) == 0

    packed = pack.pack("mine")
    assert list(packed) == served
    assert packed[served[0]].name == "mine"
    assert passes(packed, FEW, small) == [True, True]


@pytest.mark.parametrize(
    ("args", "definitions"),
    [
        (["--definition", "kimi-k2-ep8"], ["kimi-k2-ep8", "small-one-group"]),
        (
            ["--definition", "qwen3-30b", "qwen3-next"],
            ["qwen3-30b", "qwen3-next", "small-renorm"],
        ),
        (
            ["--from", "hopper_fused", "--definition", "glm-5-ep8"],
            ["glm-5-ep8", "small-one-group"],
        ),
        ([], ["full", "small"]),
    ],
)
def test_it_serves_what_is_asked_for_and_the_small_one(solutions, args, definitions):
    assert cli.main(["new", "mine", *args]) == 0
    assert manifest.read_manifest("mine").definitions == definitions


def test_a_copy_has_the_folders_below_and_no_facts_of_the_original(solutions):
    (solutions / "hopper_fused" / "NOTES.md").write_text("what was tried")
    assert cli.main(["new", "mine", "--from", "hopper_fused"]) == 0

    copy = pack.pack("mine")
    original = pack.pack("hopper_fused")
    assert any("/" in source.path for source in original["full"].sources)
    assert list(copy) == list(original)
    for key, packed in copy.items():
        assert packed.sources == original[key].sources
    assert not (solutions / "mine" / "NOTES.md").exists()

    changes = {"name": "mine", "author": AUTHOR, "facts": {}, "start": None}
    expected = manifest.read_manifest("hopper_fused").model_copy(update=changes)
    assert manifest.read_manifest("mine") == expected


@pytest.mark.parametrize("start", ["torch", "triton"])
def test_it_is_formatted_and_no_start_of_its_own(solutions, start):
    assert cli.main(["new", "mine", "--from", start]) == 0

    read = manifest.read_manifest("mine")
    assert read.start is None
    assert not read.facts
    assert new.starts()[start] != solutions / "mine"

    config = ["--config", paths.ROOT / "pyproject.toml"]
    for check in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *check, *config, solutions / "mine"]
        assert subprocess.run(command, capture_output=True).returncode == 0


REFUSED = {
    "Mine": "NAME: got 'Mine'",
    "my-own": "NAME: got 'my-own'",
    "../mine": "NAME: got '../mine'",
    "hopper_fused": "solutions/hopper_fused/",
    "packed": "solutions/packed/",
    "mine --author a/b": "--author: got 'a/b'",
    "mine --author ' '": "--author: got ''",
    "mine --definition qwen3-30": "qwen3-30b?",
    "mine --definition mxfp8": "--definition: got mxfp8",
    "mine --from hoper_fused": "hopper_fused?",
    "mine --from x": "torch, triton, hopper_fused, torch_moe, triton_fused_v2",
}
TAKEN = "run data torch triton json test random class match flashinfer_bench tvm_ffi pip moebench"
REFUSED |= {name: f"NAME: got {name!r}" for name in [*TAKEN.split(), "definitions"]}


@pytest.mark.parametrize("arguments", REFUSED)
def test_bad_names_get_one_line_and_nothing_is_written(solutions, refusal, arguments):
    before = sorted(solutions.iterdir())
    status, line = refusal("new", *shlex.split(arguments))
    assert status == 2
    assert REFUSED[arguments] in line
    assert sorted(solutions.iterdir()) == before


@pytest.mark.parametrize("author", ["Zoë O'Neil", 'the "quick" team'])
def test_the_author_is_the_users(solutions, author):
    assert cli.main(["new", "mine", "--author", author]) == 0
    assert manifest.read_manifest("mine").author == author
    assert pack.pack("mine")["small"].author == author


def test_the_author_is_gits_by_default(tmp_path, monkeypatch):
    config = tmp_path / "gitconfig"
    config.write_text("[user]\n    name = Somebody Else\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.chdir(tmp_path)
    assert new.default_author() == "Somebody Else"

    monkeypatch.setenv("PATH", str(tmp_path))  # where there is no git
    monkeypatch.setenv("LOGNAME", "login")
    assert new.default_author() == "login"


def test_what_is_interrupted_leaves_nothing(solutions, monkeypatch):
    before = sorted(solutions.iterdir())
    write = new.write_atomically

    def interrupted(path, content):
        write(path, content)
        raise KeyboardInterrupt

    monkeypatch.setattr(new, "write_atomically", interrupted)
    assert cli.main(["new", "mine"]) == 130
    assert sorted(solutions.iterdir()) == before
