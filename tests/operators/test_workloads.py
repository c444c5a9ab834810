"""Workload tensors: the same everywhere, and like a trained router's."""

import json
import math
import re
import shutil

import committed_workloads
import numpy as np
import pytest
import safetensors.torch
from committed_workloads import assert_committed, make_below
from moebench import cli
from moebench.commands import data
from moebench.core import paths
from moebench.core.errors import CannotRun, UserError
from moebench.operators import catalogue, workload_files, workloads
from moebench.operators.catalogue import definition_name, layer_sizes
from moebench.operators.routing import trained_router
from moebench.operators.routing.trained_router import RouterOutputs
from rich.cells import cell_len
from rich.console import Console
from terminal import rows_of

SMALL = catalogue.SIGMOID_BIAS.cases("small")
MADE = ("full", "small", "small-one-group", "small-renorm")
SMALL_LAYERS = layer_sizes().keys() - set(catalogue.keys_for_gpu())
WHOLE = {"full", "bf16", "mxfp8", *SMALL_LAYERS}
IN_PART = [key for key in layer_sizes() if key not in WHOLE]
NOT_A_MODEL = {*MADE, *catalogue.SHARED_EXPERTS.layer_sizes()}
MODELS = [key for key in catalogue.fp8_moe() if key not in NOT_A_MODEL]
TOKENS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096, 8192]
MOST_TOKENS = 256  # of a workload that is drawn in part of the definitions
NO_SUM = "0" * 64  # the sha256 of nothing that is here

pytestmark = pytest.mark.xdist_group("workloads")  # one worker draws them


@pytest.fixture(scope="module")
def data_set(tmp_path_factory):
    """A data set with the committed records and freshly generated tensors."""
    root = tmp_path_factory.mktemp("data_set")
    for layer_key in MADE:
        make_below(root, layer_key)
    return root


def tensors_of(root, case):
    """Return what the case's file has: drawing it again takes seconds."""
    name = catalogue.definition_name(case.layer_key)
    return safetensors.torch.load_file(root / paths.blob_file(name, case.uuid))


@pytest.mark.parametrize("layer_key", sorted(WHOLE))
def test_generated_files_are_the_committed_ones(data_set, layer_key):
    """Results are comparable only on the same tensors, whose sha256 make() checks; bounds read the
    counts alone.
    """
    if layer_key not in MADE:
        make_below(data_set, layer_key)
    assert_committed(layer_key, data_set)


@pytest.mark.parametrize("layer_key", IN_PART)
def test_generated_tensors_have_the_committed_sums(layer_key):
    """Larger workloads are drawn in the same way, for seconds each."""
    name = definition_name(layer_key)
    operator = catalogue.operator(layer_key)
    cases = operator.cases(layer_key)
    records = [operator.record(case).model_dump_json() for case in cases]
    lines = paths.workload_file(name).read_text(encoding="utf-8").splitlines()
    assert lines[: len(cases)] == records

    checksum_file = paths.workload_file(name, suffix="sha256")
    checksums = workload_files.read_checksums(checksum_file)
    for case in cases:
        if case.seq_len > MOST_TOKENS:
            continue
        content = safetensors.torch.save(operator.tensors(case))
        blob = paths.blob_file(name, case.uuid)
        assert workload_files.sha256(content) == checksums[blob]


@pytest.mark.parametrize("layer_key", MODELS)
def test_models_have_decode_and_prefill_workloads_of_average_load(layer_key):
    """The first few: bounds hang on how many experts have rows, and 5% more of them than average is
    a harder case.
    """
    sizes = layer_sizes()[layer_key]
    local = sizes["num_local_experts"]
    rows_a_token = sizes["top_k"] * local / sizes["num_experts"]
    cases = catalogue.operator(layer_key).cases(layer_key)
    assert [case.seq_len for case in cases] == TOKENS

    counts = workloads.recorded_counts(layer_key)
    for case in cases[1:7]:
        rows = case.seq_len * rows_a_token
        idle_share = math.exp(-rows / local)
        active = local * (1 - idle_share)

        recorded = counts[case.uuid]
        assert recorded.rows == pytest.approx(rows, abs=2, rel=0.1)
        assert recorded.active == pytest.approx(active, abs=1.5, rel=0.08)


def test_a_good_blob_is_kept_and_a_damaged_one_replaced(data_set):
    count = len(SMALL)
    assert workload_files.make("small", data_set) == (0, count)

    blob = data_set / paths.blob_file(definition_name("small"), SMALL[0].uuid)
    good = blob.read_bytes()
    damaged = good[:-1] + b"\x7f"
    blob.write_bytes(damaged)
    assert workload_files.make("small", data_set) == (1, count - 1)
    assert blob.read_bytes() == good


def append_line(root, **changes):
    """Append a line to small's file: the fourth case at T=33 under another uuid, or with changes.
    Returns the file.
    """
    file = paths.workload_file(definition_name("small"), root)
    lines = file.read_text(encoding="utf-8").splitlines()
    record = json.loads(lines[3])
    record["workload"] |= {"uuid": "mine", "axes": {"seq_len": 33}, **changes}
    with file.open("a", encoding="utf-8") as out:
        out.write(f"\n{json.dumps(record)}")
    return file


@pytest.fixture
def copied(data_set, tmp_path):
    """A data set of its own with the small definition's files and tensors."""
    for folder in ("workloads", "blob"):
        names = "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h512_i256*"
        for path in sorted((data_set / folder).rglob(names)):
            target = tmp_path / path.relative_to(data_set)
            if path.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)
    return tmp_path


def test_a_users_line_stays_and_is_served(copied):
    before = workloads.recorded("small", copied)
    file = append_line(copied)
    text = file.read_text(encoding="utf-8")
    *_, users_line = text.splitlines()
    changed = text.replace('"seq_len":70', '"seq_len":71')
    file.write_text(changed, encoding="utf-8")

    assert workload_files.make("small", copied) == (0, len(SMALL))

    text = file.read_text(encoding="utf-8")
    assert text.endswith(f"\n{users_line}\n")
    *generated, mine = workloads.recorded("small", copied)
    assert generated == before
    assert workloads.label(mine, "small") == "mine T=33"
    bound = workloads.recorded_bound(definition_name("small"), mine, copied)
    assert bound == committed_workloads.bound("small", SMALL[3].uuid)


def test_a_users_line_without_tensors_has_no_bound(copied):
    append_line(copied, inputs={"hidden_states": {"type": "random"}})
    mine = workloads.recorded("small", copied)[-1]
    assert workloads.recorded_bound(definition_name("small"), mine, copied) is None


NO_WORKLOADS = [
    "{}",
    "not JSON",
    '{"definition": "other", "workload": {"axes": {}, "inputs": {}}}',
]


@pytest.mark.parametrize("line", NO_WORKLOADS)
def test_a_line_that_is_no_workload_is_named(copied, line):
    file = paths.workload_file(definition_name("small"), copied)
    with file.open("a", encoding="utf-8") as out:
        out.write(f"{line}\n")
    line_number = len(SMALL) + 1
    place = re.escape(f"{file.name}:{line_number}")
    for read in (workloads.recorded, workload_files.make):
        with pytest.raises(UserError, match=f"^{place}: .*$"):
            read("small", copied)


def test_a_line_that_was_ours_goes(copied):
    """As when a case is renamed: its uuid is another one, and its tensors are still among the
    recorded ones.
    """
    before = workloads.recorded("small", copied)
    append_line(copied)
    name = definition_name("small")
    blob = paths.blob_file(name, "mine")
    sums = paths.workload_file(name, copied, "sha256")
    with sums.open("a", encoding="utf-8") as out:
        out.write(f"{NO_SUM}  {blob}\n")

    workload_files.make("small", copied)
    assert workloads.recorded("small", copied) == before


def test_the_command_writes_and_lists(capsys):
    name = definition_name("small")
    assert cli.main(["data", "small", "--write"]) == 0
    assert cli.main(["data", name, "--write"]) == 0
    output = capsys.readouterr().out
    assert output.count(name) == 2

    assert cli.main(["data", "nothing"]) == 2


def listed(capsys, *keys):
    """Return the lines of `moebench data`."""
    assert cli.main(["data", *keys]) == 0
    return capsys.readouterr().out.splitlines()


def first_cells(lines):
    """Return the first cell of each row that has one."""
    cells = [row[0] for row in rows_of(lines)]
    return list(filter(None, cells))


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_narrow_terminal_cuts_no_key_and_no_name(capsys, monkeypatch, width):
    monkeypatch.setattr(data, "console", lambda: Console(width=width))
    lines = listed(capsys)
    assert first_cells(lines) == list(layer_sizes())
    assert max(map(cell_len, lines)) <= width

    names = [case.name for case in catalogue.ROUTED.cases("small-routed")]
    assert first_cells(listed(capsys, "small-routed")) == names


def test_each_layer_has_its_models_scaling_factor():
    """As published; what was measured of the first definition stays as it was."""
    factors = {
        "full": 2.5,
        "kimi-k2-ep8": 2.827,
        "minimax-m2": 1.0,
        "hy3": 2.826,
        "step-3.5-flash-ep8": 3.0,
        "minimax-m3-ep8": 2.0,
    }
    for key, factor in factors.items():
        for workload in workloads.recorded(key):
            assert workload.inputs["routed_scaling_factor"].value == factor, key


def test_weights_that_are_given_have_the_models_factor_in_them():
    first, *_ = catalogue.ROUTED.cases("kimi-k2-ep8-routed")
    weights = catalogue.ROUTED.tensors(first)["topk_weights"]
    assert weights.sum(1).tolist() == pytest.approx([2.827])


def test_a_changed_generator_is_refused(data_set, tmp_path):
    name = definition_name("small")
    sums = paths.workload_file(name, tmp_path, "sha256")
    sums.parent.mkdir(parents=True)
    blob = paths.blob_file(name, SMALL[0].uuid)
    sums.write_text(f"{NO_SUM}  {blob}\n")
    with pytest.raises(CannotRun, match=NO_SUM):
        workload_files.make("small", tmp_path)


@pytest.mark.parametrize("layer_key", MADE)
def test_no_choice_hangs_on_rounding(data_set, layer_key):
    """fp32 routing must agree with fp64 routing, or two right solutions would disagree."""
    operator = catalogue.operator(layer_key)
    sizes = layer_sizes()[layer_key]
    route = catalogue.router(layer_key)
    for case in operator.cases(layer_key):
        tensors = tensors_of(data_set, case)
        outputs = RouterOutputs.of_inputs(tensors)
        margins = trained_router.margin(outputs, sizes)
        assert margins.min(initial=1) >= trained_router.MARGIN, case.name

        router_inputs = [tensors["routing_logits"]]
        if "routing_bias" in tensors:
            router_inputs += [tensors["routing_bias"], 2.5]
        in_fp32, _ = route(*router_inputs)
        in_fp64 = operator.chosen_experts(tensors, sizes)
        assert np.array_equal(np.sort(in_fp32), np.sort(in_fp64)), case.name
