"""build_library: compile C++ and CUDA sources on first use, once for each content, and load them.

FIB writes a solution's sources anew in every process, so their paths and times say nothing. The
library lies in tvm_ffi's cache, in a folder named after a hash of all that decides it but the
compilers' versions. Where that folder is, no compiler is looked for: libraries of one machine can
be copied to another that has none, if both have the same version of tvm_ffi. To compile with
another compiler, remove the folder.
"""

import fcntl
import hashlib
import os
import platform
import re
import shutil
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import tvm_ffi
import tvm_ffi.cpp

DEFAULT_TOOLKIT = "/usr/local/cuda"


def read_sources(folder):
    """Path below the folder -> text of the CUDA files (.cu, .cuh) in it and in the folders
    below.
    """
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.rglob("*.cu*"))
    }


def build_library(
    name, texts, *, architecture=None, flags=(), include_folders=(), headers_version=""
):
    """Path of the library, compiled if it is not there yet, all files side by side or MAX_JOBS at a
    time.

    Processes that need it together wait for the one that compiles. What a killed one leaves is
    never taken for finished.

    Args:
        texts: path -> text. .cu and .cpp are compiled; the folders of all are searched for headers.
        architecture: of the .cu files, "9.0a" for instance; None without any. flags: of nvcc,
        besides tvm_ffi's own. include_folders: of headers that are not in `texts`; headers_version
        stands for their content.

    Raises:
        RuntimeError: ninja or nvcc is missing, or a compiler fails (its output is in the message).
    """
    key = content_key(texts, architecture, flags, headers_version)
    cache = Path(os.environ.get("TVM_FFI_CACHE_DIR", "~/.cache/tvm-ffi")).expanduser().absolute()
    # Packing begins problem.cuh with the definition's name. It is there for who looks into the
    # cache.
    problem = next((text for path, text in texts.items() if path.endswith("problem.cuh")), "")
    definition = re.match(r"// problem: (\w+)", problem)
    folder = cache / "_".join([name, *(definition.groups() if definition else ()), key])
    library = folder / f"{name}.so"
    if library.is_file():
        return library
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / f"{folder.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the process ends, however it does
        if not library.is_file():
            _compile(name, texts, folder, architecture, flags, include_folders)
    return library


def load_library(library):
    """The module of a library that `build_library` built. Raises RuntimeError where it does not
    load.
    """
    try:
        return tvm_ffi.load_module(library)
    except RuntimeError as error:  # of a CUDA release that is not installed here, for instance
        raise RuntimeError(
            f"{library} does not load ({error}); remove its folder to have it compiled here"
        ) from error


def content_key(texts, architecture=None, flags=(), headers_version=""):
    """16 hexadecimal digits of all that decides a library, compilers apart; no path of this machine
    is among it.
    """
    sources = sorted(texts.items())
    decisive = (
        sources,
        architecture,
        tuple(flags),
        headers_version,
        tvm_ffi.__version__,
        platform.machine(),
    )
    return hashlib.sha256(repr(decisive).encode()).hexdigest()[:16]


def find_toolkit():
    """Folder of a CUDA toolkit, which has bin/nvcc, or None.

    Taken from CUDA_HOME, CUDA_PATH, the nvcc on the PATH, or DEFAULT_TOOLKIT, in this order.
    """
    nvcc = shutil.which("nvcc")
    places = [
        os.environ.get("CUDA_HOME"),
        os.environ.get("CUDA_PATH"),
        nvcc and Path(nvcc).resolve().parent.parent,
    ]
    found = [
        Path(place)
        for place in (*places, DEFAULT_TOOLKIT)
        if place and (Path(place) / "bin/nvcc").is_file()
    ]
    # An nvcc on the PATH may be a script that starts another one, and then the libraries are not
    # beside it.
    return next(
        (place for place in found if (place / "lib64").is_dir()), found[0] if found else None
    )


def _compile(name, texts, folder, architecture, flags, include_folders):
    """Make the folder with the library, in another one that takes its name at the end; the caller
    holds the lock.
    """
    units = [path for path in sorted(texts) if path.endswith((".cu", ".cpp"))]
    toolkit, environment, libraries = None, {}, ()
    if shutil.which("ninja") is None:
        raise RuntimeError(f"{name} is compiled on first use and needs ninja on the PATH")
    if architecture:
        toolkit = find_toolkit()
        if toolkit is None:
            raise RuntimeError(
                f"{name} is compiled on first use and needs nvcc, on the PATH or below CUDA_HOME"
            )
        environment = {"TVM_FFI_CUDA_ARCH_LIST": architecture, "CUDA_HOME": str(toolkit)}
        # where nvcc only forwards, or tvm_ffi recalls another toolkit
        libraries = (f"-L{toolkit}/lib64", f"-Wl,-rpath,{toolkit}/lib64")
    for left in (
        *folder.parent.glob(f"{folder.name}.part*"),
        folder,
    ):  # of builds that failed or were killed
        shutil.rmtree(left, ignore_errors=True)
    part = folder.with_name(
        f"{folder.name}.part{os.getpid()}"
    )  # a killed one's compilers may still write to theirs
    for path, text in texts.items():
        (part / path).parent.mkdir(parents=True, exist_ok=True)
        (part / path).write_text(text)
    start = time.monotonic()
    _say(f"compiling {folder.name} from {len(units)} files, once for this content")
    try:
        with _environment(environment):
            tvm_ffi.cpp.build(
                name,
                sources=[str(part / path) for path in units],
                extra_cuda_cflags=flags,
                extra_ldflags=libraries,
                extra_include_paths=[
                    *sorted({str((part / path).parent) for path in texts}),
                    *map(str, include_folders),
                ],
                build_directory=str(part),
            )
    except RuntimeError as error:
        raise RuntimeError(f"{folder.name} does not compile: {error}") from error
    for made in part.glob("*.o"):  # several times as large as the library
        made.unlink()
    part.rename(folder)
    _say(f"compiled {folder.name} in {time.monotonic() - start:.0f} s")


@contextmanager
def _environment(values):
    """Variables with these values; at the end they are as they were."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _say(what):
    print(f"build_library: {what}", file=sys.stderr, flush=True)
