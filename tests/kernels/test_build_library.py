"""build_library: a library is compiled once for each content, by one process, and found again
without a compiler.
"""

import multiprocessing
import os
import shutil
import time
from types import SimpleNamespace

import pytest

from solutions.common.host import build_library as built

COMPILERS = ("ninja", "c++")
pytestmark = pytest.mark.skipif(
    None in map(shutil.which, COMPILERS), reason=f"needs {' and '.join(COMPILERS)}"
)
needs_nvcc = pytest.mark.skipif(built.find_toolkit() is None, reason="needs nvcc")

TEXTS = {
    "here/one.cpp": '#include "two.cuh"\nint one() { return TWO - 1; }\n',
    "there/two.cuh": "#define TWO 2\n",
}
KERNEL = "__global__ void fill(float* out) { out[0] = 1; }\n"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache."""
    monkeypatch.setenv("TVM_FFI_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """A C++ compiler that notes each start in `log` and takes `seconds`."""
    log, seconds, program = tmp_path / "log", tmp_path / "seconds", tmp_path / "slow-c++"
    log.touch()
    seconds.write_text("1")
    program.write_text(f'#!/bin/sh\necho "$*" >> {log}\nsleep $(cat {seconds})\nexec c++ "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("CXX", str(program))
    return SimpleNamespace(log=log, seconds=seconds)


def start():
    """A process that builds TEXTS."""
    process = multiprocessing.get_context("fork").Process(
        target=built.build_library, args=("tiny", TEXTS)
    )
    process.start()
    return process


def without_compilers(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(built, "DEFAULT_TOOLKIT", tmp_path / "no toolkit")


def test_the_key_follows_content_and_not_place(tmp_path, monkeypatch):
    """A compilation in every process, an old library after a change, or one of
    another tvm_ffi.
    """
    keys = []
    for place in ("first", "second/below"):
        for path, text in {**TEXTS, "main.py": "", "few/a.cu": KERNEL}.items():
            (tmp_path / place / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / place / path).write_text(text)
        texts = built.read_sources(tmp_path / place)
        keys.append(built.content_key(texts, "9.0a", ("-O3",), "4.5"))
    assert sorted(texts) == ["few/a.cu", "there/two.cuh"]
    assert (
        keys[0]
        == keys[1]
        == built.content_key(dict(reversed(texts.items())), "9.0a", ["-O3"], "4.5")
    )
    changed = [texts | {"there/two.cuh": "#define TWO 3\n"}, texts | {"there/three.cuh": ""}]
    others = [built.content_key(some, "9.0a", ("-O3",), "4.5") for some in changed]
    for of in (("10.0a", ("-O3",), "4.5"), ("9.0a", ("-O2",), "4.5"), ("9.0a", ("-O3",), "4.6")):
        others.append(built.content_key(texts, *of))
    monkeypatch.setattr(built.tvm_ffi, "__version__", "0.0")
    others.append(built.content_key(texts, "9.0a", ("-O3",), "4.5"))
    assert len({keys[0], *others}) == 1 + len(others)


def test_a_finished_library_needs_no_compiler(cache, monkeypatch, tmp_path):
    """An image for serving that has to bring nvcc, ninja and a cache that can be
    written.
    """
    options = {"architecture": "9.0a", "flags": ("-O3",)}
    monkeypatch.setattr(built, "find_toolkit", lambda: tmp_path)
    library = built.build_library("tiny", TEXTS, **options)
    monkeypatch.undo()
    carried = tmp_path / "carried"
    shutil.copytree(cache, carried)
    shutil.rmtree(cache)
    monkeypatch.setenv("TVM_FFI_CACHE_DIR", str(carried))
    without_compilers(monkeypatch, tmp_path)
    carried.chmod(0o555)
    found = built.build_library("tiny", TEXTS, **options)
    carried.chmod(0o755)
    assert found.relative_to(carried) == library.relative_to(cache)
    built.load_library(found)


def test_what_is_missing_is_named(monkeypatch, tmp_path):
    """Which program to install."""
    programs = tmp_path / "programs"
    programs.mkdir()
    without_compilers(monkeypatch, programs)
    with pytest.raises(RuntimeError, match="ninja"):
        built.build_library("tiny", TEXTS)
    (programs / "ninja").touch(mode=0o755)
    with pytest.raises(RuntimeError, match="nvcc"):
        built.build_library("tiny", TEXTS, architecture="9.0a")


def test_processes_that_start_together_compile_once(compiler, cache):
    """Eight ranks that compile side by side, or one that loads what another
    still writes.
    """
    processes = [start() for _ in range(3)]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert len(compiler.log.read_text().splitlines()) == 2  # the one file, and the linker
    assert len(list(cache.glob("*/tiny.so"))) == 1


def test_a_killed_build_is_begun_again(compiler, cache):
    """Half a library that is taken for a whole one, or a lock that is never
    released.
    """
    compiler.seconds.write_text("3")
    process = start()
    while not compiler.log.read_text():
        assert process.is_alive()
        time.sleep(0.05)
    process.kill()
    process.join()
    assert [path.name for path in cache.glob("*.part*")] and not list(cache.glob("*/*.so"))
    compiler.seconds.write_text("0")
    begun = time.monotonic()
    library = built.build_library("tiny", TEXTS)
    assert time.monotonic() - begun < 3, "it waited for the killed one's compiler"
    built.load_library(library)
    assert sorted(path.name for path in cache.iterdir()) == [
        library.parent.name,
        f"{library.parent.name}.lock",
    ]
    assert library.parent.stat().st_mode == cache.stat().st_mode, "others cannot read it"


@needs_nvcc
def test_nvcc_that_fails_is_quoted_and_leaves_the_environment(monkeypatch):
    """Why it does not compile, or later builds of others for the wrong GPU."""
    monkeypatch.setenv("TVM_FFI_CUDA_ARCH_LIST", "8.0")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    environment = dict(os.environ)
    with pytest.raises(RuntimeError, match=r"(?s)tiny_\w+ .*stray.cu.*lost"):
        built.build_library("tiny", {"stray.cu": KERNEL.replace("1", "lost")}, architecture="9.0a")
    assert dict(os.environ) == environment


@needs_nvcc
def test_a_kernel_is_compiled_for_its_architecture(cache):
    """Code for the GPU that happens to be here; which definition a folder of the
    cache is of.
    """
    texts = {
        "a/fill.cu": KERNEL,
        "common/cuda/problem.cuh": "// problem: moe_e8_h128. Packing writes this file.\n",
    }
    library = built.build_library("tiny", texts, architecture="9.0a")
    assert library.parent.name.startswith("tiny_moe_e8_h128_")
    assert "arch=compute_90a,code=sm_90a" in (library.parent / "build.ninja").read_text()
    assert not list(library.parent.glob("*.o")) and list(library.parent.glob(".ninja_deps"))
    built.load_library(library)


def test_the_toolkit_is_found(monkeypatch, tmp_path):
    """A toolkit that is there; a linker without its libraries where nvcc is only
    a script.
    """

    def toolkit(name, *folders):
        for folder in ("bin", *folders):
            (tmp_path / name / folder).mkdir(parents=True)
        (tmp_path / name / "bin" / "nvcc").touch(mode=0o755)
        return tmp_path / name

    named, whole, forwarding = (
        toolkit("named", "lib64"),
        toolkit("whole", "lib64"),
        toolkit("forwarding"),
    )
    without_compilers(monkeypatch, tmp_path)
    assert built.find_toolkit() is None
    monkeypatch.setenv("PATH", str(forwarding / "bin"))
    assert built.find_toolkit() == forwarding
    monkeypatch.setattr(built, "DEFAULT_TOOLKIT", whole)
    assert built.find_toolkit() == whole
    # the last is no toolkit, and changes nothing
    settings = {
        "PATH": (named / "bin", named),
        "CUDA_PATH": (whole, whole),
        "CUDA_HOME": (tmp_path, whole),
    }
    for name, (value, found) in settings.items():
        monkeypatch.setenv(name, str(value))
        assert built.find_toolkit() == found
