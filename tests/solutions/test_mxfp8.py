"""The MXFP8 linear layer: its definition and workloads, each step against its plain statement, and
the whole.

On a GPU the steps run there, and the `cpu` cases step aside, because Triton compiles for the one or
the other.
"""

import ahead_of_time
import committed_workloads
import pytest
import torch
from flashinfer_bench import Definition
from flashinfer_bench.compile import BuilderRegistry
from moebench.core import paths
from moebench.operators import catalogue, mxfp8_linear
from moebench.operators import mxfp8_linear as mx
from moebench.packing import manifest

from solutions.triton_mxfp8.tiles import ROUTES, TABLE, Tile

GEOMETRIES = list(mx.GEOMETRIES)
LIMITS = sorted(
    {limit for rows in [*TABLE.values(), *ROUTES.values()] for limit, _ in rows if limit}
)
ROWS = tuple(sorted({1, 80, 8192} | {n for limit in LIMITS for n in (limit, limit + 1)}))

pytestmark = [
    pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
]
interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="Triton compiles for the GPU in this process"
)
devices = [pytest.param("cpu", marks=interpreted), pytest.param("cuda", marks=pytest.mark.gpu)]
on_device = pytest.mark.parametrize("device", devices)


def operands(m, n, k, device):
    """x [m, k] bfloat16, weight [n, k] float8_e4m3fn, weight_scale [n, k/32] int8, from a seed."""
    generator = torch.Generator(device).manual_seed(m)
    x = torch.randn(m, k, generator=generator, device=device).bfloat16()
    weight = torch.randn(n, k, generator=generator, device=device).to(torch.float8_e4m3fn)
    scale = torch.randint(
        118, 124, (n, k // mx.GROUP), generator=generator, device=device, dtype=torch.int8
    )
    return x, weight, scale


@pytest.fixture
def module(packed_module):
    """Name of a module -> that module of triton_mxfp8."""
    return lambda name="main": packed_module("triton_mxfp8", name)


# ---- the definition ----


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_committed_json_is_what_the_source_generates(geometry):
    """FIB runs its reference as a module of its own, with nothing of this repository in reach."""
    text = paths.definition_file(mx.definition_name(geometry)).read_text(encoding="utf-8")
    assert text == mx.definition(geometry).model_dump_json(indent=2, exclude_unset=True) + "\n"
    sizes = mx.GEOMETRIES[geometry]
    x, weight, scale = operands(5, sizes["n"], sizes["k"], "cpu")
    found = BuilderRegistry.get_instance().build_reference(Definition.model_validate_json(text))(
        x, weight, scale
    )
    assert found.dtype == getattr(torch, sizes.get("out", "bfloat16"))
    assert torch.equal(found, mx.product(x, weight, scale).to(found.dtype)) and found.any()


def edges():
    """[groups, 32] bf16: a group for every exponent and each significand about which rounding or
    saturation turns.
    """
    exponents = torch.arange(256, dtype=torch.int32)
    # 1, just above 1, 1.75 (448), halfway to what 480 would be, just above that, just below 2
    mantissas = torch.tensor([0, 1, 64, 95, 96, 97, 104, 105, 112, 126, 127], dtype=torch.int32)
    largest = (
        exponents[:, None] << 7 | mantissas[None, :]
    ).flatten()  # exponent 0: zero and subnormal, 255: Inf, NaN
    generator = torch.Generator().manual_seed(0)
    below = torch.randint(0, 22, (len(largest), 32), generator=generator, dtype=torch.int32)
    bits = torch.randint(0, 128, (len(largest), 32), generator=generator, dtype=torch.int32)
    bits = bits & torch.randint(
        0, 128, (len(largest), 32), generator=generator, dtype=torch.int32
    )  # ties are common
    groups = torch.clamp((largest[:, None] >> 7) - below, min=0) << 7 | bits
    groups = torch.minimum(groups, largest[:, None])
    groups[:, 7] = largest
    groups |= torch.randint(0, 2, groups.shape, generator=generator, dtype=torch.int32) << 15
    zeros = torch.zeros(2, 32, dtype=torch.int32)
    zeros[1] = 1 << 15  # minus zero
    return torch.cat([groups, zeros]).to(torch.uint16).view(torch.bfloat16)


CONVERSIONS = [  # values of a group, its scale's byte and their codes, by hand from the format
    (
        [448.0, 17.0, 19.0, -19.0, 2.0**-10, 3 * 2.0**-10],
        127,
        [0x7E, 0x58, 0x5A, 0xDA, 0x00, 0x02],
    ),  # ties to even
    ([-480.0, 504.0], 127, [0xFE, 0x7E]),  # saturates
    ([512.0, 1.0], 128, [0x78, 0x30]),
    ([1.0, -1.0], 119, [0x78, 0xF8]),
    ([2.0**128 - 2.0**120], 246, [0x7E]),  # the largest of bf16
    ([2.0**-133], 0, [0x08]),  # the smallest
    ([0.0, -0.0], 0, [0x00, 0x80]),
    ([float("inf"), 1.0], 255, [0x7F, 0x7F]),
]


@pytest.mark.parametrize(("values", "scale", "codes"), CONVERSIONS)
def test_reference_quantises_as_the_format_says(values, scale, codes):
    """A scale off by one at a power of two, ties rounded up, overflow to NaN
    instead of 448.
    """
    found, scales = mx.quantise(
        torch.tensor([values + [0.0] * (mx.GROUP - len(values))]).bfloat16()
    )
    assert (
        scales.tolist() == [[scale]] and found[0, : len(codes)].view(torch.uint8).tolist() == codes
    )


# ---- steps ----


@on_device
def test_group_quantise_at_every_exponent(module, device):
    """Codes that differ from the format's at some size of the activations."""
    x = edges().to(device)
    found, wanted = (
        module("group_quantise").group_quantise(x),
        module("group_quantise").group_quantise_ref(x),
    )
    assert torch.equal(found[1], wanted[1])
    nan = wanted[0].isnan()
    assert torch.equal(found[0].isnan(), nan) and nan.any()
    assert torch.equal(found[0].view(torch.uint8)[~nan], wanted[0].view(torch.uint8)[~nan])
    definition = mx.quantise(x)
    assert torch.equal(definition[1], wanted[1])
    assert torch.equal(definition[0].view(torch.uint8)[~nan], wanted[0].view(torch.uint8)[~nan])


def same_values(found, wanted):
    """Equal, NaN where NaN."""
    assert found.dtype == wanted.dtype and torch.equal(found.isnan(), wanted.isnan())
    assert torch.equal(found.nan_to_num(), wanted.nan_to_num())


@on_device
def test_expand_every_code_with_every_scale(module, device):
    """Weights changed by the route through bf16, which calls itself exact."""
    byte = torch.arange(256, dtype=torch.uint8)
    codes = byte.repeat(8).view(torch.float8_e4m3fn)
    groups = torch.arange(256, dtype=torch.uint8).repeat_interleave(len(codes) // 32)
    codes, scales = codes.repeat(256, 1).to(device), groups.view(256, -1).to(device)
    found = module("expand").expand(codes, scales)
    wanted = module("expand").expand_ref(codes, scales)
    same_values(found, wanted)
    in_fp32 = module("expand").expand_ref(codes, scales, torch.float32)
    kept = in_fp32.isfinite() & (in_fp32.abs() >= 2.0**-126)
    assert torch.equal(wanted.float()[kept], in_fp32[kept]) and kept.float().mean() > 0.8


@on_device
def test_group_round_is_quantise_and_expand(module, device):
    """A user would miss: `run` disagreeing with its own two steps."""
    x = edges().to(device)
    found = module("group_quantise").group_round(x)
    same_values(found, module("expand").expand_ref(*module("group_quantise").group_quantise_ref(x)))


SLOW_256 = [
    pytest.param(256, dtype, marks=pytest.mark.slow) for dtype in (torch.bfloat16, torch.float16)
]
PRODUCTS = [
    Tile("bf16", "raw", 16, 64, 128, 8, 3, 4, 3),
    Tile("bf16", "raw", 32, 128, 64, 1, 1, 4, 3),
    Tile("bf16", "values", 64, 64, 128, 2, 2, 4, 3),
    Tile("bf16", "values", 16, 32, 256, 8, 1, 4, 3),
    Tile("library", "values"),
    Tile("fp8", "codes", 16, 64, 32, 8, 1, 4, 3),
    Tile("fp8", "codes", 64, 128, 32, 3, 5, 4, 3),
]


@on_device
@pytest.mark.parametrize(("n", "dtype"), [(128, torch.bfloat16), *SLOW_256])
@pytest.mark.parametrize("tile", PRODUCTS, ids=lambda tile: "-".join(map(str, tile)))
def test_product(module, device, tile, n, dtype):
    """A scale of another row or group, a tile or a share of K left out, rows
    beyond M stored.
    """
    matmul, quantise = module("block_scaled_matmul"), module("group_quantise")
    x, weight, scale = operands(37, n, 512, device)
    scale = scale.view(torch.uint8)
    codes, scales = quantise.group_quantise_ref(x)
    wanted = matmul.block_scaled_matmul_ref(codes, scales, weight, scale, torch.float32)
    given = [(codes, scales)]
    if tile.x != "codes":
        given.append((quantise.group_round(x) if tile.x == "values" else x, None))
    for operand, its_scales in given:
        room = torch.full((38, n), torch.nan, dtype=dtype, device=device)
        matmul.block_scaled_matmul(operand, its_scales, weight, scale, room[:37], tile)
        assert room[37].isnan().all()
        # half a step of the output; what sums in another order differ by, and Hopper's FP8 sums of
        # about 14 bits
        half_step = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
        noise = (2.0**-9 if tile.route == "fp8" else 1e-4) * wanted.square().mean().sqrt()
        error = (room[:37].float() - wanted).abs() - half_step * wanted.abs() - noise
        assert error.max() <= 0, f"over the tolerance by {error.max():g}"


@on_device
def test_scale_nan_makes_its_row_nan(module, device):
    """A broken weight scale that passes for infinity, or for a large number."""
    x, weight, scale = operands(3, 128, 256, device)
    scale.view(torch.uint8)[5, 3] = 255
    output = torch.zeros(3, 128, dtype=torch.bfloat16, device=device)
    module().run(x, weight, scale, output)
    assert output[:, 5].isnan().all() and output.isnan().sum() == 3


@on_device
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 37, pytest.param(65, marks=pytest.mark.slow)])
def test_linear_is_its_two_steps(module, device, rows, dtype):
    """A linear layer that does not multiply what `quantise` returns."""
    x, weight, scale = operands(rows, 128, 384, device)
    whole, stepwise = (
        torch.full((rows, 128), torch.nan, dtype=dtype, device=device) for _ in range(2)
    )
    module().run(x, weight, scale, whole)
    module().multiply(*module().quantise(x), weight, scale, stepwise)
    assert whole.isfinite().all() and torch.equal(whole, stepwise)
    wanted = mx.product(x, weight, scale)
    assert (whole.float() - wanted).norm() <= 4e-3 * wanted.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 16, 64, 512, 2048, 8192])
def test_full_width(module, rows):
    """A wrong result at the sizes that the pages quote."""
    n, k = mx.GEOMETRIES["mxfp8"].values()
    x, weight, scale = operands(rows, n, k, "cuda")
    output = torch.full((rows, n), torch.nan, dtype=torch.bfloat16, device="cuda")
    module().run(x, weight, scale, output)
    wanted = mx.product(x, weight, scale)
    assert output.isfinite().all() and (output.float() - wanted).norm() <= 3e-3 * wanted.norm()


# ---- bad input ----


BAD = {
    "x": [
        None,
        torch.ones(4, 256).half(),
        torch.ones(4, 96).bfloat16(),  # k is no multiple of 128
        torch.ones(256, 4).bfloat16().t(),
    ],
    "weight": [torch.ones(100, 256).to(torch.float8_e4m3fn)],
    "weight_scale": [torch.ones(128, 2, dtype=torch.int8)],
    "output": [torch.empty(4, 128)],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD.items() for value in values]
)
def test_bad_input_is_named(module, name, value):
    """Which argument it was."""
    x, weight, scale = operands(4, 128, 256, "cpu")
    given = {
        "x": x,
        "weight": weight,
        "weight_scale": scale,
        "output": torch.empty(4, 128, dtype=torch.bfloat16),
    }
    with pytest.raises(ValueError, match=f"^{name}: "):
        module().run(**given | {name: value})


def test_unknown_architecture_and_route_are_named(module):
    with pytest.raises(ValueError, match="^architecture: .*sm_80"):
        module().choose_tile("sm_80", 1, 7168)
    with pytest.raises(ValueError, match="^route: .*native"):
        module().choose_tile("sm_90", 1, 7168, "native")


# ---- ahead of time ----


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ROUTES)
def test_every_chosen_tile_compiles_and_fits(architecture, tmp_path):
    """The first call at some M dies in the compiler, or at launch for want of
    shared memory.

    Also a slow product on a Hopper GPU, or SM100's block-scaled tensor cores idle.
    """
    found = ahead_of_time.compiled("triton_mxfp8", "mxfp8", architecture, ROWS, tmp_path)
    products = [k for k in found if k["kernel"] == "block_scaled_matmul_kernel"]
    routes = {name for _, name in ROUTES[architecture]} - {"library"}
    assert {k["constants"]["ROUTE"] for k in products} == routes
    assert {k["kernel"] for k in found} <= set(manifest.read_manifest("triton_mxfp8").stages)
    room = ahead_of_time.SHARED_MEMORY[architecture]
    over = [k for k in found if k["shared"] > room or k["stack"]]
    assert not over, over
    for k in products:
        quick = (
            k["wgmma"] or k["constants"]["BLOCK_N"] < 64
            if architecture == "sm_90"
            else k["block_scaled_mma"]
        )
        assert quick and k["bulk_tensor_copy"], k


# ---- baselines and workloads ----


def test_swizzled_scales_lie_as_documented(packed_module):
    """Torch's product reading the scale of another row. The layout is the one
    that cuBLAS states.
    """
    scales = torch.randint(
        0, 255, (200, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    found = packed_module("torch_scaled_mxfp8", "main").swizzled(scales).view(torch.uint8).tolist()
    assert len(found) == 256 * 8
    for row in (0, 1, 31, 32, 100, 127, 128, 199):
        for group in range(6):
            tile = row // 128 * 2 + group // 4
            inside = row % 32 * 16 + row % 128 // 32 * 4 + group % 4
            assert found[tile * 512 + inside] == scales[row, group]


def test_bound_counts_every_byte_once():
    case = next(case for case in mxfp8_linear.cases("mxfp8") if case.seq_len == 16)
    least = committed_workloads.bound("mxfp8", case.uuid)
    assert (
        least.bytes == 4096 * 7168 + 4096 * 224 + 2 * 16 * (7168 + 4096)
        and least.flops == 2 * 16 * 4096 * 7168
    )
    assert catalogue.geometry_named("mxfp8_linear_n4096_k7168") == "mxfp8"
