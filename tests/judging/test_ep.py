"""The whole layer on several ranks: what is exchanged, who computes what, and what happens when a rank dies.

The slow tests start processes that exchange over gloo, on the small layer.
"""

import os
import re
import signal
import subprocess
import sys
import time
from unittest import mock

import pytest
import torch
from harness import cli
from harness.core.errors import CannotRun, UserError
from harness.core.schema import add_line
from harness.expert_parallel import cost, measure, ranks, record
from harness.expert_parallel.forward import WAYS, rank_of
from harness.expert_parallel.layer import Layer, expected, slices, tokens_of, weights_of
from harness.expert_parallel.local_part import REFERENCE, geometry_of, local_part, on_a_rank, packed_for
from harness.expert_parallel.rows import joined, parted
from harness.packing import pack
from harness.report.blocks import expert_parallel as block

CPU_ONLY = pytest.mark.skipif(torch.cuda.is_available(), reason="gloo's job, for CPUs")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--ranks", "3"], 2, "ranks: got 3, want a divisor of 256 experts"),
        (["--definition", "small-renorm"], 2, "got 'small-renorm', want one with a bias in the router"),
        (["--solution", "nothing"], 2, "unknown solution 'nothing'"),
        (["--definition", "kimi-k2-ep8"], 1, "kimi-k2-ep8 needs CUDA devices"),
    ],
)
@CPU_ONLY
def test_bad_arguments_start_nothing(arguments, status, message, capsys, monkeypatch):
    monkeypatch.setattr(ranks, "run_ranks", None)
    assert cli.main(["ep", *arguments]) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize("count", [0, 3])
def test_rows_carry_several_tensors(count):
    parts = (
        torch.randn(count, 4).to(torch.float8_e4m3fn),
        torch.randn(count, 2),
        torch.ones(count, 8, dtype=torch.int64),
    )
    rows = joined(*parts)
    assert rows.shape == (count, 4 + 8 + 64) and rows.dtype == torch.uint8
    for part, again in zip(parts, parted(rows, *parts), strict=True):
        assert again.is_contiguous() and torch.equal(again.float(), part.float()) and again.dtype == part.dtype


def test_chunks_cover_every_token_once():
    for count in (0, 1, 5, 8):
        pieces = slices(count, 3)
        assert [at for piece in pieces for at in range(count)[piece]] == list(range(count)) and len(pieces) == 3


def test_an_experts_weights_do_not_depend_on_its_rank():
    layer = Layer("small", 8)
    all_four, last = (weights_of(layer, experts, "cpu", False) for experts in ([0, 1, 2, 3], [3]))
    for several, one in zip(all_four, last, strict=True):
        assert torch.equal(several[3].float(), one[0].float())


@pytest.mark.slow
def test_the_parts_of_all_ranks_make_the_whole():
    """Two ranks' parts, in both forms, against one rank with all experts: the same weights, gate first or up first."""
    whole, halves = Layer("small", 1), Layer("small", 2)
    tokens = tokens_of(whole, [3], 0, "cpu")
    (right,) = expected(whole, [tokens])
    inside = tokens.logits, tokens.bias, tokens.x, tokens.scale.t().contiguous()
    behind = tokens.x, tokens.scale, tokens.ids, tokens.weights
    one = local_part(REFERENCE, whole, 0, "cpu", False)(*inside)
    assert (one.float() - right).abs().max() < 0.02 * right.abs().max()
    for inputs, form in ((inside, False), (behind, True)):
        first, second = (local_part(REFERENCE, halves, rank, "cpu", form)(*inputs).float() for rank in range(2))
        assert first.abs().max() > 0 and second.abs().max() > 0
        assert (first + second - right).abs().max() < 0.02 * right.abs().max()


def test_a_solution_is_packed_for_another_number_of_experts():
    """Only that number differs; where a definition has it, it is that definition's own source, with its tuned tiles."""
    own = pack.pack("triton_fused_v2")["small"]
    full, same = packed_for("triton_fused_v2", Layer("small", 8), False)
    assert same.hash() == own.hash() and full.name == own.definition
    full, other = packed_for("triton_fused_v2", Layer("small", 2), False)
    assert full.axes["num_local_experts"].value == 128 and "_e128_" in full.name == other.definition
    changed = [a.path for a, b in zip(own.sources, other.sources, strict=True) if a.content != b.content]
    assert changed == ["kernels/problem.py"]
    text = next(source.content for source in other.sources if source.path == changed[0])
    assert "NUM_LOCAL_EXPERTS = 128" in text and "NUM_EXPERTS = 256" in text
    with pytest.raises(UserError, match="triton_mxfp8 does not serve the routed form of small"):
        packed_for("triton_mxfp8", Layer("small", 2), True)


def test_a_layer_is_stated_by_the_geometries_of_its_model():
    """A user would miss: a rank's part computed with another model's routing, or without the tuned tiles."""
    assert geometry_of(REFERENCE, Layer("full", 4), False) == "deepseek-v3-ep4"
    assert geometry_of("hopper_fused", Layer("full", 4), True) == "deepseek-v3-ep4-routed"
    assert geometry_of(REFERENCE, Layer("kimi-k2-ep8", 2), False) in ("kimi-k2-ep8", "kimi-k2-ep1")
    with pytest.raises(UserError, match="reference does not serve the routed form of small-one-group"):
        geometry_of(REFERENCE, Layer("small-one-group", 2), True)


def test_cuda_sources_are_packed_for_it_too():
    _, other = packed_for("hopper_fused", Layer("full", 2), False)
    (text,) = [source.content for source in other.sources if source.path.endswith("problem.cuh")]
    assert re.search(r"kLocal = 128;", text) and re.search(r"kExperts = 256;", text)


def test_inputs_of_a_rank_are_what_its_definition_says():
    layer = Layer("small", 4)
    full, tokens = on_a_rank("small", layer), tokens_of(layer, [2, 0, 5, 1], 2, "cpu")
    held = weights_of(layer, range(64), "cpu", False)
    given = [tokens.logits, tokens.bias, tokens.x, tokens.scale.t(), *held]
    wanted = full.get_input_shapes({"seq_len": 5})
    assert [tuple(tensor.shape) for tensor in given] == [tuple(shape) for shape in wanted[:8]]
    assert len(tokens_of(layer, [2, 0, 5, 1], 1, "cpu").x) == 0


def test_tokens_can_all_want_one_rank():
    layer = Layer("small", 4)
    ids = tokens_of(layer, [9, 0, 0, 0], 0, "cpu", to_rank=2).ids
    assert set((ids // layer.local).flatten().tolist()) == {2}


def test_a_rank_may_have_fewer_experts_than_a_token_chooses():
    layer = Layer("small", 64)
    counts = [3] + [0] * 63
    ids = tokens_of(layer, counts, 0, "cpu", to_rank=1).ids
    assert all({4, 5, 6, 7} <= set(chosen) for chosen in ids.tolist())


# The model of cost


def point(way, tokens, there_ms, back_ms):
    layer = Layer("full", 2)
    there = tokens * cost.row_bytes(layer, way)
    figures = {"there_ms": there_ms, "back_ms": back_ms, "products_ms": 1.0, "call_ms": {1: 2.0, 2: 1.5}}
    return record.Point(way=way, sum_in="bf16", tokens=tokens, there_bytes=there, back_bytes=14336 * tokens, **figures)


POINTS = [point("gather", 1, 0.025, 0.03), point("gather", 4096, 0.025 + 0.2, 0.03 + 0.3)]


def test_a_link_is_fitted_and_used():
    there, back = cost.links([*POINTS, point("exchange", 1, 9.0, 9.0)])
    assert (there.latency_us, back.latency_us) == (25, 30)
    assert there.rate == pytest.approx(4096 * (7168 + 224 + 1024) / 200e3)
    layer = Layer("full", 2)
    assert cost.exchanged_us(layer, "gather", 4096, there, back) == pytest.approx(225 + 330, rel=1e-3)
    assert cost.links([*POINTS, point("gather", 4096, 0.5, 0.9)]) == (there, back), "a rank that waits for another"
    with pytest.raises(ValueError, match="points: got 1, want two or more"):
        cost.fitted([(1, 1)])


def test_a_token_reaches_few_of_many_ranks():
    """DeepSeek-V3's router keeps 4 of 8 groups: of 8 ranks a token reaches at most 4, of 64 at most 8."""
    near, far = cost.others_reached(Layer("full", 8))
    assert 2.5 < near < 4 and far == 0
    near, far = cost.others_reached(Layer("full", 64))
    assert near < 1.5 and 4 < near + far < 8
    there, back = cost.links(POINTS)
    for number in (8, 64):
        ways = [cost.exchanged_us(Layer("full", number), way, 4096, there, back) for way in ("gather", "exchange")]
        assert ways[1] < ways[0]


def test_the_page_says_what_was_measured_and_what_is_a_model(tmp_path):
    head = {"hardware": "A GPU", "versions": {"torch": "2"}, "timestamp": "2026-01-01", "protocol": "once"}
    made = record.Head(solution="mine", geometry="full", ranks=2, provenance=head)
    for at, line in enumerate([made, *POINTS, point("exchange", 4096, 0.3, 0.3)]):
        add_line(tmp_path / "x.jsonl", line, first=at == 0)
    found = block.recorded(tmp_path)
    text = block.measured(found)
    assert "mine: DeepSeek-V3's layer on 2 A GPU, parts in bf16, ms" in text
    assert "| 4096 | exchange | 0.300 | 1.000 |" in text
    text = block.modelled(found)
    assert "A model." in text and [line.split(" | ")[0] for line in text.splitlines()[2:8]] == [
        *["| 2"] * 2,
        *["| 8"] * 2,
        *["| 64"] * 2,
    ]
    assert "and 196 GB/s to combine, fitted to gather" in text
    other = made.model_copy(update={"provenance": made.provenance.model_copy(update={"hardware": "Another GPU"})})
    slower = record.Measured(other, [POINTS[0], point("gather", 4096, 1.0, 1.0)])
    assert block.modelled([*found, slower]) == text, "the links of two machines"
    fp32 = [one.model_copy(update={"sum_in": "fp32"}) for one in POINTS]
    assert block.modelled([record.Measured(made, fp32)]) == block.NO_MODEL
    assert block.status(found).startswith("Run on 2 A GPU of one host, over NCCL, with the layers of DeepSeek-V3; ")
    assert block.measured([]) == block.NOT_MEASURED and block.status([]).startswith("**Not run** on GPUs yet")


# Processes


def dies(rank, number, device):
    """The last rank is killed, the others wait for it."""
    if rank == number - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    torch.distributed.barrier()
    return 0


def fails(rank, number, device):
    if rank == 0:
        raise CannotRun("no")
    time.sleep(60)


@CPU_ONLY
@pytest.mark.slow
def test_a_rank_that_dies_ends_the_job_with_one_line(capfd):
    begin = time.monotonic()
    with pytest.raises(CannotRun, match="rank 1 of 2 died by SIGKILL; the others are ended"):
        ranks.run_ranks(2, 60.0, dies)
    assert time.monotonic() - begin < 50
    rest = [
        line for line in capfd.readouterr().err.splitlines() if not line.startswith("rank 0: another rank has left")
    ]
    assert rest == []  # rank 0 may have seen it first


@CPU_ONLY
@pytest.mark.slow
def test_a_rank_that_cannot_run_ends_the_job_with_its_line(capfd):
    begin = time.monotonic()
    assert ranks.run_ranks(2, 60.0, fails) == 1
    assert time.monotonic() - begin < 50
    assert capfd.readouterr().err == "no\n"


ALONE = """
import os, signal, sys
from harness.core.errors import exit_with
from harness.expert_parallel import ranks
def work(rank, number, device):
    import torch
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    torch.distributed.barrier()
exit_with(lambda argv: ranks.run_ranks(2, 60.0, work))
"""


@CPU_ONLY
@pytest.mark.slow
def test_ranks_that_nobody_watches_notice_it_themselves(tmp_path):
    """As on another host than the one that dies, under torchrun."""
    program = tmp_path / "program.py"
    program.write_text(ALONE)
    known = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20000 + os.getpid() % 20000)}
    started = [
        subprocess.Popen(
            [sys.executable, program], env=os.environ | known | {"RANK": str(rank)}, stderr=subprocess.PIPE
        )
        for rank in range(2)
    ]
    _, err = started[0].communicate(timeout=100)
    assert started[1].wait(10) == -signal.SIGKILL
    (line,) = [line for line in err.decode().splitlines() if not line.startswith("[")]  # what torch itself logs
    assert started[0].returncode == 1 and line.startswith("rank 0: another rank has left, or is late: ")


class Clock:
    """In the place of a CUDA event."""

    def __init__(self, enable_timing):
        pass

    def record(self):
        self.at = time.perf_counter()

    def elapsed_time(self, other):
        return 1e3 * (other.at - self.at)


def measures(rank, number, device):
    """A point of each way, with clocks for CUDA events and a stand-in for a GPU that sleeps."""
    with mock.patch.multiple(torch.cuda, Event=Clock, _sleep=time.sleep, synchronize=lambda: None):
        with mock.patch.multiple(measure, AHEAD=0.001, WARMUP=0, CALLS=2):
            for way in WAYS:
                mine = rank_of(way, REFERENCE, Layer("small", number), rank, device)
                found = measure.measure(mine, 4, "bf16", device, [1, 2, 8], as_graph=False)
                assert set(found.call_ms) == {1, 2} and found.way == way
                assert min(found.there_ms, found.products_ms, found.back_ms, *found.call_ms.values()) > 0
                width = 512 + 4 * 4 + (4 * 256 if way == "gather" else 8 * 8)
                assert found.there_bytes <= 4 * width and found.back_bytes <= 4 * 2 * 512
                assert way == "exchange" or (found.there_bytes, found.back_bytes) == (4 * width, 4 * 2 * 512)
    return 0


@CPU_ONLY
@pytest.mark.slow
def test_a_point_has_every_figure():
    """A user would miss: an error after minutes of checks on rented GPUs."""
    assert ranks.run_ranks(2, 60.0, measures) == 0


def checked(capfd, *arguments):
    """Lines of `moebench ep` by way; all have passed."""
    status = cli.main(["ep", *arguments])
    shown = capfd.readouterr()
    assert status == 0, shown.out + shown.err
    assert "Warning" not in shown.out + shown.err
    lines = [line for line in shown.out.splitlines() if line.startswith(("gather  ", "exchange  "))]
    assert lines and all("  PASSED  matched " in line for line in lines)
    return lines


@CPU_ONLY
@pytest.mark.slow
def test_two_ranks_with_interpreted_kernels(capfd):
    """Even, uneven with an empty rank, all to one rank, and nothing at all; in one piece and in two chunks.

    gather calls the form with the router inside, exchange the routed one, of the same layer: alike to the last digit.
    """
    lines = [line.partition("  ") for line in checked(capfd, "--solution", "triton_fused_v2", "--chunks", "2")]
    found = {way: [rest for name, _, rest in lines if name == way] for way in ("gather", "exchange")}
    assert found["gather"] == found["exchange"] and len(found["gather"]) == 8


@CPU_ONLY
@pytest.mark.slow
def test_four_ranks_are_exact_with_the_reference(capfd):
    lines = checked(capfd, "--ranks", "4", "--tolerance", "default", "--chunks", "1", "--sum-in", "fp32")
    assert len(lines) == 8


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_gpus(tmp_path):
    """Checked over NCCL, timed at one number of tokens, and recorded."""
    output = tmp_path / "x.jsonl"
    command = [sys.executable, "-m", "harness", "ep", "--solution", "triton_fused_v2", "--ranks", "2"]
    command += ["--check-tokens", "16", "--tokens", "8", "--output", str(output)]
    known = os.environ | {"NCCL_NVLS_ENABLE": "0"}
    done = subprocess.run(command, env=known, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    found = record.read(output)
    assert {point.way for point in found.points} == {"gather", "exchange"} and found.head.ranks == 2
    assert all(point.there_ms > 0 and point.call_ms[1] > 0 for point in found.points)
