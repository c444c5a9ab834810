"""Make text of unknown origin safe to show in a terminal: control characters are spelt out.

What solutions print comes through `readable_log`, which also cuts it, and errors through
`printable`.
"""

import re

# What is kept of a log
LOG_LINES = 200
LINE_CHARACTERS = 1000
# C0 without tab and newline, DEL, C1, and Unicode that reorders a line or ends it unseen
CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)


def printable(text: str) -> str:
    """Return the text with every control character written out, ESC as \\x1b."""
    return CONTROL.sub(_written_out, text.replace("\r\n", "\n"))


def _written_out(match: re.Match) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def readable_log(text: str) -> str:
    """Return a log as `printable`, cut to LOG_LINES of LINE_CHARACTERS."""
    return cut(printable(text), LOG_LINES, LINE_CHARACTERS)


def cut(text: str, lines: int, characters: int) -> str:
    """Return the first and the last lines of a text, `lines` in all, each cut to so many
    characters.
    """
    rows = [cut_line(row, characters) for row in text.splitlines()]
    left_out = len(rows) - lines
    if left_out > 0:
        half = lines // 2
        rows[half : half + left_out] = [f"[{left_out} lines are left out]"]
    return "\n".join(rows)


def cut_line(line: str, characters: int) -> str:
    """Return a line, or its first characters and how many more it has."""
    if len(line) <= characters:
        return line
    return f"{line[:characters]} [{len(line) - characters} more characters]"
