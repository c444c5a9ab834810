"""tools/mxfp4_peers, which times FP8 solutions and public kernels beside MXFP4 solutions: they get
the same weights and the same sizes. vLLM's and triton_kernels' kernels do not run here.
"""

import sys
from argparse import Namespace
from dataclasses import replace
from functools import cache
from types import ModuleType

import pytest
import torch
from layer_inputs import DEVICE, reference
from moebench.core import paths
from moebench.core.errors import CannotRun, UserError
from moebench.judging.calling import seeded_inputs
from moebench.operators import catalogue
from moebench.operators.fp8 import mxfp4
from moebench.operators.fp8.reference import dequantize
from moebench.reports import layer_times

TOOL = paths.ROOT / "tools" / "mxfp4_peers"
sys.path.insert(0, str(TOOL))

import marlin  # noqa: E402
import marlin_weights  # noqa: E402
import packed_peers  # noqa: E402
import routed_rows  # noqa: E402
import row_kernels  # noqa: E402
import time_peers  # noqa: E402
import triton_kernels_peer  # noqa: E402
import vllm_files  # noqa: E402
from batch import WEIGHTS, Batch  # noqa: E402

SMALL = "small-mxfp4"


@cache
def batch_of(case_name):
    """Return a case's inputs on this machine, and the reference's output."""
    operator = catalogue.MXFP4
    case = {case.name: case for case in operator.cases(SMALL)}[case_name]
    sizes = operator.layer_sizes()[SMALL]
    stored = operator.tensors(case)
    stored |= mxfp4.weight_scales(operator.case_with_scales(case), sizes)

    full = catalogue.definition(SMALL)
    workload = operator.record(case).workload
    (values,) = seeded_inputs(full, workload, 1, DEVICE, stored)
    expected = reference(SMALL).run(*values)
    return Batch(dict(zip(full.inputs, values, strict=True)), expected, sizes)


def test_weights_with_typical_scales_are_exact_in_fp8():
    inputs = batch_of("odd-length").inputs
    converted = packed_peers.as_fp8(inputs)

    dequantize_mxfp4 = reference(SMALL).dequantize_mxfp4
    for gemm in ("gemm1_weights", "gemm2_weights"):
        values = dequantize(converted[gemm], converted[f"{gemm}_scale"], row_block=128)
        for expert in range(len(values)):
            scales = inputs[f"{gemm}_scale"][expert]
            expected = dequantize_mxfp4(inputs[gemm][expert], scales)
            assert torch.equal(values[expert], expected)


def test_scales_too_far_apart_for_an_fp8_block_are_refused():
    with pytest.raises(ValueError, match="expert 0, gemm1_weights: block"):
        packed_peers.as_fp8(batch_of("harsh-scales").inputs)


def test_the_fp8_layer_is_the_one_of_the_same_sizes_if_there_is_one():
    fp8_key_of = packed_peers.fp8_key_of
    assert fp8_key_of("deepseek-v4-flash-mxfp4") == "deepseek-v4-flash-routed"
    assert fp8_key_of("deepseek-v4-pro-ep8-mxfp4") == "deepseek-v4-pro-ep8-routed"
    assert fp8_key_of("deepseek-v4-flash-tp4-mxfp4") is None


def test_flashinfers_tuner_is_limited_where_a_solution_calls_it(monkeypatch):
    from solutions.flashinfer_mxfp4 import build, keywords

    monkeypatch.setattr(keywords, "MOST_TOKENS_TUNED", 16384)
    packed_peers.limit_tuning(build, 256)  # any module of the solution
    assert keywords.MOST_TOKENS_TUNED == 256
    packed_peers.limit_tuning(paths, 256)  # of no solution


def test_a_solution_prepares_once_and_goes_by_the_name_of_what_it_calls(monkeypatch):
    calls = []
    module = ModuleType("a_solution.main")
    module.prepare = lambda weights: calls.append("prepare") or len(weights)
    module.layer = lambda args, prepared: args.output.fill_(prepared)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    runnable = Namespace(_callable=Namespace(__module__=module.__name__))
    monkeypatch.setattr(packed_peers, "built", lambda name, key: runnable)
    monkeypatch.setattr(packed_peers, "timed", lambda function: (function(), 1.5))

    batch = batch_of("one-token")
    peer = packed_peers.peer_of("flashinfer_mxfp4_w4a8", SMALL, batch, 8)
    output = torch.zeros(2)
    peer.call(output)
    peer.call(output)

    assert peer.name == "FlashInfer's W4A8"
    assert peer.prepare_ms == 1.5
    assert calls == ["prepare"]
    assert output.tolist() == [4, 4]


def marlin_code(words, row, column):
    """Return the code of an element, from where an mma.m16n8k16 instruction's thread has it.

    words: [K / 16, 2 N] int32. A thread's lane is 4 * (row in 8) + (pair of columns in 8); it has
    four words of a tile, one for each 16 rows.
    """
    tile = words[column // 16]
    lane = 4 * (row % 8) + column % 8 // 2
    word = tile[128 * (row // 64) + 4 * lane + row % 64 // 16]
    place = 4 * (column % 2) + 2 * (row % 16 // 8) + column % 16 // 8
    return (int(word) >> 4 * place) & 15


def test_codes_lie_where_marlins_threads_read_them():
    rows = 128
    columns = 48
    codes = torch.randint(16, (rows, columns), dtype=torch.uint8)
    packed = codes[:, ::2] | codes[:, 1::2] << 4

    words = marlin_weights.repack(packed)

    assert words.shape == (columns // 16, 2 * rows)
    for row in range(rows):
        for column in range(columns):
            assert marlin_code(words, row, column) == codes[row, column]


def test_scales_lie_beside_the_rows_that_a_thread_of_marlins_has():
    rows = 128
    scales = torch.arange(rows, dtype=torch.uint8).repeat(3, 1).t().contiguous()

    permuted = marlin_weights.permute_scales(scales)

    assert permuted.dtype == torch.float8_e8m0fnu
    (first, *_) = permuted.view(torch.uint8).tolist()
    # the thread of row 0 has rows 0, 8, ... 56 of the tile, of which Marlin unpacks 0 with 16
    assert first[:8] == [0, 16, 8, 24, 32, 48, 40, 56]
    assert first[8:16] == [1, 17, 9, 25, 33, 49, 41, 57]
    assert first[64:72] == [64, 80, 72, 88, 96, 112, 104, 120]


def check_marlin_arguments(inputs, output, bias, rest):
    """Assert what the operator wants of a layer in MXFP4. rest: its arguments from the sixth on."""
    workspace = rest[5]
    code_type, size_m, size_n, size_k = rest[13:17]
    assert bias is None
    assert not any(argument is not None for argument in rest[:5])
    assert workspace.count_nonzero() == 0
    assert code_type == 562949953487106  # as vLLM numbers float4_e2m1f
    assert (size_m, size_k) == inputs.shape
    assert size_n == output.shape[1]


class EmulatedMarlin:
    """vLLM's two operators in plain torch, from their description."""

    def moe_align_block_size(
        self, topk_ids, num_experts, block, row_ids, block_experts, count, expert_map
    ):
        ids = topk_ids.flatten()
        local = ids if expert_map is None else expert_map[ids.long()]
        padded = []
        experts = []
        for expert in range(num_experts):
            rows = torch.nonzero(local == expert).flatten().tolist()
            blocks = -(-len(rows) // block)
            padded += rows + [len(ids)] * (blocks * block - len(rows))
            experts += [expert] * blocks
        row_ids[: len(padded)] = torch.tensor(padded, dtype=torch.int32)
        block_experts[: len(experts)] = torch.tensor(experts, dtype=torch.int32)
        count[0] = len(padded)

    def moe_wna16_marlin_gemm(self, inputs, output, weights, bias, scales, *rest):
        _, row_ids, block_experts, count, factors, block, top_k, is_weighed = rest[5:13]
        check_marlin_arguments(inputs, output, bias, rest)
        for place, row in enumerate(row_ids[: int(count)].tolist()):
            if row == len(output):
                continue  # padding
            expert = int(block_experts[place // block])
            matrix = self.matrix(weights, scales, expert)
            product = matrix @ inputs[row // top_k].float()
            output[row] = product * (factors.flatten()[row] if is_weighed else 1)
        return output

    def matrix(self, weights, scales, expert):
        """Return an expert's values [N, K], as the layer under test had them packed."""
        return self.values[weights.data_ptr()][expert]


@pytest.fixture
def emulated():
    return EmulatedMarlin()


@pytest.mark.parametrize("case_name", ["one-token", "odd-length"])
def test_marlins_two_operators_make_the_layer(case_name, emulated, monkeypatch):
    """Catches another rank's experts, a wrong size, and weights of the routing applied twice."""
    properties = Namespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    batch = batch_of(case_name)
    weights = marlin_weights.marlin_weights([batch.inputs[name] for name in WEIGHTS])
    emulated.values = {}
    for gemm in ("gemm1", "gemm2"):
        packed = batch.inputs[f"{gemm}_weights"]
        scales = batch.inputs[f"{gemm}_weights_scale"]
        values = [
            mxfp4.dequantize_mxfp4(*expert)
            for expert in zip(packed, scales, strict=True)
        ]
        emulated.values[getattr(weights, gemm).data_ptr()] = values

    layer = marlin.MarlinLayer(emulated, routed_rows.routed_rows(batch), weights)
    output = torch.full_like(batch.expected, torch.nan)
    layer(output)

    torch.testing.assert_close(output, batch.expected, rtol=0.05, atol=0.05)


def rows_of(num_tokens, num_experts=256, num_local=256, top_k=6):
    """Return RoutedRows of a batch whose values do not matter."""
    return routed_rows.RoutedRows(
        tokens=torch.empty(num_tokens, 1),
        topk_ids=torch.zeros(num_tokens, top_k, dtype=torch.int32),
        topk_weights=torch.ones(num_tokens, top_k),
        local_ids=torch.zeros(num_tokens * top_k, dtype=torch.int32),
        num_experts=num_experts,
        num_local_experts=num_local,
        first_expert=0,
        limit=10.0,
    )


def test_marlins_blocks_are_as_high_as_vllm_has_them():
    """An expert of 256 has 6 T / 256 rows; the first height that this is under 0.9 of is taken."""
    heights = {1: 8, 256: 8, 512: 16, 1024: 32, 2048: 64, 8192: 64}
    for num_tokens, height in heights.items():
        assert marlin.block_rows(rows_of(num_tokens)) == height
        assert marlin.block_rows(rows_of(num_tokens, num_local=32)) == height


def test_padded_rows_are_never_more_than_a_block_for_each():
    assert marlin.most_padded_rows(6, 256, 8) == 6 * 8
    assert marlin.most_padded_rows(6144, 256, 32) == 6144 + 256 * 31


def test_the_expert_map_numbers_a_ranks_experts():
    assert marlin.expert_map(rows_of(1)) is None
    on_rank = replace(rows_of(1, num_experts=6, num_local=2), first_expert=2)
    assert marlin.expert_map(on_rank).tolist() == [-1, -1, 0, 1, -1, -1]


def test_rows_are_sorted_by_expert_with_another_ranks_last():
    rows = replace(
        rows_of(2, num_local=3, top_k=3),
        local_ids=torch.tensor([2, -1, 0, 0, 2, -1], dtype=torch.int32),
        topk_weights=torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]),
    )
    order = triton_kernels_peer.expert_order(rows)

    assert order.row_of_place.tolist() == [2, 3, 0, 4, -1, -1]
    assert order.place_of_row.tolist() == [2, -1, 0, 1, 3, -1]
    assert order.rows_of_expert.tolist() == [2, 0, 2]
    expected = torch.tensor([0.3, 0.4, 0.1, 0.5])
    assert torch.equal(order.weights[:4], expected)


def test_local_experts_are_counted_from_the_ranks_first():
    ids = torch.tensor([[16, 31, 32], [15, -1, 20]], dtype=torch.int32)
    local = routed_rows.local_ids(ids, 16, 16)
    assert local.dtype == torch.int32
    assert local.tolist() == [0, 15, -1, -1, -1, 4]


def random_rows(num_rows, width):
    """Return rows of bf16 with values beyond the clamp, and an id for each, some negative."""
    generator = torch.Generator(DEVICE).manual_seed(3)
    rows = torch.randn(num_rows, width, generator=generator, device=DEVICE)
    ids = torch.arange(num_rows, device=DEVICE, dtype=torch.int32)
    ids[::3] = -1
    return (8 * rows).bfloat16(), ids


def test_swiglu_of_the_rows_that_have_an_expert():
    gate_up, ids = random_rows(7, 2 * 1200)
    assert gate_up.max() > 10 and gate_up.min() < -10
    gate_up[ids < 0] = torch.nan

    h = row_kernels.swiglu(gate_up, ids, 10.0)

    is_local = ids >= 0
    expected = row_kernels.swiglu_ref(gate_up, 10.0)
    torch.testing.assert_close(h[is_local], expected[is_local], rtol=0.01, atol=0.01)


def test_swiglu_is_the_layers():
    gate_up, _ = random_rows(5, 2 * 64)
    gate, up = gate_up.float().chunk(2, dim=1)
    expected = reference(SMALL).swiglu(gate, up).bfloat16()
    assert torch.equal(row_kernels.swiglu_ref(gate_up, 10.0), expected)


def test_the_sum_over_a_tokens_rows_that_have_an_expert():
    y, ids = random_rows(4 * 6, 1200)
    ids[6:12] = -1  # a token without one
    y[ids < 0] = torch.nan
    output = torch.full((4, 1200), torch.nan, dtype=torch.bfloat16, device=DEVICE)

    row_kernels.sum_rows(y, ids, output)

    expected = row_kernels.sum_rows_ref(y, ids, 4)
    torch.testing.assert_close(output, expected, rtol=0.01, atol=0.01)
    assert output[1].count_nonzero() == 0


def test_without_vllm_its_peers_say_so_in_a_line(monkeypatch, tmp_path):
    monkeypatch.setattr(vllm_files.importlib.util, "find_spec", lambda name: None)
    for make in time_peers.PUBLIC.values():
        with pytest.raises(CannotRun, match="vLLM is not installed; --vllm takes"):
            make(None, None)
        with pytest.raises(CannotRun, match="--vllm: .* has no folder `vllm`"):
            make(None, tmp_path)


def test_a_vllm_without_the_files_is_named(tmp_path):
    package = tmp_path / "vllm"
    package.mkdir()
    with pytest.raises(CannotRun, match=rf"this vLLM has no {package}.*libtorch"):
        marlin.marlin_peer(None, tmp_path)
    with pytest.raises(CannotRun, match=rf"this vLLM has no {package}.*triton_kernels"):
        triton_kernels_peer.matmul_ogs_peer(None, tmp_path)


def test_an_unknown_peer_is_refused_with_the_names_there_are():
    arguments = ["8", "--definition", SMALL, "--peers", "matmul_ogs", "hopper"]
    with pytest.raises(UserError, match="--peers: got 'hopper', want one of .*matmul"):
        time_peers.parsed(arguments)
    assert time_peers.parsed(arguments[:-1]).peers == ["matmul_ogs"]


def point(peer, relaxed):
    return layer_times.PeerPoint(
        gpu="NVIDIA H200",
        card=1,
        driver="580",
        torch="2.11.0",
        triton="3.6.0",
        date="2026-11-27",
        definition=SMALL,
        tokens=8,
        peer=peer,
        us=12.5,
        prepared_ms=0.0,
        matched={"relaxed": relaxed},
    )


def test_every_peer_that_runs_is_recorded_and_wrong_ones_are_counted(
    monkeypatch, tmp_path, capsys
):
    def fails():
        raise RuntimeError("out of memory\nmore")

    makers = {
        "right": lambda: point("right", 1.0),
        "fails": fails,
        "wrong": lambda: point("wrong", 0.5),
        "not asked for": lambda: point("not asked for", 1.0),
    }
    monkeypatch.setattr(time_peers, "batch_of", lambda *_: None)
    monkeypatch.setattr(time_peers, "peer_makers", lambda *_: makers)
    monkeypatch.setattr(time_peers, "point_of", lambda peer, *_: peer)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    record = tmp_path / "record.jsonl"
    names = ["right", "fails", "wrong"]

    arguments = Namespace(peers=names, card=1, record=record)
    assert time_peers.time_all(SMALL, 8, arguments) == 1

    kept = layer_times.read_lines(record, layer_times.PeerPoint)
    assert [each.peer for each in kept] == ["right", "wrong"]
    _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == names
    assert [line.endswith("WRONG") for line in lines] == [False, False, True]
