"""build_library: compile C++ and CUDA sources on first use, once for each content; load them.

The build.py of each CUDA solution calls it, as do replay.py and deepgemm's record.py.

FIB writes a solution's sources anew in every process, so their paths and times say nothing. The
library lies in tvm_ffi's cache, in a folder named after a hash of the sources, flags and versions,
without those of the compilers. Where that folder exists, no compiler is needed: it can be copied to
a machine that has none, if both have the same version of tvm_ffi. To compile with another compiler,
remove the folder.
"""

import fcntl
import hashlib
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import tvm_ffi
from tvm_ffi import libinfo

DEFAULT_TOOLKIT = "/usr/local/cuda"
POLL = 0.02  # seconds between looks at the compilers
GRACE = 5  # seconds that a compiler has to remove its files and end


def read_sources(folder):
    """Return path -> text of the CUDA files (.cu, .cuh) in a folder and in those below it."""
    texts = {}
    for path in sorted(folder.rglob("*.cu*")):
        name = path.relative_to(folder).as_posix()
        texts[name] = path.read_text()
    return texts


def build_library(
    name, texts, *, architecture=None, flags=(), include_folders=(), headers_version=""
):
    """Return the path of the library, compiled if it is not there yet.

    All files are compiled side by side, or, with the environment variable MAX_JOBS, so many at a
    time. Processes that need the same library wait for the one that compiles it. What a killed
    process leaves is never taken for a finished library; an interrupted process ends its compilers
    and leaves nothing. Paths may have spaces in them: no shell and no ninja reads the commands.

    Args:
        name: the library's file is NAME.so.
        texts: path -> text. .cu and .cpp are compiled; the folders of all are searched for headers.
        architecture: what nvcc compiles the .cu files for, such as "9.0a"; None without .cu files.
        flags: more options for nvcc.
        include_folders: folders of headers that are not in `texts`.
        headers_version: the version of those headers, hashed in place of their content.

    Raises:
        RuntimeError: the C++ compiler or nvcc is missing, or fails (its output is in the message).
    """
    cache = Path(os.environ.get("TVM_FFI_CACHE_DIR", "~/.cache/tvm-ffi"))
    cache = cache.expanduser().absolute()
    key = content_key(texts, architecture, flags, headers_version)
    folder = cache / "_".join([name, *_definitions(texts), key])
    library = folder / f"{name}.so"
    if library.is_file():
        return library

    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / f"{folder.name}.lock"):
        if not library.is_file():
            _compile(name, texts, folder, architecture, flags, include_folders)
    return library


def _definitions(texts):
    """Return a list of the definition that sources were packed for, or an empty one.

    The first line of problem.cuh has its name. The name of the library's folder contains it only
    for people who look into the cache.
    """
    for path, text in texts.items():
        if path.endswith("problem.cuh"):
            return re.findall(r"\A// problem: (\w+)", text)
    return []


def load_library(library):
    """Return the module of a library that `build_library` built.

    Raises RuntimeError where it does not load.
    """
    try:
        return tvm_ffi.load_module(library)
    except RuntimeError as error:
        # it needs a CUDA release that is not installed here, perhaps
        advice = "remove its folder to have it compiled here"
        raise RuntimeError(f"{library} does not load ({error}); {advice}") from error


def content_key(texts, architecture=None, flags=(), headers_version=""):
    """Return 16 hexadecimal digits of a hash of all that decides a library but the compilers.

    No path of this machine enters it.
    """
    decisive = (
        sorted(texts.items()),
        architecture,
        tuple(flags),
        headers_version,
        tvm_ffi.__version__,
        platform.machine(),
    )
    digest = hashlib.sha256(repr(decisive).encode())
    return digest.hexdigest()[:16]


def find_toolkit():
    """Return the folder of a CUDA toolkit, which has bin/nvcc, or None.

    It is taken from CUDA_HOME, CUDA_PATH, the nvcc on the PATH, or DEFAULT_TOOLKIT, in this order.
    """
    places = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    nvcc = shutil.which("nvcc")
    if nvcc:
        places.append(Path(nvcc).resolve().parent.parent)
    places.append(DEFAULT_TOOLKIT)

    toolkits = []
    for place in places:
        if place and Path(place, "bin/nvcc").is_file():
            toolkits.append(Path(place))

    # An nvcc on the PATH may be a script that starts another one, and then the libraries are not
    # beside it.
    for toolkit in toolkits:
        if (toolkit / "lib64").is_dir():
            return toolkit
    return toolkits[0] if toolkits else None


def _compile(name, texts, folder, architecture, flags, include_folders):
    """Compile in a temporary folder, which is renamed to `folder` once it has the library.

    The caller holds the lock.
    """
    commands, link = _commands(name, texts, architecture, flags, include_folders)

    # of builds that failed or were killed
    left_over = list(folder.parent.glob(f"{folder.name}.part*"))
    for path in (*left_over, folder):
        shutil.rmtree(path, ignore_errors=True)

    # a name for each process: compilers of a killed process may still write into its folder
    part = folder.with_name(f"{folder.name}.part{os.getpid()}")
    start = time.monotonic()
    _say(f"compiling {folder.name} from {len(commands)} files, once for this content")
    try:
        for path, text in texts.items():
            (part / path).parent.mkdir(parents=True, exist_ok=True)
            (part / path).write_text(text)
        _run_together(commands, part)
        _run_together([link], part)
        for command in commands:
            (
                part / command[-1]
            ).unlink()  # objects are several times as large as the library
        part.rename(folder)
    except RuntimeError as error:
        raise RuntimeError(f"{folder.name} does not compile: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)

    seconds = time.monotonic() - start
    _say(f"compiled {folder.name} in {seconds:.0f} s")


def _commands(name, texts, architecture, flags, include_folders):
    """Return a list of compile commands, whose last word is the object, and the link command.

    Paths of sources are relative to the folder in which the commands run. Options are those that
    tvm_ffi.cpp.build uses. Raises RuntimeError where a compiler is missing.
    """
    cxx = shlex.split(os.environ.get("CXX", "c++"))
    if shutil.which(cxx[0]) is None:
        missing = f"a C++ compiler: {cxx[0]} is not on the PATH"
        raise RuntimeError(f"{name} is compiled on first use and needs {missing}")

    includes = _includes(texts, include_folders)
    compilers = {".cpp": [*cxx, "-std=c++17", "-fPIC", "-O2", *includes]}
    tvm_ffi_folder = Path(libinfo.find_libtvm_ffi()).parent
    libraries = [f"-L{tvm_ffi_folder}", "-ltvm_ffi"]
    if architecture:
        toolkit = _required_toolkit(name)
        compilers[".cu"] = [*_nvcc(toolkit, architecture), *flags, *includes]
        cuda = toolkit / "lib64"
        libraries += [f"-L{cuda}", "-lcudart", f"-Wl,-rpath,{cuda}"]

    commands = []
    for path in sorted(texts):
        compiler = compilers.get(Path(path).suffix)
        if compiler is not None:
            commands.append([*compiler, "-c", path, "-o", f"{path}.o"])

    # libraries after the objects that need them
    objects = [command[-1] for command in commands]
    return commands, [*cxx, *objects, "-shared", *libraries, "-o", f"{name}.so"]


def _includes(texts, include_folders):
    """Return compilers' options for the folders of tvm_ffi's headers, the sources and others."""
    folders = [libinfo.find_include_path(), libinfo.find_dlpack_include_path()]
    folders += sorted({str(Path(path).parent) for path in texts})
    folders += [str(Path(path).absolute()) for path in include_folders]
    return [f"-I{path}" for path in folders]


def _required_toolkit(name):
    """Return a CUDA toolkit's folder. Raises RuntimeError where there is none."""
    toolkit = find_toolkit()
    if toolkit is None:
        missing = "nvcc, on the PATH or below CUDA_HOME"
        raise RuntimeError(f"{name} is compiled on first use and needs {missing}")
    return toolkit


def _nvcc(toolkit, architecture):
    """Return the command for an architecture such as "9.0a", without what is to be compiled."""
    code = architecture.replace(".", "")
    target = f"-gencode=arch=compute_{code},code=sm_{code}"
    return [
        str(toolkit / "bin/nvcc"),
        "-Xcompiler",
        "-fPIC",
        "-std=c++17",
        "-O2",
        target,
    ]


class _Job(NamedTuple):
    """A running command, and the file that its output goes to."""

    process: subprocess.Popen
    command: list
    output: Path


def _run_together(commands, folder):
    """Run commands in a folder side by side, as many as MAX_JOBS says.

    build.log in the folder gets each command line and its output. Raises RuntimeError for the first
    command that fails. No command is left running, whatever raises.
    """
    most = int(os.environ.get("MAX_JOBS") or os.cpu_count() or 1)
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    waiting = list(commands)
    running = []
    try:
        while waiting or running:
            while waiting and len(running) < most:
                output = temporary / f"{len(waiting)}.log"
                running.append(_start(waiting.pop(0), output, folder))

            time.sleep(POLL)
            for job in list(running):
                if job.process.poll() is not None:
                    running.remove(job)
                    _note(job, folder / "build.log")
    finally:
        for job in running:
            _end(job.process)
        shutil.rmtree(temporary, ignore_errors=True)


def _start(command, output, folder):
    """Start a command; its temporary files lie beside its output."""
    with open(output, "wb") as file:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | {"TMPDIR": output.parent.name},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a process group, which can be ended as one
        )
    return _Job(process, command, output)


def _note(job, log):
    """Append an ended command and its output to the log. Raises RuntimeError if it has failed."""
    shown = f"{shlex.join(job.command)}\n{job.output.read_text(errors='replace')}"
    with open(log, "a") as file:
        file.write(shown)
    if job.process.returncode:
        raise RuntimeError(f"exit status {job.process.returncode} of {shown}")


def _end(process):
    """End a command and all that it has started: by SIGTERM, and after GRACE seconds by SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            continue


@contextmanager
def _locked(path):
    """Hold an exclusive lock on a file, and remove the file at the end.

    The system releases the lock of a process that is killed.
    """
    while True:
        with open(path, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_at(lock, path):
                continue  # the previous holder has removed this file
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _is_at(file, path):
    """Return whether the file at a path is the one that was opened."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _say(what):
    """Print a line on standard error."""
    print(f"build_library: {what}", file=sys.stderr, flush=True)
