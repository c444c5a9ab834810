"""Fingerprint a packed solution: a hash that comments, docstrings, layout and folders leave alone.

FIB's own hash covers every byte, and the solution's name. A trace holds both hashes, and is current
as long as one of them is that of the solution today (results/staleness.py).
"""

import ast
import hashlib
import json
import re
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from itertools import groupby
from pathlib import PurePosixPath

from flashinfer_bench import Solution

from moebench.packing.flat import flatten
from moebench.packing.manifest import PackingError
from moebench.packing.references import CPP_SUFFIXES

# A token of C++ or CUDA, or what lies between two tokens: one alternative a line
TOKEN = re.compile(
    r"""
    (?P<raw>(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"\w*)    # raw string
    | (?P<comment> //(?:\\\n|[^\n])* | /\*.*?\*/ )
    | \\\n                                                                  # continued line
    | (?P<newline> \n )
    | (?<=include)[^\S\n]*<[^>\n]+>                                          # included path
    | (?P<space> [^\S\n]+ )
    | (?:u8|[uUL])?(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+')\w*             # string, character
    | \.?\d(?:[eEpP][+-]|'?\w|\.)*                                          # number
    | (?:[^\W\d]|\$)[\w$]*                                                  # name
    | <=>|<<<|>>>|<<=|>>=|->\*|\.\.\.|\.\*|\+\+|--|&&|\|\||::|->|<<|>>|\#\#|[-+*/%&|^<>=!]=
    | .                                                                     # any other character
    """,
    re.VERBOSE | re.DOTALL,
)
CONTINUATION = "\\\n"


def fingerprint(solution: Solution) -> str:
    """Return a sha1, in hex, of what FIB hashes, but without the solution's name, with `stripped`
    sources, and with all of them in one folder.

    Where two sources have one base name, they stay in their folders.
    """
    spec = solution.spec
    sources = {source.path: source.content for source in solution.sources}
    file, function = spec.entry_point.split("::")
    with suppress(PackingError):
        sources = flatten(solution.name, sources)
        file = PurePosixPath(file).name

    texts = []
    for path, text in sorted(sources.items()):
        texts.append((path, stripped(PurePosixPath(path).suffix, text)))

    binding = spec.binding.value if spec.binding else ""
    counted = [
        solution.definition,
        spec.language.value,
        file,
        function,
        binding,
        spec.dependencies,
        texts,
    ]
    text = json.dumps(counted)
    return hashlib.sha1(text.encode()).hexdigest()


def source_hashes(solution: Solution) -> dict[str, str]:
    """Return the fields of a Provenance that are about a solution's source."""
    return {"source_sha1": solution.hash(), "source_fingerprint": fingerprint(solution)}


@cache  # a solution's definitions share nearly all of their files
def stripped(suffix: str, text: str) -> str:
    """Return the part of a source that counts: the syntax tree of Python, the tokens of C++ and
    CUDA, the lines of anything else without blanks at their ends.

    Python that cannot be parsed counts as it is. suffix: of the file, ".py".
    """
    if suffix in CPP_SUFFIXES:
        return strip_cpp(text)
    if suffix != ".py":
        return "\n".join(line.rstrip() for line in text.splitlines())
    try:
        return dump(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError):
        return text


# Python


def dump(node: object) -> str:
    """Return a syntax tree as text, the same in Python 3.10 to 3.13, where ast.dump differs.

    Strings that are statements are left out, as docstrings are.
    """
    match node:
        case ast.Constant():
            return f"{type(node.value).__name__} {node.value!a}"
        case ast.Expr(value=ast.Constant(value=str())):
            return ""
        case ast.JoinedStr():
            return dump_f_string(node)
        case ast.AST():
            return dump_fields(node)
        case list():
            return dump_list(node)
    return ascii(node)


def dump_fields(node: ast.AST) -> str:
    """Return a node's type and fields; empty fields are left out, as later Pythons add some."""
    fields = []
    for name, value in ast.iter_fields(node):
        is_empty = value is None or value == []
        if name not in ("ctx", "kind") and not is_empty:
            fields.append(f"{name}={dump(value)}")

    listed = ",".join(fields)
    return f"{type(node).__name__}({listed})"


def dump_f_string(node: ast.JoinedStr) -> str:
    """Return an f-string as text. Neighbouring parts of constant text are joined, as versions of
    Python differ in where they split them.
    """
    parts = []
    for is_text, run in groupby(
        node.values, lambda part: isinstance(part, ast.Constant)
    ):
        if is_text:
            parts.append("".join(part.value for part in run))
        else:
            parts.extend(run)
    return f"f{dump([part for part in parts if part != ''])}"


def dump_list(nodes: list) -> str:
    """Return a list of nodes as text. Relative imports that follow each other are sorted, as the
    order that a formatter gives them depends on the names of folders.
    """
    texts = []
    for is_relative, run in groupby(nodes, is_relative_import):
        if is_relative:
            imports = [dump(name) for name in split_imports(run)]
            texts.extend(sorted(imports))
        else:
            texts.extend(dump(node) for node in run)
    return f"[{','.join(text for text in texts if text)}]"


def is_relative_import(node: object) -> bool:
    return isinstance(node, ast.ImportFrom) and node.level > 0


def split_imports(nodes: Iterable[ast.ImportFrom]) -> list[ast.ImportFrom]:
    """Return an import for each name that these import."""
    imports = []
    for node in nodes:
        for name in node.names:
            imports.append(ast.ImportFrom(node.module, [name], node.level))
    return imports


# C++


def strip_cpp(text: str) -> str:
    """Return a source's tokens with one space between them, without comments; each preprocessor
    directive is a line, and what lies between two of them another.
    """
    text = TOKEN.sub(without_comment, text.replace("\r\n", "\n"))
    line = []
    lines = [line]
    in_directive = False
    at_line_start = True

    for token in TOKEN.finditer(text):
        if token["space"]:
            continue
        if token["newline"]:
            at_line_start = True
            if in_directive:
                in_directive = False
                line = []
                lines.append(line)
            continue

        if at_line_start and token[0] == "#":
            in_directive = True
            line = []
            lines.append(line)
        at_line_start = False

        if opens_parameters(token, line):
            line[2] += "("
        else:
            line.append(token[0].strip())

    return "\n".join(" ".join(line) for line in lines if line)


def without_comment(token: re.Match) -> str:
    """Return what the compiler sees of a token: a space for a comment, continued lines joined."""
    if token["comment"]:
        return " "
    if token["raw"]:
        return token[0]
    return token[0].replace(CONTINUATION, "")


def opens_parameters(token: re.Match, line: list[str]) -> bool:
    """Return whether a token is the bracket of `#define f(x)`; that of `#define f (x)` is not.

    line: the tokens before it.
    """
    is_behind_name = len(line) == 3 and line[:2] == ["#", "define"]
    if token[0] != "(" or not is_behind_name:
        return False
    before = token.string[token.start() - 1]
    return not before.isspace()
