"""Whether tables fit GitHub's column."""

import re


def too_wide(text):
    """Rows beyond 838 px: about 8.5 a character at most, and 26 of padding for each column."""

    def width(row):
        cells = [re.sub(r"\[(.*?)\]\(.*?\)|\*", r"\1", cell).strip() for cell in row.strip("|").split("|")]
        return sum(26 + 8.5 * len(cell) for cell in cells if set(cell) - set("-: "))

    return [row for row in re.findall(r"^\|.*\|$", text, re.M) if width(row) > 838]
