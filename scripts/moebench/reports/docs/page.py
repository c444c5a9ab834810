"""Page: a file of README.md and docs/ whose text is compared with what it should be. generated.py
fills in blocks, sentences.py numbers.
"""

from pathlib import Path

from moebench.core.atomic_file import write_atomically

PAGES = (
    "README.md",
    "docs/*.md",
    "records/repeats.md",
    "integrations/**/*.md",
    "solutions/*/README.md",
)


class Page:
    """A page, and what was found in it. name: its path from the root.

    changes: span in the text -> new text, and what is said of it. problems: a line for each thing
    that a change cannot mend.
    """

    def __init__(self, name: str, path: Path):
        self.name = name
        self.path = path
        self.text = path.read_text(encoding="utf-8")
        self.changes: dict[tuple[int, int], tuple[str, str]] = {}
        self.problems: list[str] = []

    def where(self, position: int) -> str:
        """Return "docs/a.md:3" for a position in the text."""
        line = self.text.count("\n", 0, position) + 1
        return f"{self.name}:{line}"

    def fill(self, span: tuple[int, int], text: str, reason: str) -> None:
        """Have a text stand at a span, unless it does. reason: what is wrong if it does not."""
        first, end = span
        if self.text[first:end] != text:
            self.changes[span] = (text, reason)

    def finish(self, check: bool) -> list[str]:
        """Write the changes, or only check them; return a line for each problem."""
        text = self.text
        out_of_date = []
        # from the end, so that the spans before stay right
        for (first, end), (new, reason) in sorted(self.changes.items(), reverse=True):
            text = text[:first] + new + text[end:]
            out_of_date.insert(0, f"{self.where(first)}: {reason}: run `moebench docs`")

        if check:
            return self.problems + out_of_date
        write_atomically(self.path, text)
        return self.problems


def read_pages(root: Path) -> dict[str, Page]:
    """Return name -> page: README.md, the pages of docs/ and of integrations/, each solution's
    README.md and records/repeats.md.
    """
    pages = {}
    for pattern in PAGES:
        for path in sorted(root.glob(pattern)):
            name = path.relative_to(root).as_posix()
            pages[name] = Page(name, path)
    return pages
