"""The sources of packed solutions, as texts and as files."""

from moebench.packing.pack import pack
from tvm_ffi.libinfo import find_dlpack_include_path, find_include_path

CUDA = (".cu", ".cuh")


def packed_texts(solution, layer_key, endings=("",)):
    """Return path -> text of a packed solution's files with these endings."""
    texts = {}
    for file in pack(solution)[layer_key].sources:
        if file.path.endswith(endings):
            texts[file.path] = file.content
    return texts


def write_texts(folder, texts):
    """Write files below a folder; texts: by path."""
    for path, text in texts.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def with_one_replaced(text, old, new):
    """Return the text with its only `old` replaced. Raises ValueError for none or several."""
    if text.count(old) != 1:
        raise ValueError(f"{old!r}: got {text.count(old)} of them, want one")
    return text.replace(old, new)


def include_flags(folder):
    """Return a compiler's flags for every folder below one that has a header, and for tvm-ffi's."""
    folders = {folder, *(header.parent for header in folder.rglob("*.cuh"))}
    others = [find_include_path(), find_dlpack_include_path()]
    return [f"-I{path}" for path in [*sorted(folders), *others]]
