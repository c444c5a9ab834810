"""Packed solutions stand alone, and a mistake in one is reported in one line."""

import ast
import re
import signal
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest
import tiny_solution
import torch
from flashinfer_bench import TraceSet
from flashinfer_bench.compile import BuilderRegistry
from moebench import cli
from moebench.core import paths
from moebench.judging import selection
from moebench.judging.device import survey
from moebench.operators.catalogue import definition
from moebench.packing import build_ahead, manifest, pack, problem
from packed_sources import packed_texts, write_texts
from process_tree import descendants, goes_on
from tiny_solution import MAIN, MANIFEST

SOLUTIONS = manifest.solution_names()


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The solutions folder, with one small torch solution."""
    return tiny_solution.make(tmp_path, monkeypatch)


@pytest.fixture
def add_to_manifest(folder):
    """A function that adds a line to tiny's manifest."""

    def add(line):
        with (folder / "tiny" / "solution.toml").open("a") as file:
            file.write(f"{line}\n")

    return add


def packed_sources(name="tiny"):
    """Return path -> text of what is packed for the small layer."""
    return packed_texts(name, "small")


def write_variant(folder, name, base):
    """Write a manifest like tiny's of a solution `name`, based on `base`."""
    text = MANIFEST.replace('"tiny"', f'"{name}"')
    write_texts(folder, {f"{name}/solution.toml": f'{text}based_on = "{base}"\n'})


def fault(name="tiny"):
    """Return the line that says why a solution cannot be packed."""
    with pytest.raises(manifest.PackingError) as caught:
        pack.pack(name)
    line = str(caught.value)
    assert line.startswith(f"{name}: ")
    assert "\n" not in line
    return line


# What FIB gets


def test_fib_reads_builds_and_runs_what_is_packed(folder):
    pack.write_packed([])
    trace_set = TraceSet.from_path(str(folder.parent))
    solution = trace_set.get_solution("tiny_h512_i256")
    assert trace_set.get_solution("tiny").definition == definition("full").name

    run = BuilderRegistry.get_instance().build(definition("small"), solution)
    output = torch.zeros(3, 512, dtype=torch.bfloat16)
    run(*[None] * 10, output)
    assert (output == 1).all()


def test_packed_folder_has_what_there_is(folder):
    """No solution stays that FIB would still find after it is renamed."""
    write_variant(folder, "variant", "tiny")
    before = {path.name for path in pack.write_packed([])}
    (folder / "tiny").rename(folder / "renamed")
    for name in ("renamed", "variant"):
        edit(folder / name / "solution.toml", '"tiny"', '"renamed"')

    assert cli.main(["pack", "renamed"]) == 0
    assert names_below(folder / "packed") == before | {"renamed.json"}

    assert cli.main(["pack"]) == 0
    assert names_below(folder / "packed") == {"renamed.json", "variant.json"}


def names_below(folder):
    return {path.name for path in folder.rglob("*.json")}


def test_a_packed_file_is_ascii_whoever_reads_it(folder):
    description = "Schreibt lauter Einsen für alle."
    edit(folder / "tiny" / "solution.toml", "Writes ones.", description)
    for path in pack.write_packed(["tiny"]):
        assert path.read_bytes().isascii()
        trace_set = TraceSet.from_path(str(folder.parent))
        assert trace_set.get_solution("tiny").description == description


@pytest.mark.parametrize(
    ("file", "text", "line"),
    [
        ("main.py", MAIN + "# 3 µs\n", 5),
        ("kernel.cuh", "// 3 µs\n", 1),
        ("table.csv", "gpu,name\nH200,Größe\n", 2),
        (
            "common/host/ones.py",
            "def ones(output):\n    output.fill_(1)  # → ones\n",
            2,
        ),
    ],
)
def test_a_source_that_is_not_ascii_is_refused(folder, file, text, line):
    place = folder / file if file.startswith("common/") else folder / "tiny" / file
    place.write_text(text, encoding="utf-8")
    assert fault().startswith(f"tiny: {file}:{line}: ")


# Which files are packed


def test_imports_and_includes_are_followed(folder):
    write_texts(
        folder,
        {
            "tiny/main.py": f"from ..common.host import ones\nfrom .few import launch\n{MAIN}",
            "tiny/few/launch.py": "from ...common.host.sizes import N\nfrom .. import main\n",
            "tiny/few/kernel.cu": '#include <cuda.h>\n#include "common/cuda/a.cuh"\n',
            "tiny/few/own.cuh": '#include "tiny/few/other.cuh"\n',
            "tiny/few/other.cuh": '#include "library.h"\n',
            "common/host/sizes.py": "def size():\n    from .table import rows\n",
            "common/host/table.py": "rows = 1\n",
            "common/host/table.csv": "a\n1\n",
            "common/host/unused.py": "nothing = 1\n",
            "common/cuda/a.cuh": '#include "common/cuda/b.cuh"\n',
            "common/cuda/b.cuh": "// b\n",
            "common/cuda/b.cu": '  #  include "common/cuda/c.cuh"\n',
            "common/cuda/c.cuh": '#include "d.h"\n',
            "common/cuda/d.h": "// d\n",
            "common/cuda/unused.cuh": "// unused\n",
        },
    )
    sources = packed_sources()
    assert set(sources) == {
        "main.py",
        "few/launch.py",
        "few/kernel.cu",
        "few/own.cuh",
        "few/other.cuh",
        "common/host/ones.py",
        "common/host/sizes.py",
        "common/host/table.py",
        "common/host/table.csv",
        "common/cuda/a.cuh",
        "common/cuda/b.cuh",
        "common/cuda/b.cu",
        "common/cuda/c.cuh",
        "common/cuda/d.h",
    }
    first_imports = "from .common.host import ones\nfrom .few import launch\n"
    assert sources["main.py"].startswith(first_imports)
    changed = {
        "few/launch.py": "from ..common.host.sizes import N\nfrom .. import main\n",
        "few/kernel.cu": '#include <cuda.h>\n#include "a.cuh"\n',
        "few/own.cuh": '#include "other.cuh"\n',
        "few/other.cuh": '#include "library.h"\n',
        "common/cuda/b.cu": '  #  include "c.cuh"\n',
        "common/host/sizes.py": "def size():\n    from .table import rows\n",
    }
    for path, text in changed.items():
        assert sources[path] == text


def test_units_are_packed_with_what_they_include(folder, add_to_manifest):
    write_texts(
        folder,
        {
            "common/cuda/binding.cu": '#include "common/cuda/a.cuh"\n',
            "common/cuda/a.cuh": "// a\n",
        },
    )
    assert "common/cuda/a.cuh" not in packed_sources()
    add_to_manifest('units = ["common/cuda/binding.cu"]')
    assert {"common/cuda/binding.cu", "common/cuda/a.cuh"} < set(packed_sources())


def test_an_empty_marker_of_a_package_is_left_out(folder):
    """An editor may want it; FIB takes no empty file."""
    write_texts(
        folder,
        {
            "tiny/__init__.py": "",
            "tiny/few/__init__.py": "",
            "tiny/few/a.py": "N = 1\n",
        },
    )
    edit(folder / "tiny" / "main.py", MAIN, f"from .few import a\n{MAIN}")
    assert set(packed_sources()) == {"main.py", "few/a.py", "common/host/ones.py"}


def test_a_solution_based_on_another_differs_by_its_own_files(folder):
    write_texts(
        folder,
        {
            "tiny/value.py": "VALUE = 1\n",
            "tiny/kernel.cuh": "// shared\n",
            "tiny/few/a.cu": '#include "tiny/kernel.cuh"\n',
            "variant/value.py": "from ..tiny.main import run\nVALUE = 2\n",
            "variant/b.cu": '#include "tiny/kernel.cuh"\n#include "variant/b.cuh"\n',
            "variant/b.cuh": "// b\n",
        },
    )
    write_variant(folder, "variant", "tiny")
    assert packed_sources("variant") == packed_sources("tiny") | {
        "value.py": "from .main import run\nVALUE = 2\n",
        "b.cu": '#include "kernel.cuh"\n#include "b.cuh"\n',
        "b.cuh": "// b\n",
    }
    assert pack.pack("variant")["small"].name == "variant_h512_i256"


def test_a_variant_has_its_bases_stages_and_units(folder, add_to_manifest):
    write_texts(folder, {"common/cuda/a.cu": "// a\n"})
    before = pack.pack("tiny")["small"]
    add_to_manifest('stages = { ones = "ones" }')
    assert pack.pack("tiny")["small"] == before

    add_to_manifest('units = ["common/cuda/a.cu"]')
    write_variant(folder, "variant", "tiny")
    assert manifest.read_manifest("variant").stages == {"ones": "ones"}
    assert "common/cuda/a.cu" in packed_sources("variant")


def test_origins_lead_back_to_the_repository(folder):
    write_variant(folder, "variant", "tiny")
    write_texts(folder, {"variant/more.py": "N = 1\n"})
    assert pack.repository_paths("variant") == {
        "main.py": PurePosixPath("solutions/tiny/main.py"),
        "more.py": PurePosixPath("solutions/variant/more.py"),
        "common/host/ones.py": PurePosixPath("solutions/common/host/ones.py"),
    }


@pytest.mark.parametrize("base", ["tinny", "third", "second"])
def test_a_base_must_be_another_solution_that_has_none(folder, base):
    write_variant(folder, "second", "tiny")
    write_variant(folder, "third", base)
    assert fault("third").startswith(f"third: solution.toml: based_on: got '{base}'")


# What is written for each definition


def test_a_definition_takes_its_own_rows_of_a_table_alone(folder):
    """Tiles that are tuned for one definition leave the traces of the others current."""
    rows = {
        "full": "H200,e32_h7168_i2048,1\n",
        "small": "H200,e32_h512_i256,1\n",
        "another": "H200,e2_h7168_i2048,1\n",
    }
    header = "gpu,sizes,tokens\n"
    (folder / "tiny" / "tiles.csv").write_text(header + "".join(rows.values()))
    for layer_key in ("full", "small"):
        assert packed_texts("tiny", layer_key)["tiles.csv"] == header + rows[layer_key]


def test_each_interface_has_its_function(folder, add_to_manifest):
    main = f"{MAIN}\n\ndef run_renorm(): ...\n\n\ndef run_routed(): ...\n"
    write_texts(folder, {"tiny/main.py": main})
    add_to_manifest('definitions = ["full", "qwen3-30b", "deepseek-v3-ep8-routed"]')
    add_to_manifest('renorm_entry_point = "main.py::run_renorm"')
    add_to_manifest('routed_entry_point = "main.py::run_routed"')
    packed = pack.pack("tiny").values()
    entry_points = [solution.spec.entry_point for solution in packed]
    assert entry_points == [
        "main.py::run",
        "main.py::run_renorm",
        "main.py::run_routed",
    ]


@pytest.mark.parametrize("name", problem.FILES)
def test_constants_beside_the_kernels_are_the_first_definitions(name):
    assert (paths.SOLUTIONS / name).read_text() == problem.packed_text(name, "full")


@pytest.mark.parametrize("solution", ["hopper_fused", "triton_fused_v2"])
def test_constants_that_are_packed_are_the_definitions(solution):
    for layer_key, packed in pack.pack(solution).items():
        texts = {source.path: source.content for source in packed.sources}
        constants = texts.keys() & problem.FILES
        assert constants
        for path in constants:
            in_tree = problem.packed_text(path, layer_key)
            assert without_folders(texts[path]) == without_folders(in_tree)


def without_folders(text):
    """Return a header's text with the includes that it has in a packed solution."""
    return re.sub(r'(#include ")[\w/]+/', r"\1", text)


def test_constants_follow_the_interface():
    routed = problem.packed_text("common/host/interface.py", "small-routed")
    inside = problem.packed_text("common/cuda/layer/interface.cuh", "qwen3-30b")
    assert "GATE_FIRST = True\n" in routed
    assert "constexpr bool kGateFirst = false;\n" in inside


@pytest.mark.parametrize("name", problem.FILES)
def test_a_solutions_own_file_of_such_a_name_stays(name):
    path = name.removeprefix("common/")
    assert problem.packed_text(path, "full", "theirs") == "theirs"


@pytest.mark.parametrize("name", SOLUTIONS)
def test_our_solutions_never_import_the_harness(name):
    """A packed solution runs where this repository is not."""
    ours = {"moebench", "definitions", "scripts", "solutions"}
    texts = set()
    for solution in pack.pack(name).values():
        for source in solution.sources:
            if source.path.endswith(".py"):
                texts.add(source.content)
    for text in texts:
        assert not ours & top_level_imports(text), text


def top_level_imports(text):
    modules = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            modules.update(alias.name.partition(".")[0] for alias in node.names)
        if isinstance(node, ast.ImportFrom) and not node.level:
            modules.add(node.module.partition(".")[0])
    return modules


# Mistakes


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ('units = ["common/cuda/x.cu"]', "units: got"),
        ('unit = ["x.cu"]', "unit: "),
        ('definitions = ["x"]', "definitions.0: "),
    ],
)
def test_a_wrong_line_of_a_manifest_is_named(add_to_manifest, line, place):
    add_to_manifest(line)
    assert place in fault()


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ('name = "tiny"', 'name = "small"', "name: got 'small'"),
        ("py::run", "py::go", "entry_point: got 'main.py::go'"),
        ("py::run", "py", "entry_point: got 'main.py'"),
        ('["cpu"]', '["cpu", "hopper"]', "target_hardware.1: "),
        ('"tests"', '"../tests"', "author: "),
    ],
)
def test_a_wrong_value_in_a_manifest_is_named(folder, old, new, place):
    edit(folder / "tiny" / "solution.toml", old, new)
    assert place in fault()


@pytest.mark.parametrize(
    ("module", "named"),
    [
        ("..common.host.twos", "imports common/host/twos.py"),
        (".ones", "imports tiny/ones.py"),
        ("...common.host.ones", ""),
        ("..other.main", ""),
        ("..", ""),
        ("solutions.common.host.ones", "imports solutions.common"),
    ],
)
def test_an_import_of_what_is_not_packed_is_named(folder, module, named):
    edit(folder / "tiny" / "main.py", "..common.host.ones", module)
    assert f"main.py:1: {named}" in fault()


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("def run", "def run(", "main.py:3"),
        ("ones(output)", "1" + "+1" * 20000, "RecursionError"),
    ],
)
def test_a_source_that_cannot_be_parsed_is_named(folder, old, new, place):
    edit(folder / "tiny" / "main.py", old, new)
    assert place in fault()


def test_a_module_that_a_folder_does_not_have_is_named(folder):
    main = folder / "tiny" / "main.py"
    edit(main, "from ..common.host.ones import ones", "from ..common.host import ones")
    assert pack.pack("tiny")
    edit(main, "import ones", "import ones, twos")
    assert "main.py:1: imports common/host/twos.py" in fault()


@pytest.mark.parametrize("name", ["common/cuda/none.cuh", "tiny/none.cuh"])
def test_a_header_that_is_not_there_is_named(folder, name):
    write_texts(folder, {"tiny/few/kernel.cu": f'// 1\n#include "{name}"\n'})
    assert fault().startswith(f"tiny: few/kernel.cu:2: includes {name}")


def test_an_empty_source_is_named(folder):
    write_texts(folder, {"tiny/few/kernel.cu": ""})
    assert fault().startswith("tiny: few/kernel.cu: ")


def test_common_imports_nothing_of_a_solution(folder):
    edit(folder / "common/host/ones.py", "def", "from ...tiny import main\n\n\ndef")
    assert fault().startswith("tiny: common/host/ones.py:1: ")


def test_two_headers_of_one_name_are_refused(folder):
    """Packed sources include headers by name, whatever their folders."""
    write_texts(
        folder,
        {
            "tiny/route.cuh": '#include "common/cuda/copy.cuh"\n',
            "common/cuda/tokens/route.cuh": "// one\n",
            "common/cuda/copy.cuh": "// one\n",
        },
    )
    assert {"route.cuh", "common/cuda/copy.cuh"} < set(packed_sources())
    edit(folder / "tiny" / "route.cuh", "copy.cuh", "route.cuh")
    assert re.match("tiny: .*route.cuh", fault())


BROKEN = {
    "solution.toml": ('name = "tiny"', "name = "),
    "main.py": ("def run", "def run("),
}


@pytest.fixture(params=BROKEN)
def broken_file(request, folder):
    """The name of a file of tiny that is broken, beside a solution that is not."""
    text = MANIFEST.replace('"tiny"', '"sound"')
    write_texts(folder, {"sound/solution.toml": text, "sound/main.py": MAIN})
    edit(folder / "tiny" / request.param, *BROKEN[request.param])
    return request.param


def test_a_broken_solution_leaves_the_others_to_pack(broken_file, refusal, capsys):
    assert cli.main(["pack"]) == 1
    shown = capsys.readouterr()
    assert [Path(line).stem for line in shown.out.splitlines()] == ["sound", "sound"]
    assert shown.err.startswith(f"tiny: {broken_file}:")

    assert cli.main(["pack", "sound"]) == 0
    status, line = refusal("pack", "tiny")
    assert status == 1
    assert line.startswith(f"tiny: {broken_file}:")


def test_a_broken_solution_leaves_the_others_to_run(broken_file, no_gpu):
    readable = ["sound"] if broken_file == "solution.toml" else ["sound", "tiny"]
    assert manifest.choose([]) == manifest.solutions_of(["small"]) == readable

    solutions, skipped = selection.eligible([], "small", survey())
    assert list(solutions) == ["sound"]
    assert skipped[0].startswith("tiny: SKIPPED: ")
    assert broken_file in skipped[0]
    with pytest.raises(manifest.PackingError):
        selection.eligible(["tiny"], "small", survey())


# Built ahead


def test_what_is_built_ahead_and_what_is_not_is_said(folder, add_to_manifest, capsys):
    assert cli.main(["pack", "--build"]) == 0
    ones = folder / "common" / "host" / "ones.py"
    edit(ones, "def", "raise RuntimeError('no nvcc')\ndef")
    assert build_ahead.build(["tiny"]) == 1
    lines = capsys.readouterr().out.splitlines()[-2:]
    assert all(line.endswith("no nvcc") for line in lines)

    add_to_manifest('dependencies = ["nowhere"]')
    assert build_ahead.build(["tiny"]) == 0
    assert "nowhere" in capsys.readouterr().out


SLOW = """
import os, subprocess, sys, tempfile
file, path = tempfile.mkstemp()
code = "import subprocess, sys; subprocess.run(['sleep', '60'])"
subprocess.run([sys.executable, "-c", code])
"""
COMMAND = """
import sys
from pathlib import Path
from moebench import cli
from moebench.core import paths
paths.SOLUTIONS = Path(sys.argv[1])
sys.exit(cli.main(["pack", "tiny", "--build", "--definition", "small"]))
"""


def test_an_interrupted_build_is_undone(folder, tmp_path, monkeypatch):
    """What a compiler has started ends, and its temporary files and FIB's folder go."""
    temporary = tmp_path / "tem porary"
    cache = tmp_path / "ca che"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("FIB_CACHE_PATH", str(cache))
    edit(folder / "common" / "host" / "ones.py", "def ones", f"{SLOW}\ndef ones")
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, folder], start_new_session=True
    )
    try:
        started = descendants(process, 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    finally:
        process.kill()

    assert not any(map(goes_on, started))
    assert list(temporary.iterdir()) == []
    assert not any(path.is_file() for path in cache.rglob("*"))
    assert list((cache / "python").iterdir()) == []
