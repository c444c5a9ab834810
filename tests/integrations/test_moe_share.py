"""integrations/sglang/moe_share.py: the share of the experts' kernels in a profile."""

import gzip
import importlib
import json

import pytest
from moebench.core import paths


@pytest.fixture
def moe_share(monkeypatch):
    monkeypatch.syspath_prepend(paths.ROOT / "integrations" / "sglang")
    return importlib.import_module("moe_share")


def event(name, start_ms, end_ms, category="kernel"):
    return {
        "cat": category,
        "name": name,
        "ts": 1e3 * start_ms,
        "dur": 1e3 * (end_ms - start_ms),
    }


@pytest.fixture
def trace(tmp_path):
    events = [
        event("void (anonymous namespace)::grouped_gemm1<2>(CUtensorMap)", 0, 3),
        event("grouped_gemm2<2>", 1, 4),  # waits for gemm1 inside the kernel
        event("flash_fwd_splitkv_combine_kernel", 4, 6),
        event("fused_moe_kernel", 8, 9),
        event("fused_moe_kernel", 0, 9, category="cpu_op"),
    ]
    file = tmp_path / "trace.json.gz"
    file.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    return file


def test_overlapping_kernels_count_once(moe_share, trace):
    assert moe_share.busy_ms(moe_share.read_kernels(trace)) == 7


def test_kernels_of_attention_are_not_the_experts(moe_share, trace):
    experts = [
        kernel for kernel in moe_share.read_kernels(trace) if kernel.is_of_experts
    ]
    assert len(experts) == 3
    assert moe_share.busy_ms(experts) == 5
