"""Packed solutions stand alone, and a mistake in one is reported in one line."""

import ast
import importlib
import sys

import pytest
import torch
from flashinfer_bench import TraceSet
from flashinfer_bench.compile import BuilderRegistry
from harness import cli
from harness.core import paths
from harness.core.errors import UserError
from harness.packing import build_ahead, manifest, pack, problem

from definitions import moe_fp8_block_scale
from definitions.moe_fp8_block_scale import definition

MANIFEST = """
name = "tiny"
author = "tests"
description = "Writes ones."
language = "python"
entry_point = "main.py::run"
target_hardware = ["cpu"]
kernels = ["ones"]
"""
FACTS = "".join(f'facts.{fact} = "x"\n' for fact in manifest.Facts.model_fields)
INPUTS = ", ".join(definition("small").inputs)
MAIN = f"from .kernels.ones import ones\n\ndef run({INPUTS}, output):\n    ones(output)\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The solutions folder, with one small torch solution."""
    monkeypatch.setattr(paths, "SOLUTIONS", tmp_path / "solutions")
    for name, text in {
        "tiny/solution.toml": MANIFEST,
        "tiny/main.py": MAIN,
        "kernels/ones.py": "def ones(output):\n    output.fill_(1)\n",
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
    """A user would miss: a library that is not in the image, after a command that seemed to have made it."""
    assert build_ahead.build(["tiny"]) == 0
    assert [line.split(" built in")[0] for line in capsys.readouterr().out.splitlines()] == ["tiny:", "tiny_h512_i256:"]
    edit(folder / "kernels" / "ones.py", "def", "raise RuntimeError('no nvcc')\ndef")
    assert build_ahead.build(["tiny"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all("not built: " in line and line.endswith("no nvcc") for line in lines)
    edit(folder / "tiny" / "solution.toml", "kernels", 'dependencies = ["nowhere"]\nkernels')
    assert build_ahead.build(["tiny"]) == 0
    assert capsys.readouterr().out.startswith("tiny: SKIPPED: needs nowhere, not installed here\n")


def test_a_package_runs_without_flashinfer_bench(folder, tmp_path, monkeypatch):
    """docs/engines.md: an engine that has no FIB imports the package and calls its function."""
    assert pack.pack_packages(["tiny"], tmp_path / "engine", []) == [tmp_path / "engine" / "tiny"]
    for module in ("flashinfer_bench", "harness"):
        monkeypatch.setitem(sys.modules, module, None)  # importing it raises
    monkeypatch.syspath_prepend(tmp_path)
    output = torch.zeros(3, 512, dtype=torch.bfloat16)
    importlib.import_module("engine.tiny").run(*[None] * 10, output)
    assert (output == 1).all()


def test_a_package_is_not_written_over_another(folder, tmp_path):
    """A file of an older version that stays there would be compiled along."""
    pack.pack_packages(["tiny"], tmp_path / "engine", [])
    with pytest.raises(UserError, match="--package: .*engine/tiny exists; remove it"):
        pack.pack_packages([], tmp_path / "engine", [])


def test_packing_twice_gives_the_same_bytes(folder):
    first = {path: path.read_bytes() for path in pack.pack_here([])}
    assert len(first) == 2
    assert {path: path.read_bytes() for path in pack.pack_here(["tiny"])} == first


def test_a_removed_solution_disappears_from_packed(folder):
    files = pack.pack_here([])
    (folder / "tiny" / "solution.toml").unlink()
    pack.pack_here([])
    assert not any(path.exists() for path in files)


def test_only_the_listed_geometries_are_served(folder):
    with (folder / "tiny" / "solution.toml").open("a") as file:
        file.write('definitions = ["small"]\n')
    assert list(pack.pack("tiny")) == ["small"]


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("solution.toml", '["ones"]', '["twos"]', "kernels: got 'twos', want a shared stage: ones"),
        ("solution.toml", '["ones"]', "3", "kernels: Input should be a valid list, got 3"),
        ("solution.toml", '["ones"]', '["ones", 3]', "kernels.1: Input should be a valid string, got 3"),
        ("solution.toml", "main.py::", "other.py::", "entry_point: got 'other.py::run', want FILE::FUNCTION"),
        (
            "solution.toml",
            "py::run",
            "py::go",
            "want FILE::FUNCTION that one of these defines: kernels/ones.py, main.py",
        ),
        ("solution.toml", "main.py::run", "main.py", "entry_point: got 'main.py', want FILE::FUNCTION"),
        ("solution.toml", "main.py::run", "main.py::run::run", "got 'main.py::run::run', want FILE::FUNCTION"),
        ("solution.toml", 'author = "tests"', "", "author: Field required"),
        ("solution.toml", '"tests"', '""', "author: String should have at least 1 character, got ''"),
        ("solution.toml", '"tests"', '" "', "author: String should have at least 1 character, got ' '"),
        ("solution.toml", "kernels =", "kernel =", "kernel: Extra inputs are not permitted"),
        ("solution.toml", '"python"', '"cobol"', "language: Input should be 'python', 'triton', "),
        ("solution.toml", 'name = "tiny"', 'name = "small"', "name: got 'small', want the folder's, 'tiny'"),
        ("solution.toml", '["cpu"]', '["sm_99x"]', "target_hardware.0: Input should be 'cpu', 'sm_80', 'sm_86'"),
        ("solution.toml", '["cpu"]', '["cpu", "hopper"]', "'sm_121', got 'hopper'"),
        ("solution.toml", '["cpu"]', '"cpu"', "target_hardware: Input should be a valid list, got 'cpu'"),
        ("solution.toml", '["cpu"]', "[]", "target_hardware: List should have at least 1 item"),
        ("solution.toml", "kernels", "definitions", "definitions.0: Input should be 'full', 'deepseek-v3-ep16', "),
        (
            "solution.toml",
            "kernels",
            'destination_passing_style = "no"\nkernels',
            "destination_passing_style: Input should be a valid boolean, got 'no'",
        ),
        ("solution.toml", "kernels", "first_use = 3\nkernels", "first_use: Input should be a valid string, got 3"),
        ("solution.toml", "kernels", "facts = 3\nkernels", "facts: Input should be a valid dictionary"),
        ("solution.toml", "kernels", 'facts.input = "FP8"\nkernels', "facts.intermediate: Field required"),
        ("solution.toml", "kernels", f"{FACTS}facts.more = 1\nkernels", "facts.more: Extra inputs are not permitted"),
        ("solution.toml", "kernels", f"{FACTS}facts.best = 1\nkernels", "solution.toml: "),  # a key twice
        ("main.py", MAIN, "", "main.py: got an empty file"),
        ("main.py", ".kernels.ones", ".kernels.twos", "main.py:1: imports kernels/twos.py"),
        ("main.py", ".kernels.ones", "..kernels.ones", "main.py:1: relative import leaves"),
        ("main.py", "def run", "def run(", "main.py:3"),
    ],
)
def test_a_mistake_is_named_in_one_line(folder, file, old, new, message):
    edit(folder / "tiny" / file, old, new)
    with pytest.raises(manifest.PackingError) as caught:
        pack.pack("tiny")
    text = str(caught.value)
    assert text.startswith("tiny: ") and message in text and "\n" not in text


def based(folder, name, base, more=""):
    """A folder `name` with a manifest like tiny's, based on `base`, without kernels of its own."""
    (folder / name).mkdir()
    text = MANIFEST.replace('"tiny"', f'"{name}"').replace('kernels = ["ones"]\n', "")
    (folder / name / "solution.toml").write_text(f'{text}based_on = "{base}"\n{more}')


def test_a_solution_based_on_another_differs_by_its_own_files(folder):
    (folder / "tiny" / "value.py").write_text("VALUE = 1\n")
    (folder / "tiny" / "kernel.cuh").write_text("// shared\n")
    based(folder, "variant", "tiny")
    (folder / "variant" / "value.py").write_text("VALUE = 2\n")
    base, variant = (pack.pack(name)["small"] for name in ("tiny", "variant"))
    expected = {source.path: source.content for source in base.sources} | {"value.py": "VALUE = 2\n"}
    assert {source.path: source.content for source in variant.sources} == expected
    assert expected.keys() == {"kernel.cuh", "kernels/ones.py", "main.py", "value.py"}
    assert variant.name == "variant_h512_i256"


def test_own_kernels_replace_the_bases(folder):
    (folder / "kernels" / "twos.py").write_text("def ones(output):\n    output.fill_(2)\n")
    based(folder, "variant", "tiny", 'kernels = ["twos"]\n')
    with pytest.raises(manifest.PackingError, match="imports kernels/ones.py"):
        pack.pack("variant")
    (folder / "variant" / "main.py").write_text(MAIN.replace(".ones", ".twos"))
    assert {s.path for s in pack.pack("variant")["small"].sources} == {"kernels/twos.py", "main.py"}


def test_a_definition_takes_its_own_tables_alone(folder):
    """A user would miss: traces of every definition stale as tiles were tuned for one."""
    for sizes in ("e32_h7168_i2048", "e32_h512_i256", "e2_h7168_i2048"):
        (folder / "tiny" / f"tiles_gpu_{sizes}.py").write_text("TABLE = ()\n")
    tables = {
        geometry: {source.path for source in solution.sources if source.path.startswith("tiles_")}
        for geometry, solution in pack.pack("tiny").items()
    }
    assert tables == {"full": {"tiles_gpu_e32_h7168_i2048.py"}, "small": {"tiles_gpu_e32_h512_i256.py"}}


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("tinny", "got 'tinny', want another solution: second, tiny"),
        ("third", "got 'third', want another solution: second, tiny"),
        ("second", "got 'second', want a solution without a base; this one's is tiny"),
    ],
)
def test_a_base_must_be_another_solution_that_has_none(folder, base, message):
    based(folder, "second", "tiny")
    based(folder, "third", base)
    with pytest.raises(manifest.PackingError) as caught:
        pack.pack("third")
    assert str(caught.value) == f"third: solution.toml: based_on: {message}"


def test_the_exact_form_differs_from_hopper_fused_in_its_terms_alone():
    fused, exact = (pack.pack(name)["full"] for name in ("hopper_fused", "hopper_fused_exact"))
    base = {source.path: source.content for source in fused.sources}
    changed = {source.path: source.content for source in exact.sources if base.get(source.path) != source.content}
    assert set(changed) == {"terms.py"} and "TERMS = 2\n" in changed["terms.py"]
    assert len(exact.sources) == len(base) and exact.spec == fused.spec


def test_the_manifest_has_every_key(folder):
    """What is not packed is read, too: the profile's stages, the facts of a page."""
    edit(folder / "tiny" / "solution.toml", "kernels", f'{FACTS}stages.ones = "ones"\nfirst_use = "compiles"\nkernels')
    read = manifest.read_manifest("tiny")
    assert (read.stages, read.first_use, read.facts.best) == ({"ones": "ones"}, "compiles", "x")
    assert (read.kernels, read.dependencies, read.destination_passing_style) == (["ones"], [], True)


def test_each_interface_has_its_function(folder, tmp_path):
    """A user would miss: a function called with another definition's inputs, or without a name in its package."""
    functions = "".join(f"\n\ndef {name}(): ...\n" for name in ("run_renorm", "run_routed", "run_bf16"))
    edit(folder / "tiny" / "main.py", MAIN, MAIN + functions)
    listed = '["full", "qwen3-30b", "deepseek-v3-ep8-routed"]'
    keys = "".join(f'{kind}_entry_point = "main.py::run_{kind}"\n' for kind in ("renorm", "routed", "bf16"))
    edit(folder / "tiny" / "solution.toml", "kernels", f"definitions = {listed}\n{keys}kernels")
    packed = pack.pack("tiny")
    assert [s.spec.entry_point.split("::")[1] for s in packed.values()] == ["run", "run_renorm", "run_routed"]
    written = pack.pack_packages(["tiny"], tmp_path, ["full", "deepseek-v3-ep8-routed"])
    full, routed = ((path / "__init__.py").read_text().splitlines()[2:] for path in written)
    sizes = {"num_local_experts": 32, "top_k": 8, "hidden_size": 7168, "intermediate_size": 2048}
    assert full == ["from .main import run  # noqa: F401"]
    assert routed == [
        "from .main import run_routed as run  # noqa: F401",
        "from .main import run_bf16  # noqa: F401",
        "",
        f"SIZES = {sizes}",
    ]
    adapters = [{path.name for path in folder.glob("for_*.py")} for folder in written]
    assert adapters == [set(), {path.name for path in paths.ENGINES.glob("*.py")}] and adapters[1]
    edit(folder / "tiny" / "solution.toml", "::run_bf16", "::nothing")
    with pytest.raises(manifest.PackingError, match="bf16_entry_point: got 'main.py::nothing'"):
        pack.pack("tiny")


@pytest.mark.parametrize("name", problem.FILES)
def test_constants_are_those_of_the_definition(name):
    """A user would miss: kernels built for the first definition's sizes, or for its order of gate and up."""
    for path in paths.SOLUTIONS.rglob(f"{name}.*"):
        if "packed" not in path.parts and path.suffix in (".py", ".cuh"):
            assert path.read_text() == problem.source(path.name, "full")
    for solution in ("hopper_fused", "triton_fused_v2"):
        for geometry, packed in pack.pack(solution).items():
            for source in packed.sources:
                if source.path.rpartition("/")[2].startswith(f"{name}."):
                    assert source.content == problem.source(source.path, geometry)
    assert "GATE_FIRST = True\n" in problem.source("interface.py", "small-routed")
    assert "constexpr bool kGateFirst = false;\n" in problem.source("interface.cuh", "qwen3-30b")


def test_an_unknown_name_lists_the_ones_that_exist(folder):
    with pytest.raises(UserError, match="unknown solution 'x'; there are: tiny"):
        manifest.choose(["x"])


def test_modules_of_a_package_may_be_imported_by_name(folder):
    """`from .kernels import ones` is as good as `from .kernels.ones import ones`."""
    edit(folder / "tiny" / "main.py", "from .kernels.ones import ones", "from .kernels import ones")
    assert pack.pack("tiny")
    edit(folder / "tiny" / "main.py", "import ones", "import ones, twos")
    with pytest.raises(manifest.PackingError, match="kernels/twos.py"):
        pack.pack("tiny")


def test_into_another_data_set(tmp_path):
    """The public layout, with only the definition that is public."""
    (tmp_path / "definitions").mkdir()
    files = pack.pack_into([], tmp_path, ["full"])
    assert len(files) == len(manifest.solutions_of(moe_fp8_block_scale.GEOMETRIES)) > 0
    for path in files:
        author, op_type, name, _ = path.relative_to(tmp_path / "solutions").parts
        assert (op_type, name) == ("moe", definition("full").name)
    with pytest.raises(UserError, match="not a FlashInfer-Trace data set"):
        pack.pack_into([], tmp_path / "nowhere", ["full"])


def test_the_command_names_the_files_that_it_wrote(tmp_path, capsys):
    (tmp_path / "definitions").mkdir()
    assert cli.main(["pack", "triton_fused_v2", "--into", str(tmp_path), "--definition", "full", "small"]) == 0
    files = capsys.readouterr().out.splitlines()
    assert TraceSet.from_path(str(tmp_path)).get_solution("triton_fused_v2")
    assert len(files) == 2 and all(str(tmp_path) in file for file in files)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x"], "unknown solution 'x'; there are: align_fused_bf16, "),
        (["--into", "nowhere"], "--into: nowhere is not a FlashInfer-Trace data set"),
    ],
)
def test_a_bad_argument_is_reported_in_one_line(arguments, message, capsys):
    assert cli.main(["pack", *arguments]) == 2
    assert capsys.readouterr().err.startswith(message)


@pytest.mark.parametrize("name", manifest.solution_names())
def test_our_solutions_pack_and_never_import_the_harness(name):
    """A packed solution runs where this repository is not."""
    for solution in pack.pack(name).values():
        for source in solution.sources:
            if source.path.endswith(".py"):
                for node in ast.walk(ast.parse(source.content)):
                    modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                    if isinstance(node, ast.ImportFrom) and not node.level:
                        modules = [node.module]
                    ours = {"harness", "definitions", "scripts", "solutions"}
                    assert not ours & {module.partition(".")[0] for module in modules}, source.path


def test_packed_files_match_the_hash_in_traces():
    """FIB's hash of what is read back must be the hash of what was packed."""
    name = manifest.solution_names()[0]
    pack.pack_here([name])
    solution = next(iter(pack.pack(name).values()))
    path = paths.SOLUTIONS / "packed" / solution.definition / f"{name}.json"
    assert type(solution).model_validate_json(path.read_text()).hash() == solution.hash()


def test_a_borrowed_file_is_packed_beside_the_solutions_own(folder):
    """A user would miss: a file that two solutions share, with a copy that drifts apart instead."""
    (folder / "tiny" / "route.cuh").write_text("// one token\n")
    alone = pack.pack("tiny")["small"]
    based(folder, "variant", "tiny", 'borrowed = ["other/route.cuh"]\n')
    (folder / "other").mkdir()
    (folder / "other" / "solution.toml").write_text(MANIFEST.replace('"tiny"', '"other"'))
    (folder / "other" / "main.py").write_text(MAIN)
    with pytest.raises(manifest.PackingError, match="borrowed: got 'other/route.cuh', want SOLUTION/FILE"):
        pack.pack("variant")
    (folder / "other" / "route.cuh").write_text("// another\n")
    with pytest.raises(manifest.PackingError, match="there is a route.cuh here"):
        pack.pack("variant")
    (folder / "other" / "wide.cuh").write_text("// wide\n")
    edit(folder / "variant" / "solution.toml", "other/route.cuh", "other/wide.cuh")
    sources = {source.path: source.content for source in pack.pack("variant")["small"].sources}
    assert sources["wide.cuh"] == "// wide\n" and sources["route.cuh"] == "// one token\n"
    assert pack.pack("tiny")["small"].hash() == alone.hash()


@pytest.mark.parametrize("borrowed", ["kernels/ones.py", "../tiny/main.py", "route.cuh", "none/route.cuh"])
def test_only_files_of_solutions_are_borrowed(folder, borrowed):
    """A user would miss: a packed file from anywhere on the disk."""
    edit(folder / "tiny" / "solution.toml", 'kernels = ["ones"]', f'kernels = ["ones"]\nborrowed = ["{borrowed}"]')
    with pytest.raises(manifest.PackingError, match="tiny: solution.toml: borrowed: got"):
        pack.pack("tiny")
