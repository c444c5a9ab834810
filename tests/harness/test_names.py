"""Names that a user types: what is said about one that is not known, and lists with spaces or commas."""

import pytest
from harness import cli
from harness.core.errors import UserError
from harness.operators import workloads


@pytest.mark.parametrize(
    ("argv", "wrong", "near"),
    [
        (["run", "--solutions", "hoper_fused"], "hoper_fused", "hopper_fused"),
        (["run", "--solutions", "triton_fused_v2,Hopper_Fused"], "Hopper_Fused", "hopper_fused"),
        (["run", "--tolerance", "relax"], "relax", "relaxed"),
        (["run", "--definition", "small", "--workloads", "no-token"], "no-token", "no-tokens"),
        (["pack", "cutlass"], "cutlass", "cutlass_grouped"),
        (["data", "fill"], "fill", "full"),
    ],
)
def test_a_mistyped_name_gets_the_nearest_one(argv, wrong, near, capsys):
    assert cli.main(argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert repr(wrong) in line and f"{near}?" in line


@pytest.mark.parametrize("empty", ["", ",", " , "])
@pytest.mark.parametrize(
    "argv", [["run", "--solutions"], ["run", "--definition"], ["pack"], ["compare", "--solutions"]]
)
def test_a_list_without_a_name_is_refused(argv, empty, capsys):
    """A user would miss: `--solutions "$EMPTY"` that runs everything."""
    assert cli.main([*argv, empty]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert repr(empty) in line


def test_a_workload_is_named_by_length_uuid_or_label():
    case = next(c for c in workloads.cases_by_uuid("small").values() if c.name == "no-tokens")
    for text in ("0", "T=0", case.uuid, case.name, case.label):
        assert [found.uuid for found in workloads.named(text, "small")] == [case.uuid]
    with pytest.raises(UserError, match="'8'.* 0, 1, 5, 16"):
        workloads.named("8", "small")
