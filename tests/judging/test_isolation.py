"""Solutions in processes of their own: messages to and from one, how a process ends, and the second
look at what FIB found.
"""

import json
import os
import socket
import struct
import time
from contextlib import closing
from types import SimpleNamespace

import judged
import psutil
import pytest
import torch
from flashinfer_bench import EvaluationStatus, Performance
from moebench.core import environment, paths
from moebench.core.printable import cut, printable
from moebench.judging.isolation import ask, processes
from moebench.judging.isolation.channel import Channel, kind_of
from moebench.judging.isolation.comparison import Finding
from moebench.judging.isolation.runner import IsolatedRunner
from moebench.judging.second_look import SecondLook
from moebench.judging.tolerances import TOLERANCES
from plain_solution import RIGHT, solution

from solutions.common.host.build_library import build_library

PASSED = EvaluationStatus.PASSED


# Messages


@pytest.fixture
def ends():
    """The two ends of a channel: the run's is `near`, the solution's process has `far`."""
    near, far = map(Channel, socket.socketpair())
    with closing(near), closing(far):
        yield near, far


TENSORS = {
    "bfloat16": torch.randn(3, 5).bfloat16(),
    "float8": torch.randn(4, 4).to(torch.float8_e4m3fn),
    "scalar": torch.tensor(3, dtype=torch.int32),
    "bool": torch.tensor([True, False]),
    "empty": torch.zeros(0, 512),
    "not contiguous": torch.randn(4, 6).t(),
}


def test_tensors_arrive_bit_by_bit(ends):
    near, far = ends
    near.send({"what": "tensors"}, list(TENSORS.values()))
    assert json.loads(far.receive()) == {"what": "tensors"}

    kinds = [kind_of(tensor) for tensor in TENSORS.values()]
    for sent, received in zip(
        TENSORS.values(), far.receive_tensors(kinds), strict=True
    ):
        assert kind_of(received) == kind_of(sent)
        assert torch.equal(as_bytes(received), as_bytes(sent))


def as_bytes(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def test_a_message_that_is_too_long_is_refused(ends):
    near, far = ends
    near.connection.sendall(struct.pack("<Q", 1 << 40))  # the length that comes first
    with pytest.raises(ValueError, match=str(1 << 40)):
        far.receive()


def test_a_message_is_waited_for_until_the_deadline_or_the_end_of_the_other_side(ends):
    near, far = ends
    near.connection.sendall(b"1234")  # half of a length
    far.deadline = time.monotonic() + 0.1
    with pytest.raises(TimeoutError):
        far.receive()
    near.close()
    far.deadline = None
    with pytest.raises(ConnectionError):
        far.receive()


MALFORMED_ANSWERS = {
    "no JSON": b"\xff{]",
    "no object": b"[]",
    "too deep": b"[" * 200_000,
    "no status": b"{}",
    "another status": b'{"status": "TIMEOUT"}',
    "outputs that are no list": b'{"status": "PASSED", "outputs": 3}',
    "too few outputs": b'{"status": "PASSED", "outputs": []}',
    "outputs that are nothing": b'{"status": "PASSED", "outputs": [null]}',
}


@pytest.mark.parametrize("name", MALFORMED_ANSWERS)
def test_a_malformed_answer_is_the_end_of_its_process(ends, name):
    """`Ended` it is, which is the solution's result: no other error, which would end the run."""
    near, far = ends
    process = object.__new__(processes.SolutionProcess)  # none is started
    process.channel = far
    process.deadline = time.monotonic() + 10
    text = MALFORMED_ANSWERS[name]
    near.connection.sendall(struct.pack("<Q", len(text)) + text)

    trial = ask.Trial([], [torch.zeros(2, 3)])
    full = SimpleNamespace(outputs={"output": None})
    with pytest.raises(processes.Ended):
        ask.call(process, full, "x", 0, trial)


@pytest.mark.parametrize(
    "times", ["null", "[]", "[1.0]", "[1.0, -1.0]", "[1.0, NaN]", '["1", "2"]']
)
def test_malformed_times_are_refused(times):
    """Other than two numbers above zero, where two were asked for."""
    with pytest.raises((processes.Ended, ValueError)):
        ask.mean_ms(answer_with(times), 2)
    assert ask.mean_ms(answer_with("[1.0, 3.0]"), 2) == 2.0


def answer_with(times):
    """Return the answer of a process that was asked for times."""
    text = f'{{"status": "PASSED", "milliseconds": {times}}}'
    return processes.Answer.model_validate_json(text)


def test_the_expected_output_is_never_sent(tmp_path, monkeypatch):
    sent = []
    send = Channel.send

    def note(self, message, tensors=()):
        sent.extend(tensors)
        send(self, message, tensors)

    monkeypatch.setattr(Channel, "send", note)
    assert judged.evaluated(solution(tmp_path, RIGHT)).passed
    kinds = {(tensor.dtype, tuple(tensor.shape)) for tensor in sent}
    assert (torch.float8_e4m3fn, (16, 512)) in kinds  # hidden_states
    assert (torch.bfloat16, (16, 512)) not in kinds  # the output


# Processes


def arguments(plan):
    """Return the arguments of run_workload and look_again for a plan of one task."""
    (task,) = plan
    (part,) = plan.parts.values()
    solutions = list(part.solutions.values())
    return part.definition, task.workload, solutions, plan.config, paths.ROOT


def test_closing_a_runner_ends_all_that_a_solution_has_started(tmp_path):
    body = (
        "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)"
    )
    plan = judged.plan({"tiny": solution(tmp_path, f"{RIGHT}\n    {body}")}, ["16"])
    runner = IsolatedRunner()
    runner.run_workload(*arguments(plan))
    (solution_process,) = runner.processes.values()
    descendants = []
    for process in psutil.process_iter(["cwd"]):
        if process.info["cwd"] == solution_process.folder:
            descendants.append(process)
    assert any(process.name() == "sleep" for process in descendants)

    runner.close()
    assert not any(process.is_running() for process in descendants)


def test_a_process_that_fills_its_folder_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "LARGEST_FOLDER", 1 << 20)
    body = "open('f', 'wb').write(bytes(1 << 21))"
    plan = judged.plan({"tiny": solution(tmp_path, f"{RIGHT}\n    {body}")}, ["16"])
    with closing(IsolatedRunner()) as runner:
        results = runner.run_workload(*arguments(plan))
        assert [finding.status for finding in results.values()] == [PASSED]
        assert not runner.processes


def test_a_solution_that_spoils_its_inputs_does_not_harm_the_next_in_its_process(
    tmp_path,
):
    body = f"{RIGHT}\n    gemm1_weights.view(torch.uint8).zero_()"
    packed = {name: solution(tmp_path, body, name) for name in ("first", "second")}
    plan = judged.plan(packed, ["16"])
    with closing(IsolatedRunner(shared=True)) as runner:
        looks = list(runner.look_again(*arguments(plan)))
        assert len(runner.processes) == 1
    assert [look.status for look in looks] == [PASSED, PASSED]


def test_a_nursery_that_was_killed_is_replaced(tmp_path):
    """A nursery is the process that forks those of solutions; its descendants have its mark."""
    packed = solution(tmp_path, RIGHT)
    assert judged.evaluated(packed).passed
    nursery = processes.NURSERIES.get()
    for process in psutil.process_iter():
        try:
            if process.environ().get(processes.MARK) == nursery.mark:
                process.kill()
        except psutil.Error:
            continue
    assert judged.evaluated(packed).passed
    assert processes.NURSERIES.get() is not nursery


# A second look, at findings that are made up here in place of FIB's


@pytest.fixture
def look(tmp_path):
    """A function: a solution's body and the status that FIB found -> the finding after a second
    look.
    """

    def look_at(body, status=PASSED, verbose=False):
        packed = solution(tmp_path, body)
        plan = judged.plan({"tiny": packed}, ["16"], verbose=verbose)
        (task,) = plan
        (part,) = plan.parts.values()
        performance = None
        if status == PASSED:
            performance = Performance(latency_ms=1, speedup_factor=2)
        findings = {"tiny": Finding(status, performance=performance)}
        with closing(SecondLook(plan, "cpu")) as second_look:
            changed = second_look.changed_findings(part, task, findings)
            return (findings | changed)["tiny"]

    return look_at


def test_the_finding_of_a_right_solution_stays_as_it_was(look):
    finding = look(RIGHT)
    assert finding.status == PASSED
    assert finding.performance.latency_ms == 1
    assert list(finding.sentences) == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("output.zero_()", "INCORRECT_NUMERICAL"),
        ("import os; os._exit(3)", "RUNTIME_ERROR"),
        ("raise ValueError('no')", "RUNTIME_ERROR"),
    ],
)
def test_a_solution_that_passed_but_fails_on_a_fresh_input_has_failed(
    look, body, status
):
    finding = look(body)
    assert finding.status.value == status
    assert finding.performance is None
    assert (finding.correctness is not None) == (status == "INCORRECT_NUMERICAL")


def test_a_wrong_solution_is_diagnosed(look):
    wrong = EvaluationStatus.INCORRECT_NUMERICAL
    assert "1.5" in look(f"{RIGHT}.mul_(1.5)", wrong).sentences[-1]
    # right this time: differs from run to run
    assert len(look(RIGHT, wrong).sentences) == 1
    assert "ValueError: no" in look("raise ValueError('no')", wrong).sentences[-1]


@pytest.mark.parametrize(("verbose", "looks"), [(False, 1), (True, 2)])
def test_a_wrong_solution_is_looked_at_once_or_with_verbose_each_time(
    tmp_path, verbose, looks
):
    plan = judged.plan({"tiny": solution(tmp_path)}, ["16"], verbose=verbose)
    second_look = SecondLook(plan, "cpu")
    wrong = Finding(EvaluationStatus.INCORRECT_SHAPE)
    is_wanted = [second_look.is_wanted("tiny", wrong) for _ in range(2)]
    assert sum(is_wanted) == looks
    assert not second_look.is_wanted("tiny", Finding(EvaluationStatus.TIMEOUT))


def test_a_second_look_that_runs_out_of_memory_is_no_fault(look):
    finding = look("raise RuntimeError('CUDA out of memory')")
    assert finding.status == PASSED
    assert len(finding.sentences) == 1


@pytest.mark.gpu
def test_on_a_gpu_outputs_are_compared_where_no_solution_runs(tmp_path):
    """As third-party solutions are judged: a right one, a wrong one, one that breaks its CUDA
    context.
    """
    bodies = {
        "right": RIGHT,
        "wrong": "output.zero_()",
        "breaks": "torch.empty(1, device='cuda')[torch.tensor([1 << 40], device='cuda')] = 1",
    }
    packed = []
    for name, body in bodies.items():
        packed.append(solution(tmp_path, body, name, target_hardware=["cpu", "sm_90"]))
    plan = judged.plan({each.name: each for each in packed}, ["16"])
    (task,) = plan
    (part,) = plan.parts.values()
    config = TOLERANCES["relaxed"].config(num_trials=2, warmup_runs=1, iterations=3)
    for clock in ("events", "gpu"):
        with closing(IsolatedRunner("cuda:0", clock)) as run:
            results = run.run_workload(
                part.definition, task.workload, packed, config, paths.ROOT
            )

        statuses = [results[each.name].status.value for each in packed]
        assert statuses == ["PASSED", "INCORRECT_NUMERICAL", "RUNTIME_ERROR"]
        performance = results[packed[0].name].performance
        assert performance.latency_ms > 0
        assert performance.speedup_factor > 0


@pytest.mark.gpu
def test_a_second_look_on_a_gpu(tmp_path):
    packed = solution(tmp_path, RIGHT, target_hardware=["cpu", "sm_90"])
    plan = judged.plan({"tiny": packed}, ["16", "19"])
    (part,) = plan.parts.values()
    with closing(SecondLook(plan, "cuda:0")) as second_look:
        for task in plan:
            looks = second_look.changed_findings(part, task, {"tiny": Finding(PASSED)})
            assert looks["tiny"].status == PASSED
            assert list(looks["tiny"].sentences) == []


# What solutions print, and the environment


def test_control_characters_are_written_out():
    text = printable("a\x1b[2J\x07\r\nb\tc\u202e\x9b")
    assert text == "a\\x1b[2J\\x07\nb\tc\\u202e\\x9b"


def test_long_text_is_cut_in_lines_and_in_characters():
    """A sentence in place of what is left out says how much that is."""
    text = "\n".join(["x" * 50, *map(str, range(100)), "last"])
    rows = cut(text, lines=10, characters=20).splitlines()
    assert len(rows) == 11
    assert rows[0].startswith("x" * 20)
    assert "30" in rows[0]  # characters
    assert "92" in rows[5]  # lines
    assert rows[-1] == "last"
    assert cut("short", 10, 20) == "short"


@pytest.fixture
def cache_with_a_space(tmp_path, monkeypatch):
    """Set a cache folder with a space for TVM FFI; the folder that caches lie in instead."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr(environment, "ELSEWHERE", str(elsewhere))
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "plain"))
    monkeypatch.setenv("TVM_FFI_CACHE_DIR", str(tmp_path / "a b"))
    environment.use_caches_without_spaces()
    assert os.environ["FIB_CACHE_PATH"] == str(tmp_path / "plain")
    return elsewhere


def test_a_cache_with_a_space_lies_elsewhere(cache_with_a_space):
    (folder,) = cache_with_a_space.iterdir()
    assert os.environ["TVM_FFI_CACHE_DIR"] == str(folder)
    assert folder.stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_a_library_is_built_although_its_cache_has_a_space(cache_with_a_space):
    code = """#include <tvm/ffi/tvm_ffi.h>
int add(int a, int b) { return a + b; }
TVM_FFI_DLL_EXPORT_TYPED_FUNC(add, add);
"""
    library = build_library("adds", {"adds.cpp": code})
    assert library.is_file()
    assert cache_with_a_space in library.parents


def test_a_solution_inherits_no_variable_of_python_and_no_locale():
    inherited = {"PYTHONHOME": "/x", "LC_ALL": "C", "HOME": "/h"}
    kept = environment.solution_environment(inherited)
    assert kept["HOME"] == "/h"
    assert kept["LC_ALL"] == "C.UTF-8"
    assert "PYTHONHOME" not in kept
