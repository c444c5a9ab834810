"""Packages of packed solutions: what they export, what pip installs, and names that are refused."""

import ast
import importlib
import shutil
import sys
import tomllib

import pytest
import tiny_solution
import torch
from moebench.core import paths
from moebench.core.errors import UserError
from moebench.packing import pack, python_package

MORE_MANIFEST = """
renorm_entry_point = "main.py::run_renorm"
routed_entry_point = "main.py::run_routed"
dependencies = ["deep_gemm"]
definitions = ["full", "deepseek-v3-ep8-routed"]
"""
MORE_MAIN = """
def run_renorm(): ...


def run_routed(): ...


def run_routed_bf16(): ...
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The solutions folder, with one small torch solution."""
    return tiny_solution.make(tmp_path, monkeypatch, MORE_MANIFEST, MORE_MAIN)


def write(parent, layer_keys=()):
    return python_package.pack_packages(["tiny"], parent, list(layer_keys))


def project(parent):
    return tomllib.loads((parent / "pyproject.toml").read_text())


def test_it_runs_without_flashinfer_bench(folder, tmp_path, monkeypatch):
    assert write(tmp_path / "engine") == [tmp_path / "engine" / "tiny"]
    for module in ("flashinfer_bench", "moebench"):
        monkeypatch.setitem(sys.modules, module, None)  # importing it raises
    monkeypatch.syspath_prepend(tmp_path)

    output = torch.zeros(3, 512, dtype=torch.bfloat16)
    importlib.import_module("engine.tiny").run(*[None] * 10, output)
    assert (output == 1).all()


def test_it_exports_what_its_definition_needs(folder, tmp_path):
    parent = tmp_path / "moe"
    full, routed = write(parent, ["full", "deepseek-v3-ep8-routed"])
    assert (full / "__init__.py").read_text().splitlines()[2:] == [
        "from .main import run  # noqa: F401"
    ]
    name = pack.pack("tiny")["deepseek-v3-ep8-routed"].definition
    sizes = {
        "num_local_experts": 32,
        "top_k": 8,
        "hidden_size": 7168,
        "intermediate_size": 2048,
    }
    assert (routed / "__init__.py").read_text().splitlines()[2:] == [
        "from .main import run_routed as run  # noqa: F401",
        "from .main import run_routed_bf16 as run_bf16  # noqa: F401",
        "",
        f'DEFINITION = "{name}"',
        f"SIZES = {sizes}",
    ]


def test_it_exports_a_sum_over_gpus_where_there_is_one(folder, tmp_path):
    main = folder / "tiny" / "main.py"
    text = main.read_text()
    main.write_text(
        f"from .peers import Peers\n{text}\n\nrun_routed_allreduce = print\n"
    )
    (folder / "tiny" / "peers.py").write_text("class Peers: ...\n")

    full, routed = write(tmp_path / "moe", ["full", "deepseek-v3-ep8-routed"])
    assert "allreduce" not in (full / "__init__.py").read_text()
    assert (routed / "__init__.py").read_text().splitlines()[3:6] == [
        "from .main import run_routed_bf16 as run_bf16  # noqa: F401",
        "from .main import run_routed_allreduce as run_allreduce  # noqa: F401",
        "from .main import Peers  # noqa: F401",
    ]


def imported_by(file):
    """Return the modules that a file imports names from, in their spelling."""
    modules = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            modules.append("." * node.level + (node.module or ""))
    return modules


def test_adapters_go_where_an_engine_can_call_it(folder, tmp_path):
    full, routed = write(tmp_path / "moe", ["full", "deepseek-v3-ep8-routed"])
    names = {path.name for path in paths.INTEGRATIONS.rglob("for_*.py")}
    assert len(names) > 3
    assert {path.name for path in routed.glob("for_*.py")} == names
    assert list(full.glob("for_*.py")) == []


def test_what_an_adapter_imports_of_ours_is_beside_it(folder, tmp_path):
    (routed,) = write(tmp_path / "moe", ["deepseek-v3-ep8-routed"])
    for adapter in routed.glob("for_*.py"):
        modules = imported_by(adapter)
        assert any(module.startswith(".") for module in modules)
        elsewhere = ("..", "solutions", "integrations")
        assert not any(module.startswith(elsewhere) for module in modules), modules


def test_pip_and_engines_find_it(folder, tmp_path):
    parent = tmp_path / "moe"
    _, routed = write(parent, ["full", "deepseek-v3-ep8-routed"])
    values = project(parent)
    assert values["project"]["entry-points"] == {
        "vllm.general_plugins": {routed.name: f"moe.{routed.name}.for_vllm:register"},
        "sglang.srt.plugins": {routed.name: f"moe.{routed.name}.for_sglang:register"},
    }
    assert values["tool"]["setuptools"]["packages"] == [
        "moe",
        "moe.tiny",
        "moe.tiny.common",
        "moe.tiny.common.host",
        f"moe.{routed.name}",
        f"moe.{routed.name}.common",
        f"moe.{routed.name}.common.host",
    ]
    assert values["project"]["dependencies"] == []


def test_it_is_not_written_over_another(folder, tmp_path):
    """A file of an older version that stays there would be compiled along."""
    parent = tmp_path / "engine"
    write(parent)
    before = (parent / "pyproject.toml").read_text()
    with pytest.raises(UserError, match="engine/tiny"):
        write(parent)
    assert (parent / "pyproject.toml").read_text() == before


def test_what_pip_built_of_older_sources_goes(folder, tmp_path):
    parent = tmp_path / "engine"
    write(parent)
    (parent / "build" / "lib").mkdir(parents=True)
    (parent / "build" / "mine").write_text("")
    shutil.rmtree(parent / "tiny")
    write(parent)
    assert [path.name for path in (parent / "build").iterdir()] == ["mine"]


def test_a_project_of_the_users_is_left_alone(folder, tmp_path):
    parent = tmp_path / "project"
    parent.mkdir()
    (parent / "pyproject.toml").write_bytes(b"theirs, in Latin-1: \xfc")
    with pytest.raises(UserError, match="pyproject.toml"):
        write(parent)
    assert [path.name for path in parent.iterdir()] == ["pyproject.toml"]


@pytest.mark.parametrize("users_files", [[], ["mine.txt"]])
def test_nothing_stays_where_writing_is_interrupted(
    folder, tmp_path, monkeypatch, users_files
):
    parent = tmp_path / "moe"
    for name in users_files:
        parent.mkdir()
        (parent / name).touch()
    written = []

    def interrupted(path, content):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    monkeypatch.setattr(python_package, "write_atomically", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(parent)
    assert len(written) == 2
    assert [path.name for path in parent.glob("*")] == users_files
    assert parent.exists() == bool(users_files)


NO_NAMES = [
    "no-name",
    "_moe",
    "moe_",
    "m\N{LATIN SMALL LETTER O WITH DIAERESIS}",
    "1moe",
    "class",
]
PYTHONS = ["json", "test", "tomllib", "Random", "distutils", "pip", "wheel"]
INSTALLED = [
    "numpy",
    "NumPy",
    "yaml",
    "pil",
    "google",
    "flashinfer_python",
    "tvm_ffi",
    "moebench",
]
ENGINES = ["flashinfer", "vllm", "sglang", "transformers", "deep_gemm"]


@pytest.mark.parametrize("name", NO_NAMES + PYTHONS + INSTALLED + ENGINES)
def test_a_name_that_is_taken_is_refused(folder, tmp_path, name):
    with pytest.raises(UserError, match="^--package: "):
        write(tmp_path / name)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["moe", "engine", "my_numpy", "torch_moe", "Moe2"])
def test_a_new_name_is_taken(folder, tmp_path, name):
    assert write(tmp_path / name) == [tmp_path / name / "tiny"]


@pytest.mark.parametrize(
    ("summary", "is_refused"), [(python_package.SUMMARY, False), ("Theirs", True)]
)
def test_only_an_installed_package_of_this_command_is_replaced(
    folder, tmp_path, monkeypatch, summary, is_refused
):
    """After `pip install ./moe` it is packed again under the same name."""
    installed = tmp_path / "site" / "my_moe-1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text(
        f"Name: my-moe\nVersion: 1\nSummary: {summary}\n"
    )
    (installed / "top_level.txt").write_text("my_moe\n")
    monkeypatch.syspath_prepend(tmp_path / "site")

    if is_refused:
        with pytest.raises(UserError, match="my-moe"):
            write(tmp_path / "my_moe")
    else:
        write(tmp_path / "my_moe")
        assert project(tmp_path / "my_moe")["project"]["description"] == summary
