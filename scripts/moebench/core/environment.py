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
    kept = {name: value for name, value in environment.items() if not name.startswith("PYTHON")}
    kept.update({"PYTHONSAFEPATH": "1", "PYTHONUTF8": "1", "LC_ALL": "C.UTF-8"})
    kept.pop("LANGUAGE", None)
    return kept


def use_caches_without_spaces() -> None:
    """Have compilers' caches go by a link without a space, where their path has one."""
    import hashlib
    import tempfile
    from pathlib import Path

    for variable, usual in CACHES.items():
        folder = os.environ.get(variable) or usual
        path = Path(folder).expanduser().absolute()
        if " " not in str(path):
            continue

        digest = hashlib.sha256(str(path).encode()).hexdigest()[:16]
        link = Path(tempfile.gettempdir(), f"cache-of-moebench-{os.getuid()}-{digest}")
        if " " not in str(link) and _links_to(link, path):
            os.environ[variable] = str(link)


def _links_to(link, folder) -> bool:
    """Whether a path is a link to a folder; both are made if they are missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(folder)
        return link.lstat().st_uid == os.getuid() and os.readlink(link) == str(folder)
    except OSError:  # the cache as it is then says what is wrong
        return False
