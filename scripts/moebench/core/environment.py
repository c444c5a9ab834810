"""Keep the working folder and variables of the environment from changing what a run does.

__main__.py calls these functions before it reads the command line; judging/isolation/processes.py
takes `solution_environment` for the processes of solutions.

The first lines import nothing that Python has not loaded before any program starts, so a file of
the working folder cannot be imported in the place of a module, whatever it is called.
"""

import os
import sys

# Variable -> the folder that is used without it. Compilers cache there, and tvm_ffi cannot build in
# a path with a space, as its ninja files cannot hold one.
CACHES = {
    "FIB_CACHE_PATH": "~/.cache/flashinfer_bench/cache",
    "TVM_FFI_CACHE_DIR": "~/.cache/tvm-ffi",
}
ELSEWHERE = "/var/tmp"  # has no space, and keeps files when the machine starts again
# Variables that change what Triton, Python or a solution does, and that are not passed on
CHANGING = (
    "TRITON_INTERPRET",
    "PYTHONOPTIMIZE",
    "PYTHONWARNINGS",
    "PYTHONHASHSEED",
    "PYTHONUTF8",
)


def leave_working_folder() -> None:
    """Take the working folder off the path of imports, for this process and those it starts.

    `python -m` puts it there, and so does an empty or relative part of PYTHONPATH.
    """
    sys.path[:] = _without_working_folder(sys.path)
    os.environ["PYTHONSAFEPATH"] = "1"

    inherited = os.environ.get("PYTHONPATH")
    if inherited is not None:
        folders = _without_working_folder(inherited.split(os.pathsep))
        os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, folders))


def _without_working_folder(folders: list[str]) -> list[str]:
    try:
        working_folder = os.path.realpath(os.getcwd())
    except FileNotFoundError:  # it has been removed, so nothing can be imported from it
        return [folder for folder in folders if folder]
    return [folder for folder in folders if os.path.realpath(folder) != working_folder]


def remove_changing_variables() -> None:
    """Remove CHANGING variables from this process's environment and its children's, who read and
    write UTF-8. Whether Triton interprets then depends on the device alone.
    """
    for variable in CHANGING:
        os.environ.pop(variable, None)
    os.environ["PYTHONUTF8"] = "1"


def solution_environment(environment: dict[str, str]) -> dict[str, str]:
    """Return the environment of a solution's process: this one without PYTHON*, in UTF-8."""
    left_out = {name for name in environment if name.startswith("PYTHON")}
    left_out.add("LANGUAGE")
    kept = {name: environment[name] for name in environment if name not in left_out}
    return kept | {"PYTHONSAFEPATH": "1", "PYTHONUTF8": "1", "LC_ALL": "C.UTF-8"}


def use_caches_without_spaces() -> None:
    """Put those of CACHES whose path has a space ELSEWHERE, by their variables.

    A link would not do, as tvm_ffi follows it.
    """
    import hashlib
    from pathlib import Path

    for variable, usual in CACHES.items():
        chosen = os.environ.get(variable)
        cache = str(Path(chosen or usual).expanduser().absolute())
        if chosen:
            os.environ[variable] = cache  # solutions work in other folders
        if " " not in cache:
            continue

        digest = hashlib.sha256(cache.encode()).hexdigest()[:16]
        folder = Path(ELSEWHERE, f"moebench-cache-{os.getuid()}-{digest}")
        if is_private_folder(folder):
            os.environ[variable] = str(folder)


def is_private_folder(path) -> bool:
    """Whether a path is a folder of this user alone; it is made if nothing is there."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        return path.lstat().st_uid == os.getuid() and not path.is_symlink()
    except OSError:
        # the cache stays where it is, and whoever uses it says what is wrong
        return False
