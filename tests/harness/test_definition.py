"""The reference says what the operator is, and the JSON says what the reference says."""

import pytest
import torch
from flashinfer_bench import Definition, Workload
from flashinfer_bench.bench.evaluators import resolve_evaluator
from flashinfer_bench.bench.evaluators.lowbit import LowBitEvaluator
from flashinfer_bench.bench.utils import gen_inputs
from flashinfer_bench.compile import BuilderRegistry
from harness import cli
from harness.core import paths

from definitions import moe_fp8_block_scale as moe


def inputs(seq_len, offset=64):
    definition = moe.definition("small")
    scalars = {"local_expert_offset": offset, "routed_scaling_factor": 2.5}
    specs = {name: {"type": "random"} for name in definition.inputs}
    specs |= {name: {"type": "scalar", "value": value} for name, value in scalars.items()}
    torch.manual_seed(seq_len)
    workload = Workload(uuid="test", axes={"seq_len": seq_len}, inputs=specs)
    return gen_inputs(definition, workload, "cpu")


def one_row_at_a_time(args):
    """The operator again, straight from its description, in fp64 and without any sharing."""
    logits, bias, x8, x_scale, w13, w13_scale, w2, w2_scale, offset, factor = args
    num_tokens, hidden = x8.shape
    inter = w2.shape[2]
    output = torch.zeros(num_tokens, hidden, dtype=torch.float64)
    for token in range(num_tokens):
        s = torch.sigmoid(logits[token])
        biased = (s + bias.float()).tolist()
        groups = [sorted(biased[g * 32 : g * 32 + 32])[-2:] for g in range(8)]
        kept = sorted(range(8), key=lambda g: sum(groups[g]))[-4:]
        chosen = sorted((e for g in kept for e in range(g * 32, g * 32 + 32)), key=lambda e: biased[e])[-8:]
        total = sum(s[e].item() for e in chosen) + 1e-20
        x = x8[token].double() * x_scale[:, token].double().repeat_interleave(128)
        for e in chosen:
            if not 0 <= e - offset < w13.shape[0]:
                continue
            scale = torch.kron(w13_scale[e - offset].double(), torch.ones(128, 128).double())
            up, gate = (w13[e - offset].double() * scale @ x).split(inter)
            scale = torch.kron(w2_scale[e - offset].double(), torch.ones(128, 128).double())
            h = up * gate * torch.sigmoid(gate)
            output[token] += s[e].item() / total * factor * (w2[e - offset].double() * scale @ h)
    return output


@pytest.mark.parametrize("seq_len", [1, 6])
def test_reference_computes_what_the_design_describes(seq_len):
    args = inputs(seq_len, offset=40)
    wanted = one_row_at_a_time(args)
    assert wanted.abs().max() > 0
    error = (moe.run(*args).double() - wanted).norm() / wanted.norm()
    assert error < 4e-3  # bf16 rounds to 2^-9


def test_no_tokens_give_an_empty_output():
    assert moe.run(*inputs(0)).shape == (0, 512)


def test_tokens_without_a_local_expert_are_exactly_zero():
    args = inputs(9, offset=96)
    args[0][:, 96:128] = -20
    assert torch.equal(moe.run(*args), torch.zeros(9, 512, dtype=torch.bfloat16))


def test_scales_may_be_zero_or_negative():
    """Negating W2's scales must negate the output, zeroing them must zero it."""
    args = inputs(9)
    plain = moe.run(*args)
    args[7].neg_()
    assert torch.equal(moe.run(*args), -plain) and plain.any()
    args[7].zero_()
    assert not moe.run(*args).any()


def test_reference_in_the_json_stands_alone():
    """FIB runs it as a module of its own, with nothing of this repository in reach."""
    text = paths.definition_file(moe.definition_name("small")).read_text()
    definition = Definition.model_validate_json(text)
    args = inputs(5)
    built = BuilderRegistry.get_instance().build_reference(definition)
    assert torch.equal(built(*args), moe.run(*args))


@pytest.mark.parametrize("geometry", moe.GEOMETRIES)
def test_fib_judges_it_as_low_bit(geometry):
    assert resolve_evaluator(moe.definition(geometry)) is LowBitEvaluator


def test_the_command_says_which_json_is_not_current(tmp_path, monkeypatch, capsys):
    """All committed ones are; otherwise FIB judges by a reference that nobody can read."""
    assert cli.main(["definitions", "--check"]) == 0
    monkeypatch.setattr(paths, "definition_file", lambda name: tmp_path / f"{name}.json")
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    assert cli.main(["definitions"]) == 0 == cli.main(["definitions", "--check"])
    name = moe.definition_name("small")
    (tmp_path / f"{name}.json").write_text("{}")
    capsys.readouterr()
    assert cli.main(["definitions", "--check"]) == 1
    assert capsys.readouterr().err.startswith(f"{name}.json: not what its module states")
    assert (tmp_path / f"{name}.json").read_text() == "{}"
