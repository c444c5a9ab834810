"""The second fingerprint: comments, docstrings, layout and folders never change it; anything else
does.
"""

import re
import subprocess
from pathlib import PurePosixPath
from shutil import which

import pytest
from flashinfer_bench import Solution
from hypothesis import given
from hypothesis import strategies as st
from moebench.core import paths
from moebench.packing.fingerprint import fingerprint, strip_cpp, stripped

TOKENS = [
    "x",
    "1'000",
    "0x1p-3f",
    "'\"'",
    '"// \\" no"',
    'R"-(/* \\\n ")-"',
    *"+ ++ >> -> ( ) F32 %".split(),
]
SPACES = [" ", "\n", "\t\n", " // it's \\\n \" more\n", " /* ' \" // \n */ ", " \\\n"]
LINES = [
    "#define f(x) (x)",
    "#define f (x)",
    '#include "a.h"',
    "#include <a/b.h>",
    "#if F && 1'0 // c",
]
RUN = 'def run(x):\n    """Doc."""\n    return f"{x:>{1}}a" "b", 1.0\n'
PYTHON = f'"""Doc."""\nfrom .a import b\nfrom .c import d\n\n\n{RUN}'
some_tokens = st.lists(st.sampled_from(TOKENS), min_size=1, max_size=40)


def of(sources, name="tiny", **spec):
    spec |= {
        "language": "python",
        "target_hardware": ["cpu"],
        "entry_point": f"{next(iter(sources))}::run",
    }
    files = [{"path": path, "content": text} for path, text in sources.items()]
    return fingerprint(Solution(name=name, definition="d", author="a", spec=spec, sources=files))


@pytest.mark.skipif(not which("g++"), reason="needs g++")
def test_the_compiler_reads_the_same_in_our_sources():
    def read(text):
        command = ["g++", "-x", "c++", "-std=c++17", "-E", "-P", "-fpreprocessed", "-dD", "-"]
        shown = subprocess.run(
            command, input=text, capture_output=True, text=True, check=True
        ).stdout
        return [
            token for token in re.findall(r'"(?:\\.|[^"\\\n])*"|\w+|\S', shown) if token != "\\"
        ]

    texts = [
        path.read_text()
        for kind in ("cu", "cuh", "cpp")
        for path in paths.SOLUTIONS.rglob(f"*.{kind}")
    ]
    assert len(texts) > 20 and all(read(strip_cpp(text)) == read(text) for text in texts)


@given(some_tokens, st.lists(st.sampled_from(SPACES), min_size=40, max_size=40))
def test_comments_and_layout_of_cpp_do_not_count(tokens, spaces):
    laid_out = "".join(token + space for token, space in zip(tokens, spaces, strict=False))
    assert strip_cpp(laid_out) == strip_cpp(strip_cpp(laid_out)) == " ".join(tokens)


@given(some_tokens, some_tokens)
def test_every_token_and_their_order_count(tokens, others):
    for changed in (others, [*tokens, *others], tokens[::-1], [*tokens[:-1], others[0]]):
        assert (strip_cpp(" ".join(changed)) == strip_cpp(" ".join(tokens))) == (changed == tokens)


def test_a_directive_keeps_its_line():
    assert (
        len(
            {strip_cpp(f"{line}\n1") for line in LINES}
            | {strip_cpp(f"{line} 1") for line in LINES[:2]}
        )
        == 7
    )
    assert len(strip_cpp("\n".join([*LINES, *LINES])).splitlines()) == 2 * len(LINES)
    assert strip_cpp("#define f(x,y) (x)\n1") == strip_cpp(" # define f( x, \\\n y )(x) // c\n 1 ")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Doc.", "Other."),
        ('"""Doc."""', ""),
        ("1.0", "(1.0)  # one"),
        (".a import b\nfrom .c", ".c import d\nfrom .a"),
    ],
)
def test_comments_docstrings_and_layout_of_python_do_not_count(old, new):
    changed = PYTHON.replace(old, new).replace(".a import d", ".a import b")
    assert changed != PYTHON and of({"main.py": changed}) == of({"main.py": PYTHON})


@pytest.mark.parametrize(
    ("old", "new"), [("1.0", "1"), ('"b"', '"c"'), ("(x)", "(x, y=1)"), ("d", "e"), (":>{1}", "")]
)
def test_what_python_runs_counts(old, new):
    assert of({"main.py": PYTHON.replace(old, new)}) != of({"main.py": PYTHON})


def test_it_is_the_same_in_every_python():
    assert (
        of({"main.py": PYTHON, "k.cuh": "int x; // 1\n"})
        == "ea40c1b39e6c7ccd22a962c896b27529a475b473"
    )


def test_folders_and_names_do_not_count():
    """Where two files have one name, folders do."""
    include, last = '#include "%sk.cuh"\n', {"k/b.py": "c = 1\n", "x/k.cuh": "1\n"}
    before = {"main.py": "from .k import a\nfrom .k.b import c\n", "k/a.py": "from .b import c\n"}
    before |= {"x/a.cu": include % ""} | last
    after = {"main.py": "from .l.b import c\nfrom .m import a\n", "m/a.py": "from ..l.b import c\n"}
    after |= {"a.cu": include % "y/", "l/b.py": last["k/b.py"], "y/k.cuh": last["x/k.cuh"]}
    assert of(before) == of(after, name="other") != of(before, dependencies=["torch"])
    assert of(before | {"k.cuh": "2\n"}) != of(before | {"y/k.cuh": "2\n"})


def test_other_text_counts_as_it_is():
    found = {
        text: stripped(PurePosixPath(path).suffix, text)
        for path, text in (("a.py", "run(:\n # a"), ("t.csv", "a \r\n"))
    }
    assert found == {"run(:\n # a": "run(:\n # a", "a \r\n": "a"}
