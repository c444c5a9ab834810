"""The second fingerprint: comments, docstrings, layout and folders never change it; anything else does."""

import re
import subprocess
from pathlib import PurePosixPath
from shutil import which

import pytest
from flashinfer_bench import BuildSpec, Solution
from harness.core import paths
from harness.packing.fingerprint import fingerprint, strip_cpp, stripped
from hypothesis import given
from hypothesis import strategies as st

CPP = sorted(path for suffix in ("cu", "cuh", "cpp") for path in paths.SOLUTIONS.rglob(f"*.{suffix}"))
TOKENS = [
    "x",
    "1'000",
    "0x1p-3f",
    "'\"'",
    '"// \\" no"',
    'R"-(/* \\\n ")-"',
    "+",
    "++",
    ">>",
    "->",
    "(",
    ")",
    "F32",
    "%",
]
SPACES = [" ", "\n", "\t\n", " // it's \\\n \" more\n", " /* ' \" // \n */ ", " \\\n"]
LINES = ["#define f(x) (x)", "#define f (x)", '#include "a.h"', "#include <a/b.h>", "#if F && 1'0 // c"]


def packed(sources, name="tiny", main="main.py", **spec):
    spec = BuildSpec(language="python", target_hardware=["cpu"], entry_point=f"{main}::run", **spec)
    files = [{"path": path, "content": text} for path, text in sources.items()]
    return Solution(name=name, definition="d", author="a", spec=spec, sources=files)


def of(text, path="main.py"):
    return stripped(PurePosixPath(path).suffix, text)


@pytest.mark.skipif(not which("g++"), reason="needs g++")
def test_the_compiler_reads_the_same_in_our_sources():
    def read(text):
        command = ["g++", "-x", "c++", "-std=c++17", "-E", "-P", "-fpreprocessed", "-dD", "-"]
        shown = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
        return [token for token in re.findall(r'"(?:\\.|[^"\\\n])*"|\w+|\S', shown) if token != "\\"]

    assert len(CPP) > 20
    for path in CPP:
        text = path.read_text()
        assert read(strip_cpp(text)) == read(text), path


@given(st.lists(st.sampled_from(TOKENS)), st.lists(st.sampled_from(SPACES), min_size=50, max_size=50))
def test_comments_and_layout_of_cpp_do_not_count(tokens, spaces):
    laid_out = "".join(token + space for token, space in zip(tokens, spaces, strict=False))
    assert strip_cpp(laid_out) == strip_cpp(" ".join(tokens)) == strip_cpp(strip_cpp(laid_out)) == " ".join(tokens)


@given(st.lists(st.sampled_from(TOKENS), min_size=1), st.data())
def test_every_token_and_their_order_count(tokens, data):
    at, other = data.draw(st.integers(0, len(tokens) - 1)), data.draw(st.sampled_from(TOKENS))
    changed = [*tokens[:at], other, *tokens[at + 1 :]]
    assert (strip_cpp(" ".join(changed)) == strip_cpp(" ".join(tokens))) == (changed == tokens)
    assert strip_cpp(" ".join([*tokens, other])) != strip_cpp(" ".join(tokens))
    assert (strip_cpp(" ".join(tokens[::-1])) == strip_cpp(" ".join(tokens))) == (tokens == tokens[::-1])


@given(st.lists(st.sampled_from([*LINES, "x", "# define  f( x )( x ) /* \n */", "a+b"]), unique=True))
def test_a_directive_keeps_its_line(lines):
    found = strip_cpp("\n".join(lines))
    assert len(found.splitlines()) >= sum(line.startswith("#") for line in lines)
    assert len({strip_cpp(f"{line}\n1") for line in LINES}) == len(LINES)
    assert (
        strip_cpp("#define f(x,y) (x)\n1")
        == strip_cpp(" # define f( x, \\\n y )(x) // c\n 1 ")
        != strip_cpp("#define f(x,y) (x) 1")
    )


RUN = 'def run(x):\n    """Doc."""\n    return f"{x:>{1}}a" "b", 1.0\n'
PYTHON = f'"""Doc."""\nfrom .a import b\nfrom .c import d\n\n\n{RUN}'
SAME = [
    ("Doc.", "Other."),
    ('"""Doc."""', ""),
    ("1.0", "(1.0)  # one"),
    ("from .a import b\nfrom .c import d", "from .c import d\nfrom .a import b"),
]
OTHER = [("1.0", "1"), ('"b"', '"c"'), ("run(x)", "run(x, y=1)"), (".c import d", ".c import e"), (":>{1}", "")]


@pytest.mark.parametrize(("old", "new"), SAME)
def test_comments_docstrings_and_layout_of_python_do_not_count(old, new):
    assert of(PYTHON.replace(old, new)) == of(PYTHON)


@pytest.mark.parametrize(("old", "new"), OTHER)
def test_what_python_runs_counts(old, new):
    assert of(PYTHON.replace(old, new)) != of(PYTHON)


def test_it_is_the_same_in_every_python():
    assert (
        fingerprint(packed({"main.py": PYTHON, "k.cuh": "int x; // 1\n"})) == "ea40c1b39e6c7ccd22a962c896b27529a475b473"
    )


def test_folders_do_not_count():
    """Nor the solution's name; where two files have one name, folders do."""
    before = {
        "main.py": "from .k import a\nfrom .k.b import c\n",
        "k/a.py": "from .b import c\n",
        "k/b.py": "c = 1\n",
        "x/a.cu": '#include "k.cuh"\n',
        "x/k.cuh": "1\n",
    }
    after = {
        "main.py": "from .l.b import c\nfrom .m import a\n",
        "m/a.py": "from ..l.b import c\n",
        "l/b.py": "c = 1\n",
        "a.cu": '#include "y/k.cuh"\n',
        "y/k.cuh": "1\n",
    }
    assert fingerprint(packed(before)) == fingerprint(packed(after, name="other"))
    assert fingerprint(packed(before)) != fingerprint(packed(before, dependencies=["torch"]))
    assert fingerprint(packed(before | {"k.cuh": "2\n"})) != fingerprint(packed(before | {"y/k.cuh": "2\n"}))


def test_other_text_counts_as_it_is():
    assert of("def run(:\n  1 # a") == "def run(:\n  1 # a" and of("a,b \n1,2", "t.csv") == of("a,b\r\n1,2\n", "t.csv")
