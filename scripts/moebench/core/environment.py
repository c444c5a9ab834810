"""What a run takes over from where it is started, and what it does not.

On top this module imports what Python has loaded before any program starts, and nothing else: files
of the working folder, whatever they are called, are not imported by it either.
"""

import os
import sys

# Compilers' caches: ninja's files, which tvm_ffi writes, cannot hold a path with a space.
CACHES = {
    "FIB_CACHE_PATH": "~/.cache/flashinfer_bench/cache",
    "TVM_FFI_CACHE_DIR": "~/.cache/tvm-ffi",
}
ELSEWHERE = "/var/tmp"  # has no space, and keeps files when the machine starts again
# What Triton, Python or a solution would do otherwise because of them
CHANGING = ("TRITON_INTERPRET", "PYTHONOPTIMIZE", "PYTHONWARNINGS", "PYTHONHASHSEED", "PYTHONUTF8")


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
        here = os.path.realpath(os.getcwd())
    except FileNotFoundError:  # it has been removed, so nothing can be imported from it
        return [folder for folder in folders if folder]
    return [folder for folder in folders if os.path.realpath(folder) != here]


def forget_inherited() -> None:
    """Take out of the environment what would change results, for this process and its children.

    Whether Triton interprets depends on the device alone. Children read and write UTF-8.
    """
    for variable in CHANGING:
        os.environ.pop(variable, None)
    os.environ["PYTHONUTF8"] = "1"


def neutral(environment: dict[str, str]) -> dict[str, str]:
    """Return the environment of a solution's process: without Python's variables, in UTF-8."""
    left_out = {name for name in environment if name.startswith("PYTHON")} | {"LANGUAGE"}
    kept = {name: environment[name] for name in environment if name not in left_out}
    return kept | {"PYTHONSAFEPATH": "1", "PYTHONUTF8": "1", "LC_ALL": "C.UTF-8"}


def use_caches_without_spaces() -> None:
    """Have compilers' caches lie elsewhere, where their path has a space.

    A link does not do: tvm_ffi follows it.
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
    except OSError:  # the cache as it is then says what is wrong
        return False
