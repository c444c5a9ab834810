"""Names that a user types: what is said about one that is not known, and lists with spaces or commas."""

import argparse

import pytest
from harness import cli
from harness.core.arguments import Names
from harness.core.errors import UserError
from harness.core.names import unknown
from harness.operators import workloads


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["run", "--solutions", "hoper_fused"], "unknown solution 'hoper_fused'; did you mean hopper_fused?"),
        (["run", "--solutions", "triton_fused_v2,Hopper_Fused"], "did you mean hopper_fused?"),
        (["run", "--definition", "smal"], "unknown definition 'smal'; did you mean small?"),
        (["run", "--tolerance", "relax"], "argument --tolerance: unknown value 'relax'; did you mean relaxed?"),
        (["run", "--definition", "small", "--workloads", "no-token"], "did you mean no-tokens?"),
        (["sweep", "--solutions", "hopper"], "unknown solution 'hopper'; did you mean hopper_fused?"),
        (["sweep", "--kinds", "real,uniforn"], "unknown value 'uniforn'; did you mean uniform?"),
        (["profile", "triton_fused"], "did you mean triton_fused_v2?"),
        (["compare", "--solutions", "hoper_fused"], "did you mean hopper_fused?"),
        (["compare", "--tolerance", "relaxd"], "did you mean relaxed?"),
        (["pack", "cutlass"], "unknown solution 'cutlass'; did you mean cutlass_grouped?"),
        (["submit", "hoper_fused", "--into", "/nowhere/new"], "did you mean hopper_fused?"),
        (["tune", "--definition", "fill"], "unknown definition 'fill'; did you mean full?"),
        (["docs", "tunes"], "unknown page 'tunes'; did you mean tune?"),
    ],
)
def test_a_mistyped_name_gets_the_nearest_one(argv, message, capsys):
    assert cli.main(argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_without_a_near_one_all_are_listed():
    assert unknown("tolerance", "x", ["relaxed", "default"]) == "unknown tolerance 'x'; there are: relaxed, default"
    assert unknown("solution", "x", []).endswith("there are: none")


def test_names_are_separated_by_spaces_or_commas():
    parser = cli.Parser()
    parser.add_argument("--names", nargs="+", action=Names)
    parser.add_argument("--kinds", nargs="+", action=Names, choices=["a", "b"])
    args = parser.parse_args(["--names", "x,y", "z", "--kinds", "a,b"])
    assert (args.names, args.kinds) == (["x", "y", "z"], ["a", "b"])
    with pytest.raises(UserError, match="argument --kinds: unknown value 'c'; there are: a, b"):
        parser.parse_args(["--kinds", "a,c"])
    assert "--kinds a|b" in parser.format_help() and isinstance(args, argparse.Namespace)


def test_a_workload_is_named_by_length_uuid_or_label():
    case = next(c for c in workloads.cases_by_uuid("small").values() if c.name == "no-tokens")
    for text in ("0", "T=0", case.uuid, case.name, case.label):
        assert workloads.named(text, "small") == [case]
    with pytest.raises(UserError, match="unknown workload '8'; there are: T = 0, 1, 5, 16"):
        workloads.named("8", "small")
