"""A comparison as Markdown, what to use first."""

from harness.report.comparison_tables import Entry, PlainTable, choice_table, parts_of
from harness.results.comparison import Comparison


def entry(found: Entry) -> str:
    text = found.text.replace("|", "\\|").replace("*", "\\*")
    return f"**{text}**" if found.mark == "best" else text


def markdown_table(table: PlainTable) -> str:
    """The table without its title, its caption below it."""
    lines = ["| " + " | ".join(table.head) + " |"]
    lines.append("| " + " | ".join("---" if at < table.left else "---:" for at in range(len(table.head))) + " |")
    lines += ["| " + " | ".join(entry(e) for e in row) + " |" for rows in table.sections for row in rows]
    caption = table.caption.replace("*", "\\*")
    return "\n".join([*lines, "", caption] if caption else lines)


def markdown(comparison: Comparison, pair: tuple[str, str] | None = None) -> str:
    """The whole comparison, or with a pair its ratio alone."""
    blocks = [] if pair else ["## Which to use", markdown_table(choice_table(comparison))]
    for part in parts_of(comparison, pair):
        blocks += [f"## {part.heading}", *part.lines]
        for table in part.tables:
            blocks += [f"### {table.title}", markdown_table(table)]
    if comparison.notes:
        blocks.append("\n".join(f"- {note}" for note in comparison.notes))
    return "\n\n".join(blocks) + "\n"
