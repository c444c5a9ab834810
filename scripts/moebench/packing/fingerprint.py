"""The second fingerprint of a packed solution, which comments, docstrings, layout and folders leave
as it is.

FIB's own hash covers every byte, and the solution's name. A trace keeps both, and is current if
either is the same.
"""

import ast
import hashlib
import json
import re
from contextlib import suppress
from functools import cache
from itertools import groupby
from pathlib import PurePosixPath

from flashinfer_bench import Solution

from moebench.packing.flat import flatten
from moebench.packing.manifest import PackingError

CPP = (".cu", ".cuh", ".cpp", ".cc", ".h", ".hpp")
TOKEN = re.compile(
    r"""(?P<raw>(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"\w*)
    | (?P<comment> //(?:\\\n|[^\n])* | /\*.*?\*/ )
    | \\\n | (?P<newline> \n ) | (?<=include)[^\S\n]*<[^>\n]+> | (?P<space> [^\S\n]+ )
    | (?:u8|[uUL])?(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+')\w*
    | \.?\d(?:[eEpP][+-]|'?\w|\.)* | (?:[^\W\d]|\$)[\w$]*
    | <=>|<<<|>>>|<<=|>>=|->\*|\.\.\.|\.\*|\+\+|--|&&|\|\||::|->|<<|>>|\#\#|[-+*/%&|^<>=!]= | .""",
    re.VERBOSE | re.DOTALL,
)


def fingerprint(solution: Solution) -> str:
    """sha1, in hex, of what FIB hashes except the name, with `stripped` sources in one folder,
    sorted.

    Sources of which two have one base name count with their folders, and so do their imports and
    includes.
    """
    spec, sources = solution.spec, {source.path: source.content for source in solution.sources}
    file, function = spec.entry_point.split("::")
    with suppress(PackingError):
        sources, file = flatten(solution.name, sources), PurePosixPath(file).name
    binding = spec.binding.value if spec.binding else ""
    told = [solution.definition, spec.language.value, file, function, binding, spec.dependencies]
    told.append(
        sorted((path, stripped(PurePosixPath(path).suffix, text)) for path, text in sources.items())
    )
    return hashlib.sha1(json.dumps(told).encode()).hexdigest()


def source_of(solution: Solution) -> dict[str, str]:
    """Provenance's fields of its source."""
    return {"source_sha1": solution.hash(), "source_fingerprint": fingerprint(solution)}


@cache  # a solution's definitions share nearly all of their files
def stripped(suffix: str, text: str) -> str:
    """What counts: of Python that can be parsed the syntax tree, of C++ and CUDA the tokens, of all
    else the lines.
    """
    if suffix in CPP:
        return strip_cpp(text)
    try:
        return (
            dump(ast.parse(text))
            if suffix == ".py"
            else "\n".join(map(str.rstrip, text.splitlines()))
        )
    except (SyntaxError, ValueError, RecursionError):
        return text


def dump(node: object) -> str:
    """As ast.dump, but one text in Python 3.10 to 3.13: what a later one adds is empty, and
    f-strings are not split.

    Without strings that stand alone, as docstrings do; relative imports that follow each other are
    sorted.
    """
    match node:
        case ast.Constant():
            return f"{type(node.value).__name__} {node.value!a}"
        case ast.Expr(value=ast.Constant(value=str())):
            return ""
        case ast.JoinedStr():
            parts = groupby(node.values, lambda part: isinstance(part, ast.Constant))
            merged = [
                ["".join(part.value for part in run)] if text else list(run) for text, run in parts
            ]
            return f"f{dump([part for run in merged for part in run if part != ''])}"
        case ast.AST():
            fields = [
                (name, value)
                for name, value in ast.iter_fields(node)
                if name not in ("ctx", "kind")
            ]
            told = [
                f"{name}={dump(value)}"
                for name, value in fields
                if value is not None and value != []
            ]
            return f"{type(node).__name__}({','.join(told)})"
        case list():
            told = []
            for relative, run in groupby(
                node, lambda one: isinstance(one, ast.ImportFrom) and one.level > 0
            ):
                if relative:
                    told += sorted(
                        dump(ast.ImportFrom(n.module, [name], n.level))
                        for n in run
                        for name in n.names
                    )
                else:
                    told += map(dump, run)
            return f"[{','.join(filter(None, told))}]"
    return ascii(node)


def strip_cpp(text: str) -> str:
    """Tokens with one space between them, each preprocessor directive in a line of its own."""

    def joined(found: re.Match) -> str:
        return (
            " " if found["comment"] else found[0] if found["raw"] else found[0].replace("\\\n", "")
        )

    text, lines, directive, fresh = TOKEN.sub(joined, text.replace("\r\n", "\n")), [[]], False, True
    for found in TOKEN.finditer(text):
        starts = fresh and found[0] == "#"
        if starts or (directive and found["newline"]):
            lines.append([])
        directive = (directive or starts) and not found["newline"]
        fresh = found["newline"] or (fresh and found["space"])
        line = lines[-1]
        if (
            found[0] == "("
            and line[:2] == ["#", "define"]
            and len(line) == 3
            and not text[found.start() - 1].isspace()
        ):
            line[2] += "("  # #define f(x), which is not #define f (x)
        elif not found["space"] and not found["newline"]:
            line.append(found[0].strip())
    return "\n".join(" ".join(line) for line in lines if line)
