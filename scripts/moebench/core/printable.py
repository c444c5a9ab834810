"""Text of others, as a terminal may show it: control characters are seen and not obeyed."""

import re

# of a log that are kept
LOG_LINES = 200
LINE_CHARACTERS = 1000
# C0 without tab and newline, DEL, C1, and what reorders a line or ends one unseen
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return the text with every control character written out, ESC as \\x1b."""
    return CONTROL.sub(_written_out, text.replace("\r\n", "\n"))


def _written_out(match: re.Match) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def readable_log(text: str) -> str:
    """Return what a solution has printed, cut to some lines, without control characters."""
    return cut(printable(text), LOG_LINES, LINE_CHARACTERS)


def cut(text: str, lines: int, characters: int) -> str:
    """Return the text with its first and last lines alone, and each line's first characters."""
    rows = [cut_line(row, characters) for row in text.splitlines()]
    left_out = len(rows) - lines
    if left_out > 0:
        half = lines // 2
        rows[half : half + left_out] = [f"[{left_out} lines are left out]"]
    return "\n".join(rows)


def cut_line(line: str, characters: int) -> str:
    """Return a line's first characters, and how many more there are."""
    if len(line) <= characters:
        return line
    return f"{line[:characters]} [{len(line) - characters} more characters]"
