"""Numbers in the sentences of README.md and docs/: each is recomputed from traces and records, or
docs/figures.toml says why it is no measurement of ours. Of integrations/ and solutions/ those are
recomputed that a record gives. `moebench docs` calls `update`.

docs/figures.toml lists the sentences, as

    [[sentence]]
    page = "docs/served.md"
    text = "saves {} ms a pass"     where {} is the number; the page may break lines between words
    from = "served_savings"         a function of computed.py
    with = { tokens = [32] }        what it is called with
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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

PAGES = (
    "docs/*.md",
    "records/repeats.md",
    "integrations/**/*.md",
    "solutions/*/README.md",
)
# in pages of these folders there are also numbers without a record, of experiments
WITH_EXPERIMENTS = ("integrations/", "solutions/")

Functions = Mapping[str, Callable[..., list[str]]]


class Sentence(Strict):
    """A [[sentence]] of figures.toml: a part of a page's sentence, with HOLE for each number.

    computed_by: the name of the function that returns the numbers. arguments: of that function.
    not_measured: in place of both, why the numbers in the text are no measurement of ours.
    """

    page: str
    text: str
    computed_by: str | None = Field(None, alias="from")
    arguments: dict = Field({}, alias="with")
    not_measured: str | None = None

    @property
    def pattern(self) -> re.Pattern:
        """Return a pattern that matches the sentence in a page, with a group for each hole."""
        words = map(re.escape, self.text.split())
        text = r"\s+".join(words)
        pattern = text.replace(re.escape(HOLE), f"({NUMBER})")
        return re.compile(pattern)

    def numbers(self, functions: Functions) -> list[str] | None:
        """Return the numbers for the holes; [] for a sentence that is not computed; None where
        traces or records are missing or stale, or give more or fewer numbers than there are holes.
        """
        if self.computed_by is None:
            return []
        try:
            numbers = functions[self.computed_by](**self.arguments)
        except (LookupError, ValueError, StopIteration):
            return None

        is_complete = len(numbers) == self.text.count(HOLE)
        are_numbers = all(re.fullmatch(NUMBER, number) for number in numbers)
        return numbers if is_complete and are_numbers else None


@dataclass(frozen=True)
class Page:
    """A page whose numbers are checked. name: its path from the root."""

    name: str
    text: str

    def where(self, position: int) -> str:
        """Return "docs/a.md:3" for a position in the text."""
        line = self.text.count("\n", 0, position) + 1
        return f"{self.name}:{line}"


def listed(root: Path = paths.ROOT) -> list[Sentence]:
    """Return the sentences of docs/figures.toml."""
    text = (root / "docs" / "figures.toml").read_text(encoding="utf-8")
    content = tomllib.loads(text)
    return [Sentence.model_validate(each) for each in content["sentence"]]


def page_files(root: Path = paths.ROOT) -> dict[str, Path]:
    """Return path from the root -> file: README.md, the pages of docs/ and of integrations/, each
    solution's README.md and records/repeats.md.
    """
    files = [root / "README.md"]
    for pattern in PAGES:
        files += sorted(root.glob(pattern))
    return {path.relative_to(root).as_posix(): path for path in files}


def replace_spans(text: str, replacements: dict[tuple[int, int], str]) -> str:
    """Return a text with some spans replaced. replacements: (first, end) -> new words; no two spans
    overlap.
    """
    parts = []
    position = 0
    for first, end in sorted(replacements):
        parts += [text[position:first], replacements[first, end]]
        position = end
    parts.append(text[position:])
    return "".join(parts)


def update(
    check: bool,
    sentences: list[Sentence],
    functions: Functions,
    root: Path = paths.ROOT,
) -> list[str]:
    """Write the numbers that are recomputed, or only check them; return a line for each problem.

    A problem is a number that differs, a number that no [[sentence]] covers, and a [[sentence]]
    that is not in its page.
    """
    by_page = {name: [] for name in page_files(root)}
    problems = []
    for sentence in sentences:
        if sentence.page in by_page:
            by_page[sentence.page].append(sentence)
        else:
            problems.append(f"{sentence.page}: no such page, for {sentence.text!r}")

    for name, of_page in by_page.items():
        problems += update_page(root / name, name, check, of_page, functions)
    return problems


def update_page(
    path: Path, name: str, check: bool, sentences: list[Sentence], functions: Functions
) -> list[str]:
    """Write the numbers of one page, or only check them; return a line for each problem."""
    page = Page(name, path.read_text(encoding="utf-8"))
    matches, problems = located(page, sentences)

    changes = {}
    for sentence, match in matches:
        numbers = sentence.numbers(functions)
        if numbers is None:
            where = page.where(match.start())
            problems.append(
                f"{where}: no current trace or record gives {sentence.text!r}"
            )
            continue
        for group, number in enumerate(numbers, 1):
            if match[group] != number:
                changes[match.span(group)] = number

    if check:
        problems += out_of_date(page, changes)
    elif changes:
        write_atomically(path, replace_spans(page.text, changes))
    covered = [match.span() for _, match in matches]
    return problems + without_source(page, covered)


def located(
    page: Page, sentences: list[Sentence]
) -> tuple[list[tuple[Sentence, re.Match]], list[str]]:
    """Return each sentence with its match in a page, and a line for each that matches not once."""
    matches = []
    problems = []
    for sentence in sentences:
        places = list(sentence.pattern.finditer(page.text))
        if len(places) == 1:
            matches.append((sentence, places[0]))
        else:
            count = len(places) or "no"
            problems.append(
                f"{page.name}: {count} sentences fit {sentence.text!r}, want one"
            )
    return matches, problems


def out_of_date(page: Page, changes: dict[tuple[int, int], str]) -> list[str]:
    """Return a line for each number that differs. changes: span in the text -> number now."""
    problems = []
    for (first, end), number in changes.items():
        difference = f"says {page.text[first:end]}, traces and records give {number}"
        problems.append(f"{page.where(first)}: {difference}: run `moebench docs`")
    return problems


def is_within(span: tuple[int, int], covered: list[tuple[int, int]]) -> bool:
    """Return whether one of these spans covers a span."""
    first, end = span
    return any(start <= first and end <= stop for start, stop in covered)


def without_source(page: Page, covered: list[tuple[int, int]]) -> list[str]:
    """Return a line for each number in a page's sentences that no [[sentence]] covers; none for a
    page WITH_EXPERIMENTS.

    covered: spans of the text that one covers.
    """
    if page.name.startswith(WITH_EXPERIMENTS):
        return []
    sentences = NO_SENTENCE.sub(blank, page.text)
    problems = []
    for match in QUANTITY.finditer(sentences):
        if not is_within(match.span(), covered):
            number = " ".join(match[0].split())
            place = page.where(match.start())
            problems.append(f"{place}: {number}: from which trace or record?")
    return problems


def blank(match: re.Match) -> str:
    """Return as many characters as matched, on as many lines, without any number."""
    return re.sub(r"[^\n]", "_", match[0])
