"""Every packed solution that this machine can run, built by FIB, as a whole.

Without a GPU that is the small geometry through Triton's interpreter; tests marked `gpu` run the
full one. Solutions that are made for other hardware are skipped, but for their source check.
"""

import ast
import gc

import pytest
import torch
from flashinfer_bench import Trace
from flashinfer_bench.bench.utils import load_safetensors
from flashinfer_bench.compile import BuilderRegistry
from flashinfer_bench.data import load_jsonl_file
from layer_inputs import DEVICE
from layer_inputs import arguments as arguments_of
from moebench.core import paths
from moebench.judging.calling import input_bytes, seeded_inputs
from moebench.judging.tolerances import TOLERANCES, matched_ratios
from moebench.operators import catalogue, workloads
from moebench.operators import moe_fp8_block_scale as moe
from moebench.operators.catalogue import FP8_MOE, FULL, ROUTED
from moebench.operators.moe_fp8_block_scale import cases, public_cases
from moebench.packing import eligibility, manifest, pack

SOLUTIONS = manifest.solution_names()
OUTPUT = "output"
EXPERTS, LOCAL = (
    moe.geometries()["full"][size] for size in ("num_experts", "num_local_experts")
)  # as in "small"
LAYERS = [key for key in (*FP8_MOE, *ROUTED) if key in FULL]
BIG = max(case.seq_len for case in public_cases())


@pytest.fixture(scope="session")
def records(tmp_path_factory):
    """Geometry -> (folder with the blobs, workloads by token count and by case name)."""
    made = {}

    def get(geometry):
        if geometry not in made:
            root = tmp_path_factory.mktemp(geometry)
            workloads.make(geometry, root)
            path = paths.workload_file(catalogue.definition_name(geometry), root)
            made[geometry] = root, [t.workload for t in load_jsonl_file(Trace, path)]
        return made[geometry]

    return get


def at(*geometries, **known):
    """Run a test for every solution that serves one of these geometries.

    known: solution -> why it may fail, for what another project's kernels do or want.
    """
    fails = AssertionError, ValueError
    of_name = {name: [pytest.mark.xfail(reason=why, raises=fails)] for name, why in known.items()}
    of_name["torch_moe"] = [
        *of_name.get("torch_moe", []),
        pytest.mark.slow,
    ]  # `make bench` judges it
    served = [
        pytest.param(
            name,
            geometry,
            marks=[*([pytest.mark.gpu] if geometry in FULL else []), *of_name.get(name, [])],
        )
        for name in SOLUTIONS
        for geometry in geometries
        if geometry in manifest.read_manifest(name).definitions
    ]
    return pytest.mark.parametrize(("solution", "geometry"), served)


@pytest.fixture
def layer(solution, geometry):
    """The runnable that FIB builds of a packed solution."""
    packed = pack.pack(solution)[geometry]
    if reason := eligibility.why_skipped(packed, eligibility.here()):
        pytest.skip(f"{solution} {reason}")
    runnable = BuilderRegistry.get_instance().build(catalogue.definition(geometry), packed)
    assert runnable.metadata.destination_passing_style
    return runnable


def slow(*values):
    """A case of the slow set."""
    return pytest.param(*values, marks=pytest.mark.slow)


def reference(arguments):
    return moe.run(**{name: value for name, value in arguments.items() if name != OUTPUT})


def run(layer, arguments):
    """A fresh output, which held NaN before the call."""
    output = torch.full_like(arguments[OUTPUT], torch.nan)
    layer(*(arguments | {OUTPUT: output}).values())
    return output


def assert_close(output, wanted, of=""):
    """Inside relaxed and contest; returns the three ratios."""
    assert torch.isfinite(output).all()
    ratios = matched_ratios(output, wanted)
    for name in ("relaxed", "contest"):
        assert ratios[name] >= TOLERANCES[name].ratio, f"{of}: {ratios}"
    return ratios


def without_local_expert(arguments):
    """[T] bool: tokens that route to no expert of this rank."""
    experts, _ = moe.route(arguments["routing_logits"], arguments["routing_bias"], 1.0)
    local = experts - arguments["local_expert_offset"]
    return ((local < 0) | (local >= LOCAL)).all(1)


# ---- right answers ----


def drawn(definition, workload, root):
    """A workload's inputs. As FIB's harness hands over clones: what lies in a mapped file may start
    at any address.
    """
    (values,) = seeded_inputs(
        definition, workload, 1, DEVICE, load_safetensors(definition, workload, root)
    )
    return [value.clone() if torch.is_tensor(value) else value for value in values]


def check_workload(layer, definition, workload, root):
    values = drawn(definition, workload, root)
    arguments = dict(zip(definition.inputs, values, strict=True))
    wanted = BuilderRegistry.get_instance().build_reference(definition)(*values)
    arguments[OUTPUT] = torch.empty_like(wanted)
    output = run(layer, arguments)
    assert (output[(wanted == 0).all(1)] == 0).all()  # no local expert, or scales of zero
    assert_close(output, wanted, of=workload.uuid)


LONG = ("same-eight-local", "last-rank-odd-length")  # seconds each in the interpreter


@at("small")
@pytest.mark.parametrize(
    "case", [slow(case.name) if case.name in LONG else case.name for case in cases("small")]
)
def test_small_workloads(layer, geometry, case, records):
    """A user would miss: a wrong answer on a workload chosen to hurt, seen on the GPU only."""
    root, all_records = records(geometry)
    definition = moe.definition(geometry)
    at = [known.name for known in cases("small")].index(case)
    check_workload(layer, definition, all_records[at], root)


QUICK = (
    "one-token",
    "no-tokens",
    "none-local",
)  # of the other small definitions; the slow set has all
QUICK_ROUTED = {
    "small-routed": ("no-tokens", "slots-without-expert"),
    "small-renorm-routed": ("no-tokens",),
}


@at("small-one-group", "small-renorm", "small-routed", "small-renorm-routed")
@pytest.mark.parametrize("quick", [True, slow(False)])
def test_small_workloads_of_the_other_definitions(layer, geometry, quick, records):
    """A user would miss: sizes or a routing of the first definition in what every definition
    shares.

    Behind a router: an empty slot that is computed, ids taken for local numbers, gate and up
    swapped.
    """
    root, all_records = records(geometry)
    names = QUICK_ROUTED.get(geometry, QUICK)
    for case, workload in zip(
        catalogue.operator(geometry).cases(geometry), all_records, strict=True
    ):
        if (case.name in names) == quick:
            check_workload(layer, catalogue.definition(geometry), workload, root)


@at(*LAYERS, flashinfer_mono_moe="it takes 8 tokens at most")
@pytest.mark.parametrize("num_tokens", [slow(1), 64, slow(256), slow(1024)])  # the traces have more
def test_workloads_of_every_definition(layer, geometry, num_tokens, records):
    """A user would miss: a wrong answer at the sizes of another model."""
    root, all_records = records(geometry)
    definition = catalogue.definition(geometry)
    gc.collect()  # weights of the test before, which another layer's caches may hold
    torch.cuda.empty_cache()
    workload = min(all_records, key=lambda w: abs(w.axes["seq_len"] - num_tokens))
    needed = 5 * sum(input_bytes(definition, workload.axes).values())
    if torch.cuda.mem_get_info()[0] < needed:
        pytest.skip(f"{geometry} needs {needed / 1e9:.1f} GB of GPU memory")
    check_workload(layer, definition, workload, root)


@at("small")
@pytest.mark.parametrize(
    ("num_tokens", "every"), [(130, 32), slow(300, 8), slow(400, 8), slow(1100, 32)]
)
def test_more_tokens_than_one_chunk_or_tile_choice(layer, geometry, num_tokens, every):
    """A user would miss: what only happens above 128, 256 or 1024 tokens, at any width."""
    arguments = arguments_of(geometry, num_tokens)
    others = (
        torch.arange(num_tokens, device=DEVICE) % every > 0
    )  # few pairs are local, as an interpreter is slow
    arguments["routing_logits"][others, 64:96] -= 4
    assert_close(run(layer, arguments), reference(arguments))


@at("full")
@pytest.mark.parametrize("last", [224, 256, 1024, 8192])
def test_neighbours_where_kernels_change(layer, geometry, last):
    """A user would miss: a wrong answer at the last count of one kernel or the first of the next,
    of CUDA solutions.
    """
    for num_tokens in (last, last + 1):
        arguments = arguments_of(geometry, num_tokens)
        assert_close(run(layer, arguments), reference(arguments), of=f"T={num_tokens}")


@at("full", "small")
@pytest.mark.parametrize(
    "calls",
    [((3, 64), (1, 224), (3, 64)), slow(((33, 64), (1, 0), (16, 224), (2, 33), (33, 64)))],
    ids=["few", "many"],
)
def test_many_sizes_in_one_process(layer, geometry, calls):
    """A user would miss: a call that takes over what a call of another size left behind."""
    for num_tokens, offset in calls:
        arguments = arguments_of(geometry, num_tokens, seed=num_tokens, offset=offset)
        assert_close(run(layer, arguments), reference(arguments), of=f"T={num_tokens}")


@at("full", "small")
def test_no_tokens(layer, geometry):
    """A user would miss: a launch of an empty grid, which CUDA refuses."""
    assert run(layer, arguments_of(geometry, 0)).shape[0] == 0


@at("full", "small")
@pytest.mark.parametrize("some", [False, True])
@pytest.mark.parametrize(
    "num_tokens", [9, *(pytest.param(t, marks=pytest.mark.gpu) for t in (700, 9000))]
)
def test_rows_without_a_local_expert_are_zero(layer, geometry, num_tokens, some):
    """A user would miss: old memory, here NaN, in rows that this rank adds nothing to."""
    arguments = arguments_of(geometry, num_tokens)
    arguments["routing_logits"][slice(1, None, 2) if some else slice(None), 64 : 64 + LOCAL] = -20
    none = without_local_expert(arguments)
    output = run(layer, arguments)
    assert (output[none] == 0).all() and none[1::2].all()
    assert not none.all() if some else none.all()
    assert (output[~none] != 0).any(1).all()


@at("full", "small")
def test_same_call_same_bits(layer, geometry):
    """A user would miss: results that differ from run to run, as sums by atomics do."""
    arguments = arguments_of(geometry, 5 if DEVICE == "cpu" else 21)
    first = run(layer, arguments)
    for _ in range(1 if DEVICE == "cpu" else 20):
        assert torch.equal(run(layer, arguments).view(torch.int16), first.view(torch.int16))


@at("full", "small")
def test_inputs_are_left_alone(layer, geometry):
    """A user would miss: an argument that a kernel scribbled on."""
    arguments = arguments_of(geometry, 5)
    kept = {n: t.clone() for n, t in arguments.items() if n != OUTPUT and torch.is_tensor(t)}
    run(layer, arguments)
    for name, before in kept.items():
        assert torch.equal(arguments[name].view(torch.uint8), before.view(torch.uint8)), name


SCALARS = {"local_expert_offset": 80, "routed_scaling_factor": 1.25}


@at("full", "small")
@pytest.mark.parametrize("together", [True, slow(False)], ids=["together", "one by one"])
def test_tensors_changed_in_place_change_the_answer(layer, geometry, together):
    """A user would miss: an answer remembered by address, wrong from the second call on."""
    arguments = arguments_of(geometry, 2 if together else 5)
    before = run(layer, arguments)
    other = arguments_of(geometry, 2 if together else 5, seed=1) | SCALARS
    names = [name for name in arguments if name != OUTPUT]
    for changed in [names] if together else [[name] for name in names]:
        for name in changed:
            if torch.is_tensor(arguments[name]):
                arguments[name].copy_(other[name])
            else:
                arguments[name] = other[name]
        after = run(layer, arguments)
        assert not torch.equal(after, before), f"a change of {changed} changed nothing"
        assert_close(after, reference(arguments), of=changed)
        before = after


@at(
    "full",
    flashinfer_cutlass="activations are quantised twice: 0.8994 at contest for 131073 tokens on an H200, want 0.9",
)
@pytest.mark.parametrize("num_tokens", [131_072, 131_073])
def test_a_huge_batch_is_right_or_refused(layer, geometry, num_tokens):
    """A user would miss: an offset that no longer fits in 32 bits, hence wrong rows or a crash in
    the GPU.
    """
    arguments = arguments_of(geometry, num_tokens)
    try:
        output = run(layer, arguments)
    except ValueError as error:
        assert str(error).startswith("routing_logits: ") and str(num_tokens) in str(error)
        assert arguments[OUTPUT].isnan().all()
        return
    some = torch.linspace(0, num_tokens - 1, 64, device=DEVICE).long()
    few = {name: arguments[name][some] for name in ("routing_logits", "hidden_states")}
    few["hidden_states_scale"] = arguments["hidden_states_scale"][:, some]
    assert_close(output[some], reference(arguments | few))
    assert torch.isfinite(output).all()


# ---- NaN ----


@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")  # of the interpreter's tl.max
@at("small")
@pytest.mark.parametrize("code", [0x7F, 0xFF])
@pytest.mark.parametrize("name", ["hidden_states", "gemm1_weights", "gemm2_weights"])
def test_nan_reaches_the_output(layer, name, code):
    """A user would miss: a broken activation or weight that turns into a finite answer, here the
    code read as 480.
    """
    arguments = arguments_of("small", 3)
    experts, _ = moe.route(arguments["routing_logits"], arguments["routing_bias"], 1.0)
    token, expert = next(
        (t, e) for t in range(3) for e in (experts[t] - 64).tolist() if 0 <= e < LOCAL
    )
    place = (token, 5) if name == "hidden_states" else (expert, 130, 5)
    arguments[name].view(torch.uint8)[place] = code
    wanted = reference(arguments).isnan()
    assert wanted[token].any() and not wanted.all()
    assert torch.equal(run(layer, arguments).isnan(), wanted)


# ---- bad input ----

TENSORS = [
    name for name, value in arguments_of("small", 3, "cpu").items() if torch.is_tensor(value)
]
OTHER_DTYPE = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float16,
    torch.float8_e4m3fn: torch.float8_e5m2,
}


def strided(tensor):
    """The same shape and values, every second element of a larger tensor."""
    wide = torch.empty((*tensor.shape[:-1], 2 * tensor.shape[-1]), dtype=tensor.dtype)
    return wide.to(tensor.device)[..., ::2].copy_(tensor)


def misaligned(tensor):
    """Contiguous, but one element beyond a multiple of 16 bytes."""
    room = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
    return room[1:].view(tensor.shape).copy_(tensor)


FAULTS = {
    "dtype": lambda t: t.to(OTHER_DTYPE[t.dtype]),
    "rank": lambda t: t[None],
    "device": lambda t: t.to("meta"),
    "contiguity": strided,
    "alignment": misaligned,
    "not a tensor": lambda t: [1.0],
    "nothing": lambda t: None,
}


def refused(layer, geometry, arguments, name):
    """The call raises ValueError about `name` and touches no output."""
    hidden = moe.geometries()[geometry]["hidden_size"]
    output = torch.full((3, hidden), 7, dtype=torch.bfloat16, device=DEVICE)
    given = {OUTPUT: output} if name != OUTPUT else {}
    with pytest.raises(ValueError, match=name):
        layer(*(arguments | given).values())
    assert (output == 7).all()


@at("full", "small")
@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_tensors_are_refused(layer, geometry, fault):
    """A user would miss: a crash in the GPU, or a wrong answer, instead of a line that says why."""
    right = arguments_of(geometry, 3)
    for name in TENSORS:
        arguments = right | {name: FAULTS[fault](right[name])}
        refused(layer, geometry, arguments, name)
        if name == OUTPUT and fault in ("contiguity", "alignment"):
            assert arguments[OUTPUT].isnan().all()


@at("full", "small")
def test_wrong_sizes_are_refused(layer, geometry):
    """A user would miss: reads beyond the end of a tensor that is shorter than the others say."""
    right = arguments_of(geometry, 3)
    for name in TENSORS:
        for axis in range(right[name].dim()):
            # the logits say how many tokens there are; the next tensor that has them disagrees
            blamed = "hidden_states" if (name, axis) == ("routing_logits", 0) else name
            for change in (-1, 1):
                wrong = list(right[name].shape)
                wrong[axis] += change
                wrong = torch.empty(wrong, dtype=right[name].dtype, device=DEVICE)
                refused(layer, geometry, right | {name: wrong}, blamed)


@at("full", "small")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            ("local_expert_offset", value)
            for value in (-1, EXPERTS - LOCAL + 1, 1.5, "64", None, True)
        ),
        *(("routed_scaling_factor", value) for value in (True, "2.5", None)),
    ],
)
def test_wrong_scalars_are_refused(layer, geometry, name, value):
    """A user would miss: experts outside this rank's weights, that is reads out of bounds."""
    refused(layer, geometry, arguments_of(geometry, 3) | {name: value}, name)


# ---- what a solution must not do ----

SYNCHRONISES = {"item", "cpu", "tolist", "numpy", "synchronize", "nonzero", "argwhere", "unique"}


@pytest.mark.parametrize("name", SOLUTIONS)
def test_source_never_waits_for_the_device(name):
    """A user would miss: a hidden wait, which costs time and forbids CUDA graphs.

    The plain statements of stages (`*_ref`) are never called by a solution and may do as they like.
    """

    def waits(node):
        if isinstance(node, ast.FunctionDef) and node.name.endswith("_ref"):
            return
        if isinstance(node, ast.Attribute) and node.attr in SYNCHRONISES:
            yield node
        if isinstance(node, ast.Call) and getattr(node.func, "attr", None) == "to":
            yield from (a for a in node.args if isinstance(a, ast.Constant) and a.value == "cpu")
        for child in ast.iter_child_nodes(node):
            yield from waits(child)

    sources = [
        source
        for source in next(iter(pack.pack(name).values())).sources
        if source.path.endswith(".py")
    ]
    found = [
        f"{source.path}:{node.lineno}"
        for source in sources
        for node in waits(ast.parse(source.content))
    ]
    assert not found


# ---- on the device ----


@at("full")
def test_runs_on_the_current_stream(layer, geometry):
    """A user would miss: kernels that start before their inputs, made on a stream, are there."""
    arguments = arguments_of(geometry, 80)
    other = arguments_of(geometry, 80, seed=1)["hidden_states"]
    wanted = run(layer, arguments | {"hidden_states": other})
    output = torch.full_like(wanted, torch.nan)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)  # some 50 ms: who does not wait reads the old tokens
        arguments["hidden_states"].copy_(other)
        layer(*(arguments | {OUTPUT: output}).values())
    stream.synchronize()
    assert torch.equal(output, wanted)


@at("full")
def test_two_streams_at_once(layer, geometry):
    """A user would miss: two calls that share scratch memory and spoil each other."""
    calls = [arguments_of(geometry, 80, seed=seed) for seed in (0, 1)]
    wanted = [run(layer, arguments) for arguments in calls]
    assert not torch.equal(*wanted)
    streams = [torch.cuda.Stream() for _ in calls]
    outputs = [[torch.full_like(w, torch.nan) for _ in range(20)] for w in wanted]
    torch.cuda.synchronize()
    for turn in range(20):
        for stream, arguments, out in zip(streams, calls, outputs, strict=True):
            with torch.cuda.stream(stream):
                layer(*(arguments | {OUTPUT: out[turn]}).values())
    torch.cuda.synchronize()
    for seed, (all_turns, one) in enumerate(zip(outputs, wanted, strict=True)):
        for turn, output in enumerate(all_turns):
            assert torch.equal(output, one), (
                f"stream {seed}, turn {turn}: {(output != one).sum()} values differ"
            )


@at("full")
@pytest.mark.parametrize("num_tokens", [7, 80, 300, 1100])
def test_cuda_graph(layer, geometry, num_tokens):
    """A user would miss: a serving engine that captures its model and cannot capture this layer,
    which waits.
    """
    arguments = arguments_of(geometry, num_tokens)
    output = torch.full_like(arguments[OUTPUT], torch.nan)
    run(layer, arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer(*(arguments | {OUTPUT: output}).values())
    for seed in (0, 1, 2):
        other = arguments_of(geometry, num_tokens, seed=seed)
        for name in ("routing_logits", "hidden_states", "hidden_states_scale"):
            arguments[name].copy_(other[name])
        output.fill_(torch.nan)
        graph.replay()
        assert torch.equal(output, run(layer, arguments)), f"replay {seed}"


@at(
    "full",
    flashinfer_cutlass="its workspace takes 10.3 GB",
    torch_moe="all of it is in fp32",
    deepgemm="its GEMMs want all rows in one operand, which are T x 8 in the worst case: y alone takes 1.6 GB",
)
def test_scratch_of_the_largest_workload(layer, geometry, records):
    """A user would miss: out of memory next to a model that fills the device."""
    root, all_records = records(geometry)
    workload = next(w for w in all_records if w.axes["seq_len"] == BIG)
    definition = moe.definition(geometry)
    values = drawn(definition, workload, root)
    output = torch.empty((BIG, 7168), dtype=torch.bfloat16, device=DEVICE)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    layer(*values, output)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    assert peak < 1.5e9


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@at("full")
def test_second_device(layer, geometry):
    """A user would miss: tensors of one GPU handed to kernels on another."""
    arguments = arguments_of(geometry, 80, "cuda:0")
    wanted = run(layer, arguments)
    there = {n: v.to("cuda:1") if torch.is_tensor(v) else v for n, v in arguments.items()}
    torch.cuda.set_device(0)
    output = run(layer, there)
    assert output.device.index == 1 and torch.cuda.current_device() == 0
    assert torch.equal(output.to("cuda:0"), wanted)
    assert torch.equal(run(layer, arguments), wanted)
