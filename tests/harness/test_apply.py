"""FIB's runtime substitution serves from this repository: the best recorded solution, and the right result."""

import json
import math
import os
import re
import shutil
import subprocess
import sys

import plain_solution
import pytest
import torch
from flashinfer_bench import (
    ApplyConfig,
    Correctness,
    Environment,
    Evaluation,
    Performance,
    Trace,
    TraceSet,
    Workload,
    apply,
)
from flashinfer_bench.apply import ApplyConfigRegistry, ApplyRuntime, get_default_registry
from flashinfer_bench.apply.key import ApplyKey
from flashinfer_bench.apply.table import ApplyTable
from flashinfer_bench.compile import Runnable
from flashinfer_bench.data import load_jsonl_file
from flashinfer_bench.integration import flashinfer as integration
from harness import cli
from harness.commands import apply as command
from harness.core import paths
from harness.judging.sweep import random_inputs
from harness.operators import catalogue
from harness.packing import pack

from definitions.moe_fp8_block_scale import definition, definition_name

FULL, SMALL = definition_name("full"), definition_name("small")
DOC = (paths.ROOT / "docs" / "apply.md").read_text()

# One call in a process of its own, as a serving engine makes it; prints the solutions that FIB really called.
CALL = """
import json
from harness.commands import apply as command
from harness.judging.sweep import random_inputs
from flashinfer_bench import apply
from flashinfer_bench.apply import get_default_registry
from flashinfer_bench.compile import Runnable
from definitions.moe_fp8_block_scale import definition

called, plain = [], Runnable.call_value_returning
def noting(self, *args):
    called.append(self.metadata.solution_name)
    return plain(self, *args)
Runnable.call_value_returning = noting
layer = definition({geometry!r})
get_default_registry().register(layer.name, command.CONFIG, override=True)
for tokens in {tokens!r}:
    inputs = random_inputs(layer, tokens, {device!r})
    apply(layer.name, args=tuple(inputs), fallback=lambda *args: called.append("the fallback"))
print(json.dumps(called))
"""


def call_in_process_of_its_own(root, cache, tokens, geometry="small"):
    """The solutions that FIB calls at these token counts with root as data set."""
    code = CALL.format(geometry=geometry, tokens=tokens, device="cpu" if geometry == "small" else "cuda:0")
    env = os.environ | {"FIB_ENABLE_APPLY": "1", "FIB_DATASET_PATH": str(root), "FIB_CACHE_PATH": str(cache)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def serving(tmp_path, monkeypatch):
    """Settings as FIB finds them at the first call of apply in a process: serving(root), serving(root, enable="0")."""
    registry = get_default_registry()
    monkeypatch.setattr(registry, "per_definition", dict(registry.per_definition))
    # it changes functions of flashinfer for the rest of the process
    monkeypatch.setattr(integration, "install_flashinfer_integrations", lambda: None)

    def settings(root, enable="1"):
        monkeypatch.setattr(ApplyRuntime, "_stack", [])
        monkeypatch.setattr(ApplyRuntime, "_env_initialized", False)
        values = {"FIB_ENABLE_APPLY": enable, "FIB_DATASET_PATH": root, "FIB_CACHE_PATH": tmp_path / "cache"}
        for name, value in values.items():
            monkeypatch.setenv(name, str(value))

    return settings


@pytest.fixture
def call(serving, monkeypatch):
    """The solutions that FIB calls at these token counts with root as data set; config: FIB's own without one."""
    called, plain = [], Runnable.call_value_returning

    def noting(self, *args):
        called.append(self.metadata.solution_name)
        return plain(self, *args)

    monkeypatch.setattr(Runnable, "call_value_returning", noting)

    def calls(root, tokens, config=command.CONFIG):
        called.clear()
        serving(root)
        if config:
            get_default_registry().register(SMALL, config, override=True)
        layer = definition("small")
        for count in tokens:
            inputs = random_inputs(layer, count, "cpu")
            apply(layer.name, args=tuple(inputs), fallback=lambda *args: called.append("the fallback"))
        return list(called)

    return calls


@pytest.fixture
def run_command(serving, capsys, no_gpu):
    """moebench apply on the CPU with root as data set: (exit status, output, errors)."""

    def run(root, *tokens, enable="1"):
        serving(root, enable)
        status = cli.main(["apply", *map(str, tokens)])
        return status, *capsys.readouterr()

    return run


def trace(solution, tokens, speedup, status="PASSED", hardware="A GPU", **libs):
    passed = status == "PASSED"
    ev = Evaluation(
        status=status,
        environment=Environment(hardware=hardware, libs={"tolerance": "contest: x", "solution_sha1": "now"} | libs),
        timestamp="2026-01-01",
        correctness=Correctness(max_absolute_error=1024.0, max_relative_error=900.0),
        performance=Performance(latency_ms=1, speedup_factor=speedup, reference_latency_ms=1) if passed else None,
    )
    inputs = {name: {"type": "random"} for name in definition("small").inputs}
    workload = Workload(axes={"seq_len": tokens}, inputs=inputs, uuid=f"T={tokens}")
    return Trace(definition=SMALL, workload=workload, solution=solution, evaluation=ev)


def record(root, traces):
    path = paths.trace_file(SMALL, root)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{t.model_dump_json()}\n" for t in traces))


@pytest.fixture
def data_set(tmp_path):
    """A data set in which `few` is fastest at T = 1, `many` at T = 7 and 9; both compute the reference."""
    root = tmp_path / "data"
    target = paths.definition_file(SMALL, root)
    target.parent.mkdir(parents=True)
    shutil.copy(paths.definition_file(SMALL), target)
    for name in ("few", "many"):
        packed = plain_solution.solution(tmp_path / "sources", plain_solution.RIGHT, name)
        pack.write(packed.model_copy(update={"name": name}), root / "solutions" / f"{name}.json")
    fast = [trace("few", 1, 9.0), trace("many", 7, 9.0), trace("many", 9, 9.0)]
    slow = [trace("many", 1, 3.0), trace("few", 7, 3.0), trace("few", 9, 30.0, status="INCORRECT_NUMERICAL")]
    record(root, slow + fast)
    return root


@pytest.mark.parametrize("geometry", ["small-one-group", "small-renorm"])
def test_every_routing_is_called_with_its_inputs(geometry, tmp_path, serving, no_gpu, capsys):
    """A user would miss: the first definition's bias, offset and factor in another one's call."""
    layer, root = catalogue.definition(geometry), tmp_path / "data"
    paths.definition_file(layer.name, root).parent.mkdir(parents=True)
    shutil.copy(paths.definition_file(layer.name), paths.definition_file(layer.name, root))
    pack.pack_into(["triton_fused_v2"], root, [geometry])
    (name,) = (path.stem for path in (root / "solutions").rglob("*.json"))
    measured = trace(name, 2, 9.0).model_copy(update={"definition": layer.name})
    path = paths.trace_file(layer.name, root)
    path.parent.mkdir(parents=True)
    path.write_text(f"{measured.model_dump_json()}\n")
    serving(root)
    assert cli.main(["apply", "2", "--definition", layer.name]) == 0
    shown = capsys.readouterr().out
    assert name in shown and "right" in shown


def accepting(name):
    config = ApplyConfig(max_atol=math.inf, max_rtol=math.inf, aot_ratio=0)
    return ApplyConfigRegistry(per_definition={name: config})


def recorded_best():
    """Token count -> (speed-up, solution) of the fastest recorded trace that passed, by reading the traces."""
    best = {}
    for recorded in load_jsonl_file(Trace, paths.trace_file(FULL)):
        if recorded.is_successful():
            speedup, length = recorded.evaluation.performance.speedup_factor, recorded.workload.axes["seq_len"]
            best[length] = max(best.get(length, (0, "")), (speedup, recorded.solution))
    return best


def test_the_table_of_the_recorded_traces_holds_the_fastest_that_passed():
    """A user would miss: a slower solution served at a T where a faster one is on record."""
    trace_set = TraceSet.from_path(str(paths.ROOT))
    table = ApplyTable.load_or_build(trace_set, accepting(FULL))
    best = recorded_best()
    assert len(best) == 19
    for length, (_, solution) in best.items():
        assert table.match_solution(FULL, ApplyKey(axes=(("seq_len", length),))) == solution


def test_it_lists_the_choices_without_a_gpu(run_command):
    """Packed solutions are there (make pack); nothing is built, which would need nvcc."""
    pack.pack_here([])
    status, out, err = run_command(paths.ROOT)
    assert status == 0, err
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if "│" in line]
    best = recorded_best()
    assert {row[0]: row[1:3] for row in rows[:-1]} == {str(t): [name, f"{s:.1f}x"] for t, (s, name) in best.items()}
    assert rows[-1][0] == "other" and rows[-1][1] in {name for _, name in best.values()}


def test_fibs_own_limits_reject_every_recorded_trace():
    """Why docs/apply.md sets them; when this fails, FIB or the traces have changed and the page must follow."""
    trace_set = TraceSet.from_path(str(paths.ROOT))
    registry = ApplyConfigRegistry(per_definition={FULL: ApplyConfig(aot_ratio=0)})
    assert trace_set.traces[FULL] and not ApplyTable.load_or_build(trace_set, registry).index


def test_a_call_runs_the_best_recorded_solution_for_its_token_count(data_set, tmp_path):
    """At T = 3, never recorded, the winner at most token counts; a failed trace wins nowhere."""
    assert call_in_process_of_its_own(data_set, tmp_path / "cache", [1, 7, 9, 3]) == ["few", "many", "many", "many"]


def test_without_the_documented_settings_every_call_falls_back(data_set, call):
    assert call(data_set, [1, 7], config=None) == ["the fallback"] * 2


def from_page(pattern, **names):
    """What the only match in docs/apply.md defines when it is run with these names."""
    (source,) = re.findall(pattern, DOC, re.M)
    exec(source, names)
    return names


def test_the_documented_settings_are_enough(data_set, call):
    config = from_page(r"^config = ApplyConfig\(.*\)$", ApplyConfig=ApplyConfig, math=math)["config"]
    assert config == command.CONFIG
    assert call(data_set, [1, 7], config) == ["few", "many"]


def test_new_traces_change_the_choice_in_spite_of_the_cache(data_set, call):
    assert call(data_set, [1]) == ["few"]
    record(data_set, [trace("few", 1, 2.0), trace("many", 1, 3.0)])
    assert call(data_set, [1]) == ["many"]


def test_it_shows_the_choice_and_a_right_result(data_set, run_command):
    status, out, err = run_command(data_set, 1, 7, 3)
    assert status == 0, out + err
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if "│" in line]
    assert [row[:3] + row[4:] for row in rows] == [
        ["1", "few", "fastest recorded at this T", "right"],
        ["7", "many", "fastest recorded at this T", "right"],
        ["3", "many", "fastest at most of the recorded T", "right"],
    ]


def edit(data_set, name, text):
    """Replace the source of a packed solution."""
    path = data_set / "solutions" / f"{name}.json"
    solution = json.loads(path.read_text())
    solution["sources"][0]["content"] = text
    path.write_text(json.dumps(solution))


def test_it_notices_a_wrong_result(data_set, run_command):
    edit(data_set, "few", plain_solution.source("output.fill_(7)"))
    status, out, _ = run_command(data_set, 1)
    assert status == 1 and "WRONG" in out


def test_the_documented_choice_of_traces_works(data_set, monkeypatch):
    """docs/apply.md: of this machine, one tolerance and the present source only."""
    data = TraceSet.from_path(str(data_set))
    now = {name: data.get_solution(name).hash() for name in ("few", "many")}
    fitting = trace("few", 1, 1.0, solution_sha1=now["few"], tolerance="relaxed: x")
    others = [
        trace("many", 1, 5.0, solution_sha1="old", tolerance="relaxed: x"),
        trace("many", 1, 6.0, solution_sha1=now["many"], tolerance="relaxed: x", hardware="Another GPU"),
        trace("many", 1, 7.0, solution_sha1=now["many"], tolerance="contest: x"),
        trace("gone", 1, 8.0, solution_sha1="now", tolerance="relaxed: x"),
    ]
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A GPU")
    fits = from_page(r"^def fits(?s:.*?)\n    \)$", data=data, torch=torch)["fits"]
    assert [fits(one) for one in [fitting, *others]] == [True, False, False, False, False]


@pytest.mark.parametrize(
    ("root", "enable", "said"),
    [
        (paths.ROOT, "0", "apply is off: set FIB_ENABLE_APPLY=1"),
        ("/nowhere", "1", "not a FlashInfer-Trace data set"),
    ],
)
def test_missing_settings_get_one_line(run_command, root, enable, said):
    status, _, err = run_command(root, 1, enable=enable)
    assert status == 2 and said in err and err.count("\n") == 1


def test_a_solution_that_does_not_build_is_reported_in_a_line(data_set, run_command):
    edit(data_set, "few", "import no_such_module\n")
    status, _, err = run_command(data_set, 1)
    assert status == 1 and err.count("\n") == 1
    assert "a chosen solution does not build here: " in err and "no_such_module" in err


def test_a_broken_trace_file_is_reported_in_a_line(data_set, run_command):
    paths.trace_file(SMALL, data_set).write_text("{}\n")
    status, _, err = run_command(data_set, 1)
    assert status == 2 and "FIB cannot read it: " in err and err.count("\n") == 1


def test_a_data_set_without_packed_solutions_says_how_to_pack(data_set, run_command):
    shutil.rmtree(data_set / "solutions")
    status, _, err = run_command(data_set, 1)
    assert status == 1 and "run `make pack`" in err


@pytest.mark.parametrize("tokens", [[], [1]])
def test_nothing_that_passed_is_no_result(data_set, run_command, tokens, monkeypatch):
    """A user would miss: the reference compared with itself and called right."""
    record(data_set, [trace("few", 1, 9.0, status="INCORRECT_NUMERICAL"), trace("gone", 1, 9.0)])
    monkeypatch.setattr(command, "definition", lambda geometry: definition("small"))
    status, out, err = run_command(data_set, *tokens)
    assert (status, out) == (1, "") and "no packed solution has a trace that passed" in err and err.count("\n") == 1


@pytest.mark.gpu
def test_this_repository_serves_the_full_layer(tmp_path):
    """FIB_ENABLE_APPLY=1 and this repository: the recorded winner is what runs, and its result is the reference's."""
    recorded = [t for t in load_jsonl_file(Trace, paths.trace_file(FULL)) if t.is_successful()]
    if {t.evaluation.environment.hardware for t in recorded} != {torch.cuda.get_device_name()}:
        pytest.skip("the traces are of another GPU, and apply does not look at that")
    pack.pack_here([])
    tokens = [1, 57, 901]
    best = recorded_best()
    assert call_in_process_of_its_own(paths.ROOT, tmp_path, tokens, "full") == [best[length][1] for length in tokens]

    env = os.environ | {"FIB_ENABLE_APPLY": "1", "FIB_DATASET_PATH": str(paths.ROOT), "FIB_CACHE_PATH": str(tmp_path)}
    line = [sys.executable, "-m", "harness", "apply", *map(str, [*tokens, 100])]
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("right") == 4 and "the fallback" not in done.stdout
