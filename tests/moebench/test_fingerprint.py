"""The second fingerprint: comments, docstrings, layout and folders never change it; anything else
does.
"""

import re
import subprocess
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
    *("+", "++", ">>", "->", "(", ")", "F32", "%"),
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


def fingerprint_of(sources, name="tiny", dependencies=()):
    """The fingerprint of a solution whose first source has the entry point."""
    entry_file = next(iter(sources))
    solution = Solution(
        name=name,
        definition="d",
        author="a",
        spec={
            "language": "python",
            "target_hardware": ["cpu"],
            "entry_point": f"{entry_file}::run",
            "dependencies": list(dependencies),
        },
        sources=[{"path": path, "content": text} for path, text in sources.items()],
    )
    return fingerprint(solution)


# C++


def tokens_by_compiler(text):
    """What g++'s preprocessor makes of a source, in pieces."""
    command = [
        "g++",
        "-x",
        "c++",
        "-std=c++17",
        "-E",
        "-P",
        "-fpreprocessed",
        "-dD",
        "-",
    ]
    result = subprocess.run(
        command, input=text, capture_output=True, text=True, check=True
    )
    pieces = re.findall(r'"(?:\\.|[^"\\\n])*"|\w+|\S', result.stdout)
    return [piece for piece in pieces if piece != "\\"]


@pytest.mark.skipif(not which("g++"), reason="needs g++")
@pytest.mark.parametrize("suffix", [".cu", ".cuh", ".cpp"])
def test_the_compiler_reads_the_same_in_our_sources(suffix):
    files = list(paths.SOLUTIONS.rglob(f"*{suffix}"))
    assert files
    for file in files:
        text = file.read_text()
        assert tokens_by_compiler(strip_cpp(text)) == tokens_by_compiler(text), file


@given(some_tokens, st.lists(st.sampled_from(SPACES), min_size=40, max_size=40))
def test_comments_and_layout_of_cpp_do_not_count(tokens, spaces):
    laid_out = ""
    for token, space in zip(tokens, spaces, strict=False):
        laid_out += token + space
    once = strip_cpp(laid_out)
    assert once == " ".join(tokens)
    assert strip_cpp(once) == once


@given(some_tokens, some_tokens)
def test_every_token_and_their_order_count(tokens, others):
    for changed in (
        others,
        [*tokens, *others],
        tokens[::-1],
        [*tokens[:-1], others[0]],
    ):
        is_same = strip_cpp(" ".join(changed)) == strip_cpp(" ".join(tokens))
        assert is_same == (changed == tokens)


def test_a_directive_keeps_its_line():
    followed = {strip_cpp(f"{line}\n1") for line in LINES}
    with_more = {strip_cpp(f"{line} 1") for line in LINES[:2]}
    assert len(followed | with_more) == len(LINES) + 2

    twice = LINES + LINES
    text = strip_cpp("\n".join(twice))
    assert len(text.splitlines()) == len(twice)


def test_layout_inside_a_directive_does_not_count():
    laid_out = " # define f( x, \\\n y )(x) // c\n 1 "
    assert strip_cpp(laid_out) == strip_cpp("#define f(x,y) (x)\n1")


# Python


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Doc.", "Other."),
        ('"""Doc."""', ""),
        ("1.0", "(1.0)  # one"),
        (".a import b\nfrom .c import d", ".c import d\nfrom .a import b"),
    ],
)
def test_comments_docstrings_and_layout_of_python_do_not_count(old, new):
    changed = PYTHON.replace(old, new)
    assert changed != PYTHON
    assert fingerprint_of({"main.py": changed}) == fingerprint_of({"main.py": PYTHON})


@pytest.mark.parametrize(
    ("old", "new"),
    [("1.0", "1"), ('"b"', '"c"'), ("(x)", "(x, y=1)"), ("d", "e"), (":>{1}", "")],
)
def test_what_python_runs_counts(old, new):
    changed = PYTHON.replace(old, new)
    assert fingerprint_of({"main.py": changed}) != fingerprint_of({"main.py": PYTHON})


def test_it_is_the_same_in_every_python():
    """As it was in those before: 3.10 to 3.13."""
    sources = {"main.py": PYTHON, "k.cuh": "int x; // 1\n"}
    assert fingerprint_of(sources) == "ea40c1b39e6c7ccd22a962c896b27529a475b473"


# Solutions

BEFORE = {
    "main.py": "from .k import a\nfrom .k.b import c\n",
    "k/a.py": "from .b import c\n",
    "x/a.cu": '#include "k.cuh"\n',
    "k/b.py": "c = 1\n",
    "x/k.cuh": "1\n",
}
AFTER = {
    "main.py": "from .l.b import c\nfrom .m import a\n",
    "m/a.py": "from ..l.b import c\n",
    "a.cu": '#include "y/k.cuh"\n',
    "l/b.py": "c = 1\n",
    "y/k.cuh": "1\n",
}


def test_folders_and_the_solutions_name_do_not_count():
    assert fingerprint_of(BEFORE) == fingerprint_of(AFTER, name="other")


def test_dependencies_count():
    assert fingerprint_of(BEFORE) != fingerprint_of(BEFORE, dependencies=["torch"])


def test_folders_count_where_two_files_have_one_name():
    above = fingerprint_of(BEFORE | {"k.cuh": "2\n"})
    beside = fingerprint_of(BEFORE | {"y/k.cuh": "2\n"})
    assert above != beside


@pytest.mark.parametrize(
    ("suffix", "text", "counted"),
    [
        (".py", "run(:\n # a", "run(:\n # a"),
        (".csv", "a \r\n", "a"),
        (".csv", "a, b", "a, b"),
    ],
)
def test_other_text_counts_by_its_lines(suffix, text, counted):
    assert stripped(suffix, text) == counted
