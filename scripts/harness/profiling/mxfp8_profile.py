"""Time the three steps of an MXFP8 linear layer: quantise, block-scaled product, both in one call.

Contestants are triton_mxfp8, its product on each route of this architecture, and torch's two ways. Every call finds L2
cold: a buffer larger than L2 is written before it, and the device is still busy with that while the host launches, so
events around the call see the device's time alone.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import torch
from flashinfer_bench import Solution

from definitions.mxfp8_linear import GROUP, dequantise
from harness.operators import catalogue
from harness.packing import eligibility, pack
from harness.profiling.mxfp8_record import CaseProfile, Timing
from harness.profiling.profiled_calls import ProfileError, build, first_line

OURS = "triton_mxfp8"
OTHERS = ("torch_mxfp8_emulated", "torch_scaled_mxfp8")
ROUTES = {"sm_90": ("bf16", "library", "fp8"), "sm_100": ("native",), "cpu": ("bf16", "library", "fp8")}
STAND_IN = {"cpu": "sm_90"}  # whose route the interpreter takes
FUNCTIONS = {"quantise": "quantise", "product": "multiply", "linear": "run"}  # of every contestant's main.py
WARMUP_CALLS = 5
FLUSH_BYTES = 512 << 20  # writing them takes longer than launching the slowest contestant does


@dataclass(frozen=True)
class Size:
    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"M={self.m} N={self.n} K={self.k}"


def packed(name: str) -> Solution:
    """Raises PackingError."""
    return pack.pack(name)["mxfp8"]


def module_of(solution: Solution) -> ModuleType:
    """The main module of a solution as FIB's builder imported it. Raises ProfileError."""
    built = build(solution, catalogue.definition("mxfp8"))
    return sys.modules[built._callable.__module__]  # the builder hands out nothing but the entry point


def operands(size: Size, device: str) -> tuple[torch.Tensor, ...]:
    """x [m, k] bfloat16, weight [n, k] float8_e4m3fn, weight_scale [n, k/32] int8, from a seed."""
    generator = torch.Generator(device).manual_seed(size.m)
    x = torch.randn(size.m, size.k, generator=generator, device=device).bfloat16()
    weight = torch.randn(size.n, size.k, generator=generator, device=device).to(torch.float8_e4m3fn)
    shape = (size.n, size.k // GROUP)
    scale = torch.randint(118, 124, shape, generator=generator, device=device, dtype=torch.int8)
    return x, weight, scale


def times_us(call: Callable[[], object], iterations: int, device: str) -> list[float]:
    """Microseconds of each call, after warm-up. Raises ProfileError for whatever the call raises."""
    try:
        for _ in range(WARMUP_CALLS if device != "cpu" else 0):
            call()
        if device == "cpu":
            found = []
            for _ in range(iterations):
                start = time.perf_counter()
                call()
                found.append((time.perf_counter() - start) * 1e6)
            return found
        flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=device)
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(iterations)]
        torch.cuda.synchronize()
        for start, end in events:
            flush.zero_()
            start.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1e3 for start, end in events]
    except Exception as error:
        raise ProfileError(first_line(error)) from error


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.float() - wanted).norm() / wanted.norm())


def timing(step: str, contestant: str, microseconds: list[float], work: float, error: float | None) -> Timing:
    """work: bytes of a quantisation, or operations of a product."""
    found = torch.tensor(microseconds, dtype=torch.float64)
    mean = float(found.mean())
    rate = work / mean / (1e3 if step == "quantise" else 1e6)
    std = float(found.std()) if len(found) > 1 else 0.0
    return Timing(
        step=step,
        contestant=contestant,
        mean_us=round(mean, 3),
        std_us=round(std, 3),
        rate=round(rate, 3),
        error=error,
    )


def profile_case(size: Size, dtype: torch.dtype, iterations: int, say: Callable[[str], None]) -> CaseProfile:
    """All steps and contestants at one size. Raises ProfileError, PackingError."""
    hardware = eligibility.here()
    device = "cpu" if hardware == "cpu" else "cuda"
    x, weight, weight_scale = operands(size, device)
    output = torch.empty(size.m, size.n, dtype=dtype, device=device)
    ours = module_of(packed(OURS))
    codes, scales = ours.quantise(x)
    # in fp32 whatever the user's setting for TF32; a tensor core's result would be no reference
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    wanted = dequantise(codes, scales) @ dequantise(weight, weight_scale.view(torch.uint8)).t()
    torch.set_float32_matmul_precision(precision)

    moved = x.numel() * 3 + scales.numel()
    operations = 2 * size.m * size.n * size.k
    calls = {
        "quantise": (moved, (x,)),
        "product": (operations, (codes, scales, weight, weight_scale, output)),
        "linear": (operations, (x, weight, weight_scale, output)),
    }
    timings = []

    def measure(step, contestant, function, arguments):
        say(f"{size}: {step}, {contestant}")
        output.fill_(torch.nan)
        with torch.no_grad():
            try:
                found = times_us(lambda: function(*arguments), iterations, device)
            except ProfileError as error:
                raise ProfileError(f"{size}: {step}, {contestant}: {error}") from error
        error = relative_error(output, wanted) if step != "quantise" else None
        timings.append(timing(step, contestant, found, calls[step][0], error))

    for name in (OURS, *OTHERS):
        solution = packed(name)
        reason = eligibility.why_skipped(solution, hardware)
        for step, (_, arguments) in calls.items():
            if reason:
                timings.append(Timing(step=step, contestant=name, skipped=reason))
                continue
            measure(step, name, getattr(module_of(solution), FUNCTIONS[step]), arguments)
    for route in ROUTES.get(hardware, ()):
        measure("product", f"{OURS}, route {route}", ours.multiply, (*calls["product"][1], route))
    tile = ours.choose_tile(STAND_IN.get(hardware, hardware), size.m, size.k)
    return CaseProfile(m=size.m, n=size.n, k=size.k, route=tile.route, timings=timings)
