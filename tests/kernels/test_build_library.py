"""build_library: a library is compiled once for each content, by one process, and found again
without a compiler. What is interrupted leaves nothing.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
from moebench.core import paths
from packed_sources import write_texts
from process_tree import goes_on

from solutions.common.host import build_library as built

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs c++")
needs_nvcc = pytest.mark.skipif(built.find_toolkit() is None, reason="needs nvcc")

TEXTS = {
    "here/one.cpp": '#include "two.cuh"\nint one() { return TWO - 1; }\n',
    "there/two.cuh": "#define TWO 2\n",
}
KERNEL = "__global__ void fill(float* out) { out[0] = 1; }\n"
# SIGINT interrupts it also where the tests run in a shell's background, which ignores SIGINT.
PROGRAM = f"""
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from solutions.common.host.build_library import build_library
build_library("tiny", {TEXTS!r})
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache."""
    monkeypatch.setenv("TVM_FFI_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """A C++ compiler that notes each start in `log`, makes a temporary file and takes `seconds`."""
    log = tmp_path / "log"
    seconds = tmp_path / "seconds"
    program = tmp_path / "slow-c++"
    log.touch()
    seconds.write_text("1")
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$$ $*" >> {log}\n'
        f'echo begun > "$TMPDIR/begun.$$"\n'
        f"sleep $(cat {seconds})\n"
        'exec c++ "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("CXX", str(program))
    return SimpleNamespace(log=log, seconds=seconds)


def start():
    """Start a process that builds TEXTS."""
    return subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=paths.ROOT)


def wait_for_compiler(compiler, process):
    while not compiler.log.read_text():
        assert process.poll() is None
        time.sleep(0.05)


def without_compilers(monkeypatch, folder):
    monkeypatch.setenv("PATH", str(folder))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(built, "DEFAULT_TOOLKIT", folder / "no toolkit")


def key(texts=TEXTS, architecture="9.0a", flags=("-O3",), headers_version="4.5"):
    return built.content_key(texts, architecture, flags, headers_version)


def test_the_key_is_of_content_and_not_of_place(tmp_path):
    files = {**TEXTS, "main.py": "", "few/a.cu": KERNEL}
    write_texts(tmp_path / "first", files)
    write_texts(tmp_path / "second" / "below", files)

    first = built.read_sources(tmp_path / "first")
    second = built.read_sources(tmp_path / "second" / "below")

    assert sorted(first) == ["few/a.cu", "there/two.cuh"]
    assert key(first) == key(second)
    assert key(first) == key(dict(reversed(first.items())))


def test_the_key_is_of_all_that_decides_a_library(monkeypatch):
    keys = {
        key(),
        key(TEXTS | {"there/two.cuh": "#define TWO 3\n"}),
        key(TEXTS | {"there/three.cuh": ""}),
        key(architecture="10.0a"),
        key(flags=("-O2",)),
        key(headers_version="4.6"),
    }
    monkeypatch.setattr(built.tvm_ffi, "__version__", "0.0")
    keys.add(key())
    assert len(keys) == 7


def test_a_finished_library_needs_no_compiler(cache, monkeypatch, tmp_path):
    """An image for serving brings a copy of the cache, which cannot be written."""
    library = built.build_library("tiny", TEXTS)
    carried = tmp_path / "carried"
    shutil.copytree(cache, carried)
    shutil.rmtree(cache)
    monkeypatch.setenv("TVM_FFI_CACHE_DIR", str(carried))
    without_compilers(monkeypatch, tmp_path)

    carried.chmod(0o555)
    copy = built.build_library("tiny", TEXTS)
    carried.chmod(0o755)

    assert copy.relative_to(carried) == library.relative_to(cache)
    built.load_library(copy)


def test_a_missing_compiler_is_named(monkeypatch, tmp_path):
    without_compilers(monkeypatch, tmp_path)
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(RuntimeError, match=r"c\+\+"):
        built.build_library("tiny", TEXTS)


def test_a_missing_nvcc_is_named(monkeypatch, tmp_path):
    (tmp_path / "c++").touch(mode=0o755)
    without_compilers(monkeypatch, tmp_path)
    with pytest.raises(RuntimeError, match="nvcc"):
        built.build_library("tiny", TEXTS, architecture="9.0a")


@pytest.fixture
def build_in(tmp_path, monkeypatch):
    """A function that builds texts with a header of others in a folder, where the cache and
    temporary files lie as well. Returns the library.
    """

    def build(folder, texts, **options):
        place = tmp_path / folder
        headers = place / "in clude"
        write_texts(headers, {"one.h": "#define ONE 1\n"})
        monkeypatch.setenv("TVM_FFI_CACHE_DIR", str(place / "the cache"))
        monkeypatch.setenv("TMPDIR", str(place))

        library = built.build_library(
            "tiny", texts, include_folders=[headers], **options
        )

        assert library.parent.parent == place / "the cache"
        names = {path.name for path in place.iterdir()}
        assert names == {"in clude", "the cache"}
        return library

    return build


@pytest.mark.parametrize("folder", ["it's (here) & $there; #1", "umläut"])
def test_any_path_builds(build_in, folder):
    """The cache, the headers of others and temporary files may lie anywhere."""
    texts = TEXTS | {
        "here/one_too.cpp": '#include "one.h"\nint one_too() { return ONE; }\n'
    }
    built.load_library(build_in(folder, texts))


@needs_nvcc
def test_nvcc_builds_in_any_path(build_in):
    kernel = '#include "one.h"\n' + KERNEL.replace("1", "ONE")
    folder = "(here) & there; #1"
    library = build_in(folder, {"a/fill.cu": kernel}, architecture="9.0a")
    built.load_library(library)


def test_processes_that_start_together_compile_once(compiler, cache):
    processes = [start() for _ in range(2)]

    statuses = [process.wait(60) for process in processes]

    assert statuses == [0, 0]
    # the one file, and the linker
    assert len(compiler.log.read_text().splitlines()) == 2
    assert [path.name for path in cache.glob("*/tiny.so")] == ["tiny.so"]
    assert len(list(cache.iterdir())) == 1


def test_a_killed_build_is_begun_again(compiler, cache):
    """Half a library is not taken for a whole one. No lock stays, nor what was half done."""
    compiler.seconds.write_text("3")
    process = start()
    wait_for_compiler(compiler, process)
    process.kill()
    process.wait()
    compiler.seconds.write_text("0")
    assert list(cache.glob("*.part*"))
    assert list(cache.glob("*/*.so")) == []

    begun = time.monotonic()
    library = built.build_library("tiny", TEXTS)

    assert time.monotonic() - begun < 3, "it waited for the killed one's compiler"
    built.load_library(library)
    assert list(cache.iterdir()) == [library.parent]
    # else others cannot read it
    assert library.parent.stat().st_mode == cache.stat().st_mode


def test_an_interrupted_build_leaves_nothing(compiler, cache):
    """Neither its folder, nor a compiler that goes on, nor a lock."""
    compiler.seconds.write_text("60")
    process = start()
    wait_for_compiler(compiler, process)
    compilers = psutil.Process(process.pid).children(recursive=True)
    assert compilers

    process.send_signal(signal.SIGINT)
    process.wait(20)

    assert list(cache.iterdir()) == []
    for running in compilers:
        assert not goes_on(running)


def test_a_compiler_that_fails_ends_the_others(compiler, cache, monkeypatch):
    monkeypatch.setenv("MAX_JOBS", "2")
    compiler.seconds.write_text("60")
    texts = {"a.cpp": "int a;\n", "b.cpp": "lost\n"}
    wrapper = (
        f'case "$*" in *b.cpp*) exec c++ "$@";; *) exec {os.environ["CXX"]} "$@";; esac'
    )
    monkeypatch.setenv("CXX", shlex.join(["sh", "-c", wrapper, "c++"]))

    begun = time.monotonic()
    with pytest.raises(RuntimeError, match=r"(?s)tiny_\w+ .*b\.cpp.*lost"):
        built.build_library("tiny", texts)

    assert time.monotonic() - begun < 30
    assert list(cache.iterdir()) == []


@needs_nvcc
def test_nvcc_that_fails_is_quoted_and_leaves_the_environment(monkeypatch):
    monkeypatch.setenv("TVM_FFI_CUDA_ARCH_LIST", "8.0")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    environment = dict(os.environ)

    with pytest.raises(RuntimeError, match=r"(?s)tiny_\w+ .*stray.cu.*lost"):
        built.build_library(
            "tiny", {"stray.cu": KERNEL.replace("1", "lost")}, architecture="9.0a"
        )

    assert dict(os.environ) == environment


@needs_nvcc
def test_a_kernel_is_compiled_for_its_architecture():
    """And not for the GPU that is here; the folder is named after the definition."""
    texts = {
        "a/fill.cu": KERNEL,
        "common/cuda/layer/problem.cuh": "// problem: moe_e8_h128. Packing writes this file.\n",
    }
    library = built.build_library("tiny", texts, architecture="9.0a")
    built.load_library(library)

    assert library.parent.name.startswith("tiny_moe_e8_h128_")
    assert "arch=compute_90a,code=sm_90a" in (library.parent / "build.log").read_text()
    folder = library.parent
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    assert names == {
        *texts,
        "a",
        "common",
        "common/cuda",
        "common/cuda/layer",
        "build.log",
        "tiny.so",
    }


def make_toolkit(folder, *more):
    for name in ("bin", *more):
        (folder / name).mkdir(parents=True)
    (folder / "bin" / "nvcc").touch(mode=0o755)
    return folder


def test_no_toolkit_is_found_where_there_is_none(monkeypatch, tmp_path):
    without_compilers(monkeypatch, tmp_path)
    assert built.find_toolkit() is None


def test_a_whole_toolkit_goes_before_a_script_that_starts_another(
    monkeypatch, tmp_path
):
    whole = make_toolkit(tmp_path / "whole", "lib64")
    forwarding = make_toolkit(tmp_path / "forwarding")
    without_compilers(monkeypatch, tmp_path)
    monkeypatch.setenv("PATH", str(forwarding / "bin"))
    assert built.find_toolkit() == forwarding

    monkeypatch.setattr(built, "DEFAULT_TOOLKIT", whole)
    assert built.find_toolkit() == whole


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("PATH", "named/bin", "named"),
        ("CUDA_PATH", "named", "named"),
        ("CUDA_HOME", "named", "named"),
        ("CUDA_HOME", "no toolkit", "whole"),
    ],
)
def test_a_toolkit_that_is_named_goes_first(
    monkeypatch, tmp_path, variable, value, expected
):
    make_toolkit(tmp_path / "named", "lib64")
    whole = make_toolkit(tmp_path / "whole", "lib64")
    without_compilers(monkeypatch, tmp_path)
    monkeypatch.setattr(built, "DEFAULT_TOOLKIT", whole)
    monkeypatch.setenv(variable, str(tmp_path / value))

    assert built.find_toolkit() == tmp_path / expected
