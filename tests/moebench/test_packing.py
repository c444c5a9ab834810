"""Packed solutions stand alone, and a mistake in one is reported in one line."""

import ast
import importlib
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from flashinfer_bench import TraceSet
from flashinfer_bench.compile import BuilderRegistry
from moebench import cli
from moebench.core import paths
from moebench.core.errors import UserError
from moebench.judging import selection
from moebench.operators.moe_fp8_block_scale import definition
from moebench.packing import build_ahead, manifest, pack, problem

MANIFEST = """
name = "tiny"
author = "tests"
description = "Writes ones."
language = "python"
entry_point = "main.py::run"
target_hardware = ["cpu"]
common = ["host/ones.py"]
"""
INPUTS = ", ".join(definition("small").inputs)
MAIN = f"from .common.host.ones import ones\n\ndef run({INPUTS}, output):\n    ones(output)\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The solutions folder, with one small torch solution."""
    monkeypatch.setattr(paths, "SOLUTIONS", tmp_path / "solutions")
    for name, text in {
        "tiny/solution.toml": MANIFEST,
        "tiny/main.py": MAIN,
        "common/host/ones.py": "def ones(output):\n    output.fill_(1)\n",
    }.items():
        path = tmp_path / "solutions" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return paths.SOLUTIONS


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_round_trip_through_fibs_reader_and_builder(folder):
    """What FIB reads from packed/ must build and run with its shared stage."""
    pack.pack_here([])
    trace_set = TraceSet.from_path(str(folder.parent))
    solution = trace_set.get_solution("tiny_h512_i256")
    assert trace_set.get_solution("tiny").definition == definition("full").name
    run = BuilderRegistry.get_instance().build(definition("small"), solution)
    output = torch.zeros(3, 512, dtype=torch.bfloat16)
    run(*[None] * 10, output)
    assert (output == 1).all()


def test_what_is_built_ahead_and_what_is_not_is_said(folder, capsys):
    """A user would miss: a library that is not in the image, after a command that seemed to have
    made it.
    """
    assert cli.main(["pack", "--build"]) == 0
    edit(folder / "common" / "host" / "ones.py", "def", "raise RuntimeError('no nvcc')\ndef")
    assert build_ahead.build(["tiny"]) == 1
    assert all(line.endswith("no nvcc") for line in capsys.readouterr().out.splitlines()[-2:])
    edit(folder / "tiny" / "solution.toml", "common", 'dependencies = ["nowhere"]\ncommon')
    assert build_ahead.build(["tiny"]) == 0
    assert "nowhere" in capsys.readouterr().out


def test_a_package_runs_without_flashinfer_bench(folder, tmp_path, monkeypatch):
    """integrations/README.md: an engine that has no FIB imports the package and calls its
    function.
    """
    assert pack.pack_packages(["tiny"], tmp_path / "engine", []) == [tmp_path / "engine" / "tiny"]
    for module in ("flashinfer_bench", "moebench"):
        monkeypatch.setitem(sys.modules, module, None)  # importing it raises
    monkeypatch.syspath_prepend(tmp_path)
    output = torch.zeros(3, 512, dtype=torch.bfloat16)
    importlib.import_module("engine.tiny").run(*[None] * 10, output)
    assert (output == 1).all()


def test_a_package_is_not_written_over_another(folder, tmp_path):
    """A file of an older version that stays there would be compiled along; what is not ours or
    pip's stays.
    """
    (build := tmp_path / "engine" / "build" / "lib").mkdir(parents=True)
    (build.parent / "mine").write_text("")
    pack.pack_packages(["tiny"], tmp_path / "engine", [])
    with pytest.raises(UserError, match="--package: .*engine/tiny"):
        pack.pack_packages([], tmp_path / "engine", [])
    shutil.rmtree(tmp_path / "engine" / "tiny")
    assert build.exists() and pack.pack_packages(["tiny"], tmp_path / "engine", [])
    assert [path.name for path in build.parent.iterdir()] == ["mine"]
    (tmp_path / "pyproject.toml").write_text("theirs")
    with pytest.raises(UserError, match="--package: .*pyproject.toml"):
        pack.pack_packages(["tiny"], tmp_path, [])


def test_what_is_packed_is_what_there_is(folder, capsys):
    """A user would miss: a solution that FIB still finds after it is renamed."""
    based(folder, "variant", "tiny")
    before = {path.name for path in pack.pack_here([])}
    (folder / "tiny").rename(folder / "renamed")
    for name in ("renamed", "variant"):
        edit(folder / name / "solution.toml", '"tiny"', '"renamed"')
    assert cli.main(["pack", "renamed"]) == 0
    assert {path.name for path in (folder / "packed").rglob("*.json")} == before | {"renamed.json"}
    assert cli.main(["pack"]) == 0
    assert {path.name for path in (folder / "packed").rglob("*.json")} == {
        "renamed.json",
        "variant.json",
    }


BROKEN = {"solution.toml": ('name = "tiny"', "name = "), "main.py": ("def run", "def run(")}


@pytest.mark.parametrize("file", BROKEN)
def test_a_broken_solution_stops_only_what_names_it(folder, no_gpu, file, capsys):
    """A user would miss: every other solution, while they begin one."""
    based(folder, "variant", "tiny", 'common = ["host/ones.py"]\n')
    shutil.copy(folder / "tiny" / "main.py", folder / "variant")
    edit(folder / "variant" / "solution.toml", 'based_on = "tiny"\n', "")
    edit(folder / "tiny" / file, *BROKEN[file])
    assert cli.main(["pack"]) == 1
    shown = capsys.readouterr()
    assert [Path(line).stem for line in shown.out.splitlines()] == ["variant", "variant"]
    (line,) = shown.err.splitlines()
    assert line.startswith(f"tiny: {file}:")
    assert cli.main(["pack", "tiny"]) == 1 and cli.main(["pack", "variant"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tiny: {file}:")
    readable = ["variant"] if file == "solution.toml" else ["tiny", "variant"]
    assert manifest.choose([]) == manifest.solutions_of(["small"]) == readable
    solutions, skipped = selection.eligible([], "small", selection.survey())
    assert (
        list(solutions) == ["variant"]
        and skipped[0].startswith("tiny: SKIPPED: ")
        and file in skipped[0]
    )
    with pytest.raises(manifest.PackingError):
        selection.eligible(["tiny"], "small", selection.survey())


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        ("solution.toml", "ones.py", "twos.py", "common: got 'host/twos.py'"),
        ("solution.toml", "common =", "comon =", "comon: "),
        ("solution.toml", 'name = "tiny"', 'name = "small"', "name: got 'small'"),
        ("solution.toml", "py::run", "py::go", "entry_point: got 'main.py::go'"),
        ("solution.toml", '["cpu"]', '["cpu", "hopper"]', "target_hardware.1: "),
        ("solution.toml", "common", "definitions", "definitions.0: "),
        ("main.py", ".host.ones", ".host.twos", "main.py:1: imports common/host/twos.py"),
        ("main.py", ".common", "..common", "main.py:1: "),
        ("main.py", "def run", "def run(", "main.py:3"),
        ("solution.toml", '"tests"', '"../tests"', "author: "),
        ("main.py", "ones(output)", "1" + "+1" * 20000, "RecursionError"),
    ],
)
def test_a_mistake_is_named_in_one_line(folder, file, old, new, named):
    edit(folder / "tiny" / file, old, new)
    with pytest.raises(manifest.PackingError) as caught:
        pack.pack("tiny")
    text = str(caught.value)
    assert text.startswith("tiny: ") and named in text and "\n" not in text


def based(folder, name, base, more=""):
    """A folder `name` with a manifest like tiny's, based on `base`, without common files of its
    own.
    """
    (folder / name).mkdir()
    text = MANIFEST.replace('"tiny"', f'"{name}"').replace('common = ["host/ones.py"]\n', "")
    (folder / name / "solution.toml").write_text(f'{text}based_on = "{base}"\n{more}')


def test_a_solution_based_on_another_differs_by_its_own_files(folder):
    (folder / "tiny" / "value.py").write_text("VALUE = 1\n")
    (folder / "tiny" / "kernel.cuh").write_text("// shared\n")
    based(folder, "variant", "tiny")
    (folder / "variant" / "value.py").write_text("VALUE = 2\n")
    base, variant = (pack.pack(name)["small"] for name in ("tiny", "variant"))
    expected = {source.path: source.content for source in base.sources} | {
        "value.py": "VALUE = 2\n"
    }
    assert {source.path: source.content for source in variant.sources} == expected
    assert expected.keys() == {"kernel.cuh", "common/host/ones.py", "main.py", "value.py"}
    assert variant.name == "variant_h512_i256"
    edit(folder / "tiny" / "solution.toml", "common =", 'stages = { ones = "ones" }\ncommon =')
    assert (
        manifest.read_manifest("variant").stages == {"ones": "ones"}
        and pack.pack("tiny")["small"] == base
    )


def test_a_definition_takes_its_own_rows_of_a_table_alone(folder):
    """A user would miss: traces of every definition stale as tiles were tuned for one."""
    rows = {
        sizes: f"H200,{sizes},1\n"
        for sizes in ("e32_h7168_i2048", "e32_h512_i256", "e2_h7168_i2048")
    }
    (folder / "tiny" / "tiles.csv").write_text("gpu,sizes,tokens\n" + "".join(rows.values()))
    for geometry, sizes in (("full", "e32_h7168_i2048"), ("small", "e32_h512_i256")):
        (table,) = (s.content for s in pack.pack("tiny")[geometry].sources if s.path == "tiles.csv")
        assert table == "gpu,sizes,tokens\n" + rows[sizes]


@pytest.mark.parametrize("base", ["tinny", "third", "second"])
def test_a_base_must_be_another_solution_that_has_none(folder, base):
    based(folder, "second", "tiny")
    based(folder, "third", base)
    with pytest.raises(
        manifest.PackingError, match=f"^third: solution.toml: based_on: got '{base}'"
    ):
        pack.pack("third")


def test_each_interface_has_its_function(folder, tmp_path):
    """A user would miss: a function called with another definition's inputs, or without a name in
    its package.
    """
    functions = "".join(
        f"\n\ndef {name}(): ...\n" for name in ("run_renorm", "run_routed", "run_routed_bf16")
    )
    edit(folder / "tiny" / "main.py", MAIN, MAIN + functions)
    listed = '["full", "qwen3-30b", "deepseek-v3-ep8-routed"]'
    keys = "".join(f'{kind}_entry_point = "main.py::run_{kind}"\n' for kind in ("renorm", "routed"))
    edit(folder / "tiny" / "solution.toml", "common", f"definitions = {listed}\n{keys}common")
    packed = pack.pack("tiny")
    assert [s.spec.entry_point.split("::")[1] for s in packed.values()] == [
        "run",
        "run_renorm",
        "run_routed",
    ]
    written = pack.pack_packages(["tiny"], tmp_path, ["full", "deepseek-v3-ep8-routed"])
    full, routed = ((path / "__init__.py").read_text().splitlines()[2:] for path in written)
    sizes = {"num_local_experts": 32, "top_k": 8, "hidden_size": 7168, "intermediate_size": 2048}
    assert full == ["from .main import run  # noqa: F401"]
    assert routed == [
        "from .main import run_routed as run  # noqa: F401",
        "from .main import run_routed_bf16 as run_bf16  # noqa: F401",
        "",
        f'DEFINITION = "{packed["deepseek-v3-ep8-routed"].definition}"',
        f"SIZES = {sizes}",
    ]
    adapters = [{path.name for path in folder.glob("for_*.py")} for folder in written]
    assert (
        adapters == [set(), {path.name for path in paths.INTEGRATIONS.rglob("for_*.py")}]
        and adapters[1]
    )
    project, at = (
        tomllib.loads((tmp_path / "pyproject.toml").read_text()),
        f"{tmp_path.name}.{written[1].name}",
    )
    assert project["project"]["entry-points"]["vllm.general_plugins"] == {
        written[1].name: f"{at}.for_vllm:register"
    }
    assert {f"{at}.common.host", f"{tmp_path.name}.tiny"} < {
        *project["tool"]["setuptools"]["packages"]
    }
    for name in ("no-name", "_moe", "mö", "vllm"):
        with pytest.raises(UserError, match=f"--package: .*{name}"):
            pack.pack_packages(["tiny"], tmp_path / name, [])


@pytest.mark.parametrize("name", problem.FILES)
def test_constants_are_those_of_the_definition(name):
    """A user would miss: kernels built for the first definition's sizes, or for its order of gate
    and up.
    """
    assert (paths.SOLUTIONS / name).read_text() == problem.source(name, "full")
    for solution in ("hopper_fused", "triton_fused_v2"):
        for geometry, packed in pack.pack(solution).items():
            for source in packed.sources:
                if source.path == name:
                    assert source.content == problem.source(source.path, geometry)
    assert "GATE_FIRST = True\n" in problem.source("common/host/interface.py", "small-routed")
    assert "constexpr bool kGateFirst = false;\n" in problem.source(
        "common/cuda/interface.cuh", "qwen3-30b"
    )
    assert problem.source(name.replace("common/", ""), "full", "theirs") == "theirs"


def test_modules_of_a_package_may_be_imported_by_name(folder):
    """`from .common.host import ones` is as good as `from .common.host.ones import ones`."""
    edit(
        folder / "tiny" / "main.py",
        "from .common.host.ones import ones",
        "from .common.host import ones",
    )
    assert pack.pack("tiny")
    edit(folder / "tiny" / "main.py", "import ones", "import ones, twos")
    with pytest.raises(manifest.PackingError, match="common/host/twos.py"):
        pack.pack("tiny")


@pytest.mark.parametrize("name", manifest.solution_names())
def test_our_solutions_pack_and_never_import_the_harness(name):
    """A packed solution runs where this repository is not."""
    for solution in pack.pack(name).values():
        for source in solution.sources:
            if source.path.endswith(".py"):
                for node in ast.walk(ast.parse(source.content)):
                    modules = (
                        [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                    )
                    if isinstance(node, ast.ImportFrom) and not node.level:
                        modules = [node.module]
                    ours = {"moebench", "definitions", "scripts", "solutions"}
                    assert not ours & {module.partition(".")[0] for module in modules}, source.path


def test_two_headers_of_one_name_are_refused(folder):
    """A user would miss: sources include headers by name, whatever their folders, and get the other
    one.
    """
    for path in ("tiny/route.cuh", "common/cuda/route.cuh", "common/cuda/copy.cuh"):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text("// one\n")
    edit(folder / "tiny" / "solution.toml", "host/ones.py", 'host/ones.py", "cuda/copy.cuh')
    assert {s.path for s in pack.pack("tiny")["small"].sources} >= {
        "route.cuh",
        "common/cuda/copy.cuh",
    }
    edit(folder / "tiny" / "solution.toml", "cuda/copy.cuh", "cuda/route.cuh")
    with pytest.raises(manifest.PackingError, match="^tiny: .*route.cuh"):
        pack.pack("tiny")
