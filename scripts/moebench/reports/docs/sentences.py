"""Numbers in the sentences of README.md and docs/: each is recomputed from traces and records, or
docs/figures.toml says why it is no measurement of ours. Of integrations/ and solutions/ those are
recomputed that a record gives. `moebench docs` calls `update`.

docs/figures.toml lists the sentences, as

    [[sentence]]
    page = "docs/served.md"
    text = "saves {:.1f} to {:.1f} ms a pass"   the page may break lines between words
    from = "served_savings"                     a function of computed.py
    with = { tokens = [32] }                    what it is called with
    show = ["min", "max"]                       of the numbers that it returns
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd
from pydantic import Field

from moebench.core import paths
from moebench.core.schema import Strict
from moebench.reports.docs.page import Page, read_pages

# a number in the text of figures.toml, with how it is formatted
HOLE = re.compile(r"\{:?([^{}]*)\}")
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
# in pages of these folders there are also numbers without a record, of experiments
WITH_EXPERIMENTS = ("integrations/", "solutions/")

Functions = Mapping[str, Callable[..., Sequence[float] | pd.Series]]


class Sentence(Strict):
    """A [[sentence]] of figures.toml: a part of a page's sentence, with a HOLE for each number.

    computed_by: the name of the function that returns the numbers. arguments: of that function.
    shown: statistics of its numbers, by pandas' names; [] for the numbers themselves. not_measured:
    in place of all, why the numbers in the text are no measurement of ours.
    """

    page: str
    text: str
    computed_by: str | None = Field(None, alias="from")
    arguments: dict = Field({}, alias="with")
    shown: list[str] = Field([], alias="show")
    not_measured: str | None = None

    @property
    def pattern(self) -> re.Pattern:
        """Return a pattern that matches the sentence in a page, with a group for each hole."""
        without_formats = HOLE.sub("{}", self.text)
        text = r"\s+".join(map(re.escape, without_formats.split()))
        return re.compile(text.replace(re.escape("{}"), f"({NUMBER})"))

    def numbers(self, functions: Functions) -> list[str] | None:
        """Return the numbers for the holes; [] for a sentence that is not computed; None where
        traces or records are missing or stale, or give more or fewer numbers than there are holes.
        """
        if self.computed_by is None:
            return []
        try:
            values = functions[self.computed_by](**self.arguments)
            if self.shown:
                # NaN, which statistics leave out, is a number that is missing
                values = pd.Series(values).agg(self.shown, skipna=False)
            holes = zip(values, HOLE.findall(self.text), strict=True)
            numbers = [format(value, how) for value, how in holes]
        except (LookupError, ValueError):
            return None
        is_complete = all(re.fullmatch(NUMBER, number) for number in numbers)
        return numbers if is_complete else None


def listed(root: Path = paths.ROOT) -> list[Sentence]:
    """Return the sentences of docs/figures.toml."""
    text = (root / "docs" / "figures.toml").read_text(encoding="utf-8")
    content = tomllib.loads(text)
    return [Sentence.model_validate(each) for each in content["sentence"]]


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
    problems = []
    pages = read_pages(root)
    for sentence in sentences:
        if sentence.page not in pages:
            problems.append(f"{sentence.page}: no such page, for {sentence.text!r}")

    for page in pages.values():
        covered = []
        for sentence in sentences:
            if sentence.page == page.name:
                covered += fill_in(page, sentence, functions)
        page.problems += without_source(page, covered)
        problems += page.finish(check)
    return problems


def fill_in(page: Page, sentence: Sentence, functions: Functions) -> list[range]:
    """Have a page say the numbers of a sentence; return which part of the text the sentence is."""
    matches = list(sentence.pattern.finditer(page.text))
    if len(matches) != 1:
        count = len(matches) or "no"
        fault = f"{count} sentences fit {sentence.text!r}, want one"
        page.problems.append(f"{page.name}: {fault}")
        return []

    (match,) = matches
    numbers = sentence.numbers(functions)
    if numbers is None:
        fault = f"no current trace or record gives {sentence.text!r}"
        page.problems.append(f"{page.where(match.start())}: {fault}")
    for group, number in enumerate(numbers or [], 1):
        reason = f"says {match[group]}, traces and records give {number}"
        page.fill(match.span(group), number, reason)
    return [range(*match.span())]


def without_source(page: Page, covered: list[range]) -> Iterator[str]:
    """Yield a line for each number in a page's sentences that no [[sentence]] covers; none for a
    page WITH_EXPERIMENTS.

    covered: the parts of the text that one covers.
    """
    if page.name.startswith(WITH_EXPERIMENTS):
        return
    sentences = NO_SENTENCE.sub(blank, page.text)
    for match in QUANTITY.finditer(sentences):
        if not any(
            match.start() in part and match.end() <= part.stop for part in covered
        ):
            number = " ".join(match[0].split())
            place = page.where(match.start())
            yield f"{place}: {number}: from which trace or record?"


def blank(match: re.Match) -> str:
    """Return as many characters as matched, on as many lines, without any number."""
    return re.sub(r"[^\n]", "_", match[0])
