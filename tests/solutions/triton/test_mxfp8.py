"""The MXFP8 linear layer: its reference, each step against its plain statement, and the whole.

On a GPU the steps run there, and the `cpu` cases step aside, because Triton compiles for the one or
the other.
"""

import ahead_of_time
import committed_workloads
import pytest
import torch
from every_solution import each_device, relative_error, slow
from flashinfer_bench.compile import BuilderRegistry
from layer_inputs import arguments as layer_arguments
from moebench.operators import catalogue
from moebench.operators import mxfp8_linear as mx
from moebench.packing import manifest
from random_values import Draw

from solutions.triton_mxfp8.tiles import ROUTES, TABLE, Tile

pytestmark = pytest.mark.filterwarnings(
    "ignore:(overflow|invalid value) encountered:RuntimeWarning"
)


def operands(m, n, k, device):
    """Return x [m, k] bfloat16, weight [n, k] float8_e4m3fn, weight_scale [n, k/32] int8."""
    draw = Draw(device, m)
    num_groups = k // mx.GROUP

    x = draw.normal(m, k).bfloat16()
    weight = draw.fp8(n, k)
    weight_scale = draw.integers(118, 124, n, num_groups, dtype=torch.int8)
    return x, weight, weight_scale


def empty(rows, columns, device, dtype=torch.bfloat16):
    """Return an output full of NaN."""
    return torch.full((rows, columns), torch.nan, dtype=dtype, device=device)


@pytest.fixture
def module(packed_module):
    """A function of a name that returns that module of triton_mxfp8."""
    return lambda name="main": packed_module("triton_mxfp8", name)


def assert_same_values(output, expected):
    """Check dtypes and values, NaN where NaN."""
    torch.testing.assert_close(output, expected, rtol=0, atol=0, equal_nan=True)


# ---- the definition ----


@pytest.mark.parametrize("layer_key", mx.LAYER_SIZES)
def test_the_reference_computes_the_product(layer_key):
    """FIB runs it as a module of its own, with nothing of this repository in reach."""
    inputs = layer_arguments(layer_key, 5, "cpu")
    expected_dtype = inputs.pop("output").dtype
    layer = catalogue.definition(layer_key)
    run = BuilderRegistry.get_instance().build_reference(layer)

    output = run(*inputs.values())

    assert output.dtype == expected_dtype
    assert output.any()
    product = mx.product(*inputs.values())
    assert torch.equal(output, product.to(expected_dtype))


CONVERSIONS = [  # values of a group, its scale's byte and their codes, by hand from the format
    ([448.0, 17.0, 19.0, -19.0], 127, [0x7E, 0x58, 0x5A, 0xDA]),  # ties to even
    ([448.0, 2.0**-10, 3 * 2.0**-10], 127, [0x7E, 0x00, 0x02]),
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
    """Catches a scale off by one at a power of two, ties rounded up, overflow to NaN."""
    padding = [0.0] * (mx.GROUP - len(values))
    group = torch.tensor([values + padding], dtype=torch.bfloat16)

    quantised, scales = mx.quantise(group)

    assert scales.tolist() == [[scale]]
    (code_bytes,) = quantised.view(torch.uint8).tolist()
    assert code_bytes[: len(codes)] == codes


# ---- steps ----

# 1, just above, 1.75 (448), halfway to what 480 would be, just above that, just below 2
SIGNIFICANDS = (0, 1, 64, 95, 96, 97, 104, 105, 112, 126, 127)


def groups_of_every_size():
    """Return [groups, 32] bf16: a group for every exponent and each significand about which
    rounding or saturation turns.
    """
    draw = Draw("cpu")
    # of a group's largest value; 0: zero and subnormal; 255: Inf and NaN
    exponents = torch.arange(256)
    significands = torch.tensor(SIGNIFICANDS)
    pairs = torch.cartesian_prod(exponents, significands)
    exponent, significand = pairs.split(1, dim=1)
    largest = exponent << 7 | significand
    shape = (len(largest), mx.GROUP)

    steps_below = draw.integers(0, 22, *shape)
    other_exponents = (exponent - steps_below).clamp(min=0)
    mostly_ties = draw.integers(0, 128, *shape)
    mostly_ties &= draw.integers(0, 128, *shape)
    others = other_exponents << 7 | mostly_ties

    groups = torch.minimum(others, largest)
    groups[:, 7:8] = largest
    is_negative = draw.integers(0, 2, *shape)
    groups |= is_negative << 15

    plus_and_minus_zero = torch.tensor([[0], [1 << 15]]).expand(2, mx.GROUP)
    bits = torch.cat([groups, plus_and_minus_zero])
    return bits.to(torch.uint16).view(torch.bfloat16)


def assert_same_codes(output, expected):
    """Check codes and scales; the sign of a NaN is free."""
    codes, scales = output
    expected_codes, expected_scales = expected
    is_nan = expected_codes.isnan()
    code_bytes = codes.view(torch.uint8).masked_fill(is_nan, 0)
    expected_bytes = expected_codes.view(torch.uint8).masked_fill(is_nan, 0)

    assert torch.equal(scales, expected_scales)
    assert torch.equal(codes.isnan(), is_nan)
    assert torch.equal(code_bytes, expected_bytes)


@each_device
def test_group_quantise_at_every_exponent(module, device):
    """Catches codes that differ from the format's at some size of the activations."""
    x = groups_of_every_size().to(device)
    step = module("group_quantise")
    expected = step.group_quantise_ref(x)

    assert expected[0].isnan().any()
    assert_same_codes(step.group_quantise(x), expected)
    assert_same_codes(mx.quantise(x), expected)


@each_device
def test_group_round_is_quantise_and_expand(module, device):
    """Catches a `run` that differs from its own two steps."""
    x = groups_of_every_size().to(device)
    step = module("group_quantise")
    expected = module("expand").expand_ref(*step.group_quantise_ref(x))
    assert_same_values(step.group_round(x), expected)


@each_device
def test_expand_every_code_with_every_scale(module, device):
    """Catches weights changed by the route through bf16, which calls itself exact."""
    step = module("expand")
    every_byte = torch.arange(256, dtype=torch.uint8, device=device)
    # a row has one scale, and in its 64 groups every code eight times
    codes = every_byte.view(torch.float8_e4m3fn).repeat(256, 8)
    scales = every_byte[:, None].repeat(1, 64)

    output = step.expand(codes, scales)

    assert_same_values(output, step.expand_ref(codes, scales))
    exact = step.expand_ref(codes, scales, torch.float32)
    smallest_normal = torch.finfo(torch.float32).tiny
    is_normal = exact.isfinite() & (exact.abs() >= smallest_normal)
    assert is_normal.float().mean() > 0.8
    assert torch.equal(output.float()[is_normal], exact[is_normal])


PRODUCTS = [
    Tile("bf16", "raw", 16, 64, 128, 8, 3, 4, 3),
    Tile("bf16", "raw", 32, 128, 64, 1, 1, 4, 3),
    Tile("bf16", "values", 64, 64, 128, 2, 2, 4, 3),
    Tile("bf16", "values", 16, 32, 256, 8, 1, 4, 3),
    Tile("library", "values"),
    Tile("fp8", "codes", 16, 64, 32, 8, 1, 4, 3),
    Tile("fp8", "codes", 64, 128, 32, 3, 5, 4, 3),
]
OUTPUTS = [(128, torch.bfloat16), slow(256, torch.bfloat16), slow(256, torch.float16)]
HALF_STEP = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
# Hopper's FP8 sums have about 14 bits; else another order of a sum
NOISE = {"fp8": 2.0**-9}


def assert_product(output, expected, route):
    size = expected.square().mean().sqrt().item()
    noise = NOISE.get(route, 1e-4) * size
    half_step = HALF_STEP[output.dtype]
    torch.testing.assert_close(output.float(), expected, rtol=half_step, atol=noise)


def tile_id(tile):
    return "-".join(map(str, tile))


@each_device
@pytest.mark.parametrize(("n", "dtype"), OUTPUTS)
@pytest.mark.parametrize("tile", PRODUCTS, ids=tile_id)
def test_product(module, device, tile, n, dtype):
    """Catches scales of another row or group, a tile or part of K left out, stores beyond M."""
    step = module("block_scaled_matmul")
    quantise = module("group_quantise")
    num_rows = 37
    x, weight, scale = operands(num_rows, n, 512, device)
    scale = scale.view(torch.uint8)
    codes, scales = quantise.group_quantise_ref(x)
    forms = [(codes, scales)]
    if tile.x == "raw":
        forms.append((x, None))
    if tile.x == "values":
        forms.append((quantise.group_round(x), None))

    expected = step.block_scaled_matmul_ref(codes, scales, weight, scale, torch.float32)
    for values, values_scales in forms:
        with_row_beyond = empty(num_rows + 1, n, device, dtype)
        output, row_beyond = with_row_beyond.split([num_rows, 1])
        step.block_scaled_matmul(values, values_scales, weight, scale, output, tile)

        assert_product(output, expected, tile.route)
        assert row_beyond.isnan().all()


# ---- the whole ----


@each_device
def test_scale_nan_makes_its_row_nan(module, device):
    """Catches a broken weight scale that passes for infinity, or for a large number."""
    x, weight, scale = operands(3, 128, 256, device)
    scale.view(torch.uint8)[5, 3] = 255
    output = torch.zeros(3, 128, dtype=torch.bfloat16, device=device)

    module().run(x, weight, scale, output)

    assert output[:, 5].isnan().all()
    assert output.isnan().sum() == 3


@each_device
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 37, slow(65)])
def test_linear_is_its_two_steps(module, device, rows, dtype):
    """Catches a linear layer that does not multiply what `quantise` returns."""
    main = module()
    x, weight, scale = operands(rows, 128, 384, device)
    output = empty(rows, 128, device, dtype)
    stepwise = empty(rows, 128, device, dtype)

    main.run(x, weight, scale, output)
    codes, scales = main.quantise(x)
    main.multiply(codes, scales, weight, scale, stepwise)

    assert torch.equal(output, stepwise)
    assert relative_error(output, mx.product(x, weight, scale)) <= 4e-3


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 16, 64, 512, 2048, 8192])
def test_full_width(module, rows):
    """Catches a wrong result at the sizes that the pages quote."""
    sizes = mx.LAYER_SIZES["mxfp8"]
    x, weight, scale = operands(rows, sizes["n"], sizes["k"], "cuda")
    output = empty(rows, sizes["n"], "cuda")

    module().run(x, weight, scale, output)

    assert relative_error(output, mx.product(x, weight, scale)) <= 3e-3


BAD = [
    ("x", None),
    ("x", torch.ones(4, 256).half()),
    ("x", torch.ones(4, 96).bfloat16()),  # k is no multiple of 128
    ("x", torch.ones(256, 4).bfloat16().t()),
    ("weight", torch.ones(100, 256).to(torch.float8_e4m3fn)),
    ("weight_scale", torch.ones(128, 2, dtype=torch.int8)),
    ("output", torch.empty(4, 128)),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_input_is_named(module, name, value):
    x, weight, scale = operands(4, 128, 256, "cpu")
    output = torch.empty(4, 128, dtype=torch.bfloat16)
    arguments = {"x": x, "weight": weight, "weight_scale": scale, "output": output}
    with pytest.raises(ValueError, match=f"^{name}: "):
        module().run(**arguments | {name: value})


@pytest.mark.parametrize(
    ("choice", "name"),
    [(("sm_80", 1, 7168), "architecture"), (("sm_90", 1, 7168, "native"), "route")],
)
def test_unknown_architecture_and_route_are_named(module, choice, name):
    with pytest.raises(ValueError, match=f"^{name}: "):
        module().choose_tile(*choice)


# ---- ahead of time ----


def tabled_rows():
    """Return numbers of rows on both sides of every border of the tables."""
    rows = {1, 80, 8192}
    for table in [*TABLE.values(), *ROUTES.values()]:
        for limit, _ in table:
            if limit is not None:
                rows.update([limit, limit + 1])
    return sorted(rows)


def assert_quick(product, architecture):
    """Check that a product uses the newest tensor cores, unless it is narrow, and copies by TMA."""
    assert product["bulk_tensor_copy"], product
    if architecture != "sm_90":
        assert product["block_scaled_mma"], product
    elif product["constants"]["BLOCK_N"] >= 64:
        assert product["wgmma"], product


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ROUTES)
def test_every_chosen_tile_compiles_and_fits(architecture, tmp_path):
    """Catches a first call that dies in the compiler, or at launch for want of shared memory.

    Also a slow product on a Hopper GPU, or SM100's block-scaled tensor cores idle.
    """
    kernels = ahead_of_time.compiled(
        "triton_mxfp8", "mxfp8", architecture, tabled_rows(), tmp_path
    )

    stages = manifest.read_manifest("triton_mxfp8").stages
    for kernel in kernels:
        assert kernel["kernel"] in stages
        assert kernel["shared"] <= ahead_of_time.SHARED_MEMORY[architecture], kernel
        assert not kernel["stack"], kernel
        if kernel["kernel"] == "block_scaled_matmul_kernel":
            assert_quick(kernel, architecture)


# ---- the baseline and the bound ----


def test_swizzled_scales_lie_as_documented(packed_module):
    """cuBLAS states the layout: tiles of 128 rows and 4 groups, in which rows r, r + 32, r + 64 and
    r + 96 lie together.
    """
    swizzled = packed_module("torch_scaled_mxfp8", "main").swizzled
    scales = Draw("cpu").integers(1, 255, 256, 8, dtype=torch.uint8)

    output = swizzled(scales).view(torch.uint8)

    assert torch.equal(output.flatten(), in_tiles(scales))

    # rows and groups that fill no tile
    scales[200:] = 0
    scales[:, 6:] = 0
    expected = in_tiles(scales)
    is_scale = expected > 0
    output = swizzled(scales[:200, :6]).view(torch.uint8)
    assert torch.equal(output.flatten()[is_scale], expected[is_scale])


def in_tiles(scales):
    """Return scales [256, 8] in that layout."""
    row_tiles, row_quarters, rows, group_tiles, groups = range(5)
    split = scales.view(2, 4, 32, 2, 4)
    swizzled = split.permute(row_tiles, group_tiles, rows, row_quarters, groups)
    return swizzled.flatten()


def test_bound_counts_every_byte_once():
    m = 16
    n = 4096
    k = 7168
    cases = {case.seq_len: case for case in mx.Mxfp8Linear().cases("mxfp8")}
    bound = committed_workloads.bound("mxfp8", cases[m].uuid)

    weight_bytes = n * k
    scale_bytes = n * k // 32
    bf16_bytes = 2 * m * (k + n)
    assert bound.bytes == weight_bytes + scale_bytes + bf16_bytes
    assert bound.flops == 2 * m * n * k
