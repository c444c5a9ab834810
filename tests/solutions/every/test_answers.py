"""Every packed solution that this machine can run, built by FIB, gives right answers.

Without a GPU that is the small layer through Triton's interpreter; tests marked `gpu` run the full
one. Solutions that are made for other hardware are skipped.
"""

import gc

import pytest
import torch
from every_solution import (
    FIRST_EXPERT,
    OUTPUT,
    assert_close,
    assert_same_bits,
    cloned,
    expected_output,
    local_experts_of,
    run,
    serving,
    slow,
)
from flashinfer_bench.bench.utils import load_safetensors
from flashinfer_bench.compile import BuilderRegistry
from layer_inputs import DEVICE, reference
from layer_inputs import arguments as layer_arguments
from moebench.judging.calling import input_bytes, seeded_inputs
from moebench.operators import catalogue

FP8_KEYS = [*catalogue.fp8_moe(), *catalogue.routed()]
LAYERS = [key for key in FP8_KEYS if key in catalogue.keys_for_gpu()]
SMALL_CASES = [case.name for case in catalogue.operator("small").cases("small")]

# ---- workloads ----


def workload_inputs(definition, workload, root):
    """Return a workload's inputs, copied: what lies in a mapped file may start at any address."""
    stored = load_safetensors(definition, workload, root)
    (values,) = seeded_inputs(definition, workload, 1, DEVICE, stored)
    return cloned(values)


def check_workload(layer, definition, workload, root):
    values = workload_inputs(definition, workload, root)
    expected = BuilderRegistry.get_instance().build_reference(definition)(*values)
    arguments = dict(zip(definition.inputs, values, strict=True))
    arguments[OUTPUT] = torch.empty_like(expected)

    output = run(layer, arguments)

    must_be_zero = (expected == 0).all(1)  # no local expert, or scales of zero
    assert (output[must_be_zero] == 0).all()
    assert_close(output, expected, workload.uuid)


SECONDS_EACH = [
    "same-eight-local",
    "last-rank-odd-length",
    "first-rank",
    "offset-across-groups",
]
QUICK_ONES = [name for name in SMALL_CASES if name not in SECONDS_EACH]


@serving("small")
@pytest.mark.parametrize("case", [*QUICK_ONES, *map(slow, SECONDS_EACH)])
def test_small_workloads(layer, layer_key, case, records):
    """Catches a wrong answer on a workload chosen to hurt, which would be seen on a GPU only."""
    small = records(layer_key)
    workload = small.workloads[SMALL_CASES.index(case)]
    check_workload(layer, catalogue.definition(layer_key), workload, small.root)


# Harsh scales and the same experts for all tokens are of "small" alone.
QUICK_CASES = {
    "small-one-group": ("one-token", "no-tokens", "none-local"),
    "small-renorm": ("one-token", "no-tokens", "none-local"),
    "small-shared": ("one-token", "none-local", "last-rank-odd-length"),
    "small-routed": ("no-tokens", "slots-without-expert"),
    "small-shared-routed": ("none-local",),
    "small-renorm-routed": ("no-tokens",),
}
LARGER_CASES = (
    "one-expert-takes-all",
    "offset-across-groups",
    "padded-batch",
    "experts-twice",
)
# small-renorm-routed has the rows of small-renorm and the ids of small-routed
WITH_LARGER_CASES = [key for key in QUICK_CASES if key != "small-renorm-routed"]


def run_cases(layer, layer_key, names, recorded):
    cases = catalogue.operator(layer_key).cases(layer_key)
    for case, workload in zip(cases, recorded.workloads, strict=True):
        if case.name in names:
            check_workload(
                layer, catalogue.definition(layer_key), workload, recorded.root
            )


@serving(*QUICK_CASES)
def test_small_workloads_of_the_other_definitions(layer, layer_key, records):
    """Catches sizes or a routing of the first definition in what every definition shares.

    Behind a router: an empty slot that is computed, ids taken for local numbers, gate and up
    swapped.
    """
    run_cases(layer, layer_key, QUICK_CASES[layer_key], records(layer_key))


@pytest.mark.slow
@serving(*WITH_LARGER_CASES)
def test_larger_workloads_of_the_other_definitions(layer, layer_key, records):
    run_cases(layer, layer_key, LARGER_CASES, records(layer_key))


def distance_from(num_tokens):
    """Return how far a workload's tokens are from so many, for min()."""
    return lambda workload: abs(workload.axes["seq_len"] - num_tokens)


def skip_without_memory(layer_key, workload):
    gc.collect()  # weights of the test before, which another layer's caches may hold
    torch.cuda.empty_cache()
    inputs = input_bytes(catalogue.definition(layer_key), workload.axes)
    needed = 5 * sum(inputs.values())
    if torch.cuda.mem_get_info()[0] < needed:
        pytest.skip(f"{layer_key} needs {needed / 1e9:.1f} GB of GPU memory")


@serving(*LAYERS, flashinfer_mono_moe="it takes 8 tokens at most")
# the traces have more
@pytest.mark.parametrize("num_tokens", [slow(1), 64, slow(256), slow(1024)])
def test_workloads_of_every_definition(layer, layer_key, num_tokens, records):
    """Catches a wrong answer at the sizes of another model."""
    recorded = records(layer_key)
    workload = min(recorded.workloads, key=distance_from(num_tokens))
    skip_without_memory(layer_key, workload)
    check_workload(layer, catalogue.definition(layer_key), workload, recorded.root)


# ---- token counts ----


@serving("small")
@pytest.mark.parametrize(
    ("num_tokens", "local_every"), [(130, 32), slow(260, 8), slow(1030, 32)]
)
def test_more_tokens_than_one_chunk_or_tile_choice(
    layer, layer_key, num_tokens, local_every
):
    """What only happens above 128, 256 or 1024 tokens, at any width."""
    arguments = layer_arguments(layer_key, num_tokens)
    # few pairs are local, as an interpreter is slow
    elsewhere = torch.arange(num_tokens, device=DEVICE) % local_every > 0
    arguments["routing_logits"][elsewhere, FIRST_EXPERT : FIRST_EXPERT + 32] -= 4
    assert_close(run(layer, arguments), expected_output(layer_key, arguments))


@serving("full")
@pytest.mark.parametrize("last", [224, 256, 1024, 8192])
def test_neighbours_where_kernels_change(layer, layer_key, last):
    """Catches a wrong answer at the last count of one kernel or the first of the next, of CUDA
    solutions.
    """
    for num_tokens in (last, last + 1):
        arguments = layer_arguments(layer_key, num_tokens)
        expected = expected_output(layer_key, arguments)
        assert_close(run(layer, arguments), expected, f"T={num_tokens}")


FEW_CALLS = ((3, 64), (1, 224), (3, 64))  # tokens, the rank's first expert
MANY_CALLS = ((33, 64), (1, 0), (16, 224), (2, 33), (33, 64))


@serving("full", "small")
@pytest.mark.parametrize("calls", [FEW_CALLS, slow(MANY_CALLS)], ids=["few", "many"])
def test_many_sizes_in_one_process(layer, layer_key, calls):
    """Catches a call that takes over what a call of another size left behind."""
    for num_tokens, offset in calls:
        arguments = layer_arguments(
            layer_key, num_tokens, seed=num_tokens, offset=offset
        )
        expected = expected_output(layer_key, arguments)
        assert_close(run(layer, arguments), expected, f"T={num_tokens}")


@serving("full")
def test_no_tokens(layer, layer_key):
    """Catches a launch of an empty grid, which CUDA refuses."""
    assert run(layer, layer_arguments(layer_key, 0)).shape[0] == 0


@serving(
    "full",
    flashinfer_cutlass="activations are quantised twice: at 131073 tokens 0.8994 at contest, "
    "on an H200; 0.9 is wanted",
)
@pytest.mark.parametrize("num_tokens", [131_072, 131_073])
def test_a_huge_batch_is_right_or_refused(layer, layer_key, num_tokens):
    """Catches an offset that no longer fits in 32 bits, hence wrong rows or a crash in the GPU."""
    arguments = layer_arguments(layer_key, num_tokens)
    try:
        output = run(layer, arguments)
    except ValueError as error:
        assert str(error).startswith("routing_logits: ")
        assert str(num_tokens) in str(error)
        assert arguments[OUTPUT].isnan().all()
        return

    assert torch.isfinite(output).all()
    sample = torch.linspace(0, num_tokens - 1, 64, device=DEVICE).long()
    sampled = dict(arguments)
    sampled["routing_logits"] = arguments["routing_logits"][sample]
    sampled["hidden_states"] = arguments["hidden_states"][sample]
    sampled["hidden_states_scale"] = arguments["hidden_states_scale"][:, sample]
    assert_close(output[sample], expected_output(layer_key, sampled))


# ---- what a call leaves ----


ROW_COUNTS = [
    9,
    pytest.param(700, marks=pytest.mark.gpu),
    pytest.param(9000, marks=pytest.mark.gpu),
]


@serving("full", "small")
@pytest.mark.parametrize("every_second", [False, True])
@pytest.mark.parametrize("num_tokens", ROW_COUNTS)
def test_rows_without_a_local_expert_are_zero(
    layer, layer_key, num_tokens, every_second
):
    """Catches old memory, here NaN, in rows that this rank adds nothing to."""
    arguments = layer_arguments(layer_key, num_tokens)
    lowered = slice(1, None, 2) if every_second else slice(None)
    last = FIRST_EXPERT + local_experts_of(layer_key)
    arguments["routing_logits"][lowered, FIRST_EXPERT:last] = -20
    nowhere = (chosen_local_experts(layer_key, arguments) < 0).all(1)
    assert nowhere[lowered].all()
    assert nowhere.all() != every_second

    output = run(layer, arguments)

    is_zero = output == 0
    assert is_zero[nowhere].all()
    assert not is_zero[~nowhere].all(1).any()


@serving("full")
def test_same_call_same_bits(layer, layer_key):
    """Catches results that differ from run to run, as sums by atomics do; on a GPU alone."""
    arguments = layer_arguments(layer_key, 21)
    first = run(layer, arguments)
    for _ in range(20):
        assert_same_bits(run(layer, arguments), first)


@serving("full", "small")
def test_inputs_are_left_alone(layer, layer_key):
    """Catches an argument that a kernel scribbled on."""
    arguments = layer_arguments(layer_key, 5)
    before = dict(zip(arguments, cloned(arguments.values()), strict=True))

    run(layer, arguments)

    for name, value in arguments.items():
        if torch.is_tensor(value) and name != OUTPUT:
            assert torch.equal(
                value.view(torch.uint8), before[name].view(torch.uint8)
            ), name


OTHER_SCALARS = {"local_expert_offset": 80, "routed_scaling_factor": 1.25}


@serving("full", "small")
@pytest.mark.parametrize(
    "together", [True, slow(False)], ids=["together", "one by one"]
)
def test_tensors_changed_in_place_change_the_answer(layer, layer_key, together):
    """Catches an answer remembered by address, wrong from the second call on."""
    num_tokens = 2 if together else 5
    arguments = layer_arguments(layer_key, num_tokens)
    other = layer_arguments(layer_key, num_tokens, seed=1) | OTHER_SCALARS
    names = [name for name in arguments if name != OUTPUT]
    changes = [[name] for name in names]
    if together:
        changes = [names]

    before = run(layer, arguments)
    for changed in changes:
        for name in changed:
            if torch.is_tensor(arguments[name]):
                arguments[name].copy_(other[name])
            else:
                arguments[name] = other[name]
        after = run(layer, arguments)
        assert not torch.equal(after, before), f"a change of {changed} changed nothing"
        assert_close(after, expected_output(layer_key, arguments), changed)
        before = after


# ---- NaN ----


# of the interpreter's tl.max
@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")
@serving("small")
@pytest.mark.parametrize("code", [0x7F, 0xFF])
@pytest.mark.parametrize("name", ["hidden_states", "gemm1_weights", "gemm2_weights"])
def test_nan_reaches_the_output(layer, layer_key, name, code):
    """Catches a broken activation or weight that gives a finite answer, as if its code were 480."""
    arguments = layer_arguments(layer_key, 3)
    chosen = chosen_local_experts(layer_key, arguments)
    token, slot = (chosen >= 0).nonzero()[0].tolist()
    expert = chosen[token, slot]
    place = (token, 5) if name == "hidden_states" else (expert, 130, 5)
    arguments[name].view(torch.uint8)[place] = code
    expected = expected_output(layer_key, arguments).isnan()
    assert expected[token].any()
    assert not expected.all()

    output = run(layer, arguments)

    assert torch.equal(output.isnan(), expected)


def chosen_local_experts(layer_key, arguments):
    """Return the chosen experts by their numbers on this rank, [T, top_k]; -1 of another's."""
    route = reference(layer_key).route
    experts, _ = route(arguments["routing_logits"], arguments["routing_bias"], 1.0)
    local = experts - arguments["local_expert_offset"]
    is_local = (local >= 0) & (local < local_experts_of(layer_key))
    return torch.where(is_local, local, -1)
