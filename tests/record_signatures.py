"""Record what FlashInfer's MoE functions take, release by release, for test_backends.py.

    pip download --no-deps --no-build-isolation --no-binary :all: flashinfer-python==0.3.1
    pip download --no-deps flashinfer-python==0.7.2.post1
    python tests/record_signatures.py flashinfer_python-*.tar.gz flashinfer_python-*.whl

Reads the source without importing it, since an old release need not import beside a new torch. Replaces
flashinfer_signatures.json: release -> function -> [name, kind, default as source text or null].
"""

import ast
import json
import re
import sys
import tarfile
import zipfile
from pathlib import Path

FUNCTIONS = ("trtllm_fp8_block_scale_moe", "cutlass_fused_moe")
OUTPUT = Path(__file__).parent / "samples" / "flashinfer_signatures.json"


def core_source(archive: Path) -> str:
    """flashinfer/fused_moe/core.py of a wheel or a source archive."""
    wanted = "flashinfer/fused_moe/core.py"
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(wanted).decode()
    with tarfile.open(archive) as tar:
        member = next(name for name in tar.getnames() if name.partition("/")[2] == wanted)
        return tar.extractfile(member).read().decode()


def parameters(function: ast.FunctionDef) -> list[tuple[str, str, str | None]]:
    """(name, name of inspect's kind, default) of each parameter."""
    a = function.args
    if a.posonlyargs or a.vararg or a.kwarg:
        raise ValueError(f"{function.name}: takes kinds of parameters that are not recorded")
    defaults = [None] * (len(a.args) - len(a.defaults)) + a.defaults
    both = [(arg, d, "POSITIONAL_OR_KEYWORD") for arg, d in zip(a.args, defaults, strict=True)]
    both += [(arg, d, "KEYWORD_ONLY") for arg, d in zip(a.kwonlyargs, a.kw_defaults, strict=True)]
    return [(arg.arg, kind, ast.unparse(d) if d else None) for arg, d, kind in both]


def main() -> int:
    recorded = {}
    for archive in map(Path, sys.argv[1:]):
        release = re.match(r"flashinfer_python-([\w.]+?)(?:\.tar\.gz|-py3)", archive.name)[1]
        top = ast.parse(core_source(archive)).body
        found = {f.name: parameters(f) for f in top if isinstance(f, ast.FunctionDef) and f.name in FUNCTIONS}
        recorded[release] = {name: found[name] for name in FUNCTIONS}
    if not recorded:
        print(__doc__, file=sys.stderr)
        return 2
    text = json.dumps(recorded)
    for old, new in (('{"', '{\n"'), ("]], ", "]],\n"), ("]]}, ", "]]},\n"), ("], [", "],\n [")):
        text = text.replace(old, new)  # a parameter a line, to be read in a diff
    OUTPUT.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
