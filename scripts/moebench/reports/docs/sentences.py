"""Numbers in the sentences of README.md and docs/: each is recomputed from traces and records, or
docs/figures.toml says where it comes from. `moebench docs` calls `update`.

docs/figures.toml lists the sentences, as

    [[sentence]]
    page = "docs/tolerances.md"
    text = "costs up to {}% more"   where {} is the number; the page may break lines between words
    from = "longer_at_most"         a function of computed.py
    with = { least_tokens = 1025 }  what it is called with
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import Field

from moebench.core import paths
from moebench.core.atomic_file import write_atomically
from moebench.core.schema import Strict

HOLE = "{}"
# 12, 1,024 or 3.5
NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
UNITS = r"%|x(?!\s?\d)|ms|us|s|seconds?|minutes?|[TGM]B/s|TFLOP/s|[TGMK]i?B|times"

# One number or several before a unit, "3 to 5 ms"; but not in a name, a path or a version, nor in a
# shape as 128 x 128
QUANTITY = re.compile(
    rf"(?<![\w.`/=-]){NUMBER}(?:(?:\s(?:to|and|or)\s|,\s|\s/\s){NUMBER})*\s?(?:{UNITS})(?!\w)"
)

# Parts of a page without sentences: generated blocks, code and targets of links
NO_SENTENCE = re.compile(
    r"^<!-- generated: (?P<name>.+?) -->$.*?^<!-- end of (?P=name) -->$"
    r"|^```.*?^```$|`[^`\n]*`|\]\([^)\n]*\)",
    re.M | re.S,
)

Functions = Mapping[str, Callable[..., list[str]]]


class NotFilled(Exception):
    """A sentence whose numbers cannot be written into its page; the message says why."""


class Sentence(Strict):
    """A [[sentence]] of figures.toml: a part of a page's sentence, with HOLE for each number.

    computed_by: the name of the function that returns the numbers. arguments: of that function.
    source: in place of both, where the numbers in the text come from.
    """

    page: str
    text: str
    computed_by: str | None = Field(None, alias="from")
    arguments: dict = Field({}, alias="with")
    source: str | None = None

    @property
    def pattern(self) -> re.Pattern:
        """Return a pattern that matches the sentence in a page, with a group for each hole."""
        words = map(re.escape, self.text.split())
        text = r"\s+".join(words)
        pattern = text.replace(re.escape(HOLE), f"({NUMBER})")
        return re.compile(pattern)

    def numbers(self, functions: Functions) -> list[str]:
        """Return the numbers for the holes; [] for a sentence that is not computed.

        Raises NotFilled where traces or records are missing or stale, or give more or fewer numbers
        than there are holes.
        """
        if self.computed_by is None:
            return []

        numbers = []
        with suppress(LookupError, ValueError):
            numbers = functions[self.computed_by](**self.arguments)

        is_complete = len(numbers) == self.text.count(HOLE)
        are_numbers = all(re.fullmatch(NUMBER, number) for number in numbers)
        if not is_complete or not are_numbers:
            raise NotFilled(f"no current trace or record gives {self.text!r}")
        return numbers

    def filled_in(self, page_text: str, functions: Functions) -> str:
        """Return a page's text with this sentence's numbers as they are now.

        Raises NotFilled where there are none, and where the page does not have the sentence once.
        """
        matches = list(self.pattern.finditer(page_text))
        if len(matches) != 1:
            raise NotFilled(f"{len(matches)} sentences fit {self.text!r}, want one")

        (match,) = matches
        numbers = self.numbers(functions)
        for group in range(len(numbers), 0, -1):  # from the last, as a number may change its length
            first, end = match.span(group)
            before = page_text[:first]
            after = page_text[end:]
            page_text = before + numbers[group - 1] + after
        return page_text


def listed(root: Path = paths.ROOT) -> list[Sentence]:
    """Return the sentences of docs/figures.toml."""
    text = (root / "docs" / "figures.toml").read_text(encoding="utf-8")
    content = tomllib.loads(text)
    return [Sentence.model_validate(each) for each in content["sentence"]]


def page_files(root: Path = paths.ROOT) -> dict[str, Path]:
    """Return path from the root -> file: README.md and the pages of docs/."""
    files = [root / "README.md", *sorted(root.glob("docs/*.md"))]
    return {path.relative_to(root).as_posix(): path for path in files}


def update(
    check: bool, sentences: list[Sentence], functions: Functions, root: Path = paths.ROOT
) -> list[str]:
    """Write the numbers that are recomputed, or only check them; return a line for each problem.

    A problem is a number that differs, a number that no [[sentence]] covers, and a [[sentence]]
    that is not in its page.
    """
    pages = page_files(root)
    problems = []
    for sentence in sentences:
        if sentence.page not in pages:
            problems.append(f"{sentence.page}: no such page, for {sentence.text!r}")

    for name, path in pages.items():
        of_page = [sentence for sentence in sentences if sentence.page == name]
        problems += update_page(name, path, check, of_page, functions)
    return problems


def update_page(
    name: str, path: Path, check: bool, sentences: list[Sentence], functions: Functions
) -> list[str]:
    """Write the numbers of one page, or only check them; return a line for each problem."""
    before = path.read_text(encoding="utf-8")
    text = before
    problems = []
    for sentence in sentences:
        try:
            text = sentence.filled_in(text, functions)
        except NotFilled as error:
            problems.append(f"{name}: {error}")

    if check:
        problems += out_of_date(name, before, text)
    elif text != before:
        write_atomically(path, text)
    return problems + without_source(name, text, sentences)


def out_of_date(name: str, before: str, after: str) -> list[str]:
    """Return a line for each line of a page that differs."""
    problems = []
    lines = zip(before.splitlines(), after.splitlines(), strict=True)
    for number, (old, new) in enumerate(lines, 1):
        if old != new:
            problems.append(
                f"{name}:{number}: traces and records give {new!r}: run `moebench docs`"
            )
    return problems


def without_source(name: str, text: str, sentences: list[Sentence]) -> list[str]:
    """Return a line for each number in a page that none of these sentences of the page covers."""
    for sentence in sentences:
        text = sentence.pattern.sub(blank, text)
    text = NO_SENTENCE.sub(blank, text)

    problems = []
    for match in QUANTITY.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        quantity = " ".join(match[0].split())
        problems.append(f"{name}:{line}: {quantity}: from which trace or record?")
    return problems


def blank(match: re.Match) -> str:
    """Return as many characters as matched, on as many lines, without any number."""
    return re.sub(r"[^\n]", "_", match[0])
