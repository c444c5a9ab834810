"""The tables in docs/tune.md, made from the records in docs/data/tune/."""

from collections import Counter
from pathlib import Path

from harness.core import paths
from harness.profiling.profile_tables import markdown
from harness.report import marked_block
from harness.tuning.tune_prune import reason_kind
from harness.tuning.tune_record import Record, kernels_sha1, read_record
from harness.tuning.tune_tables import compared_grid, gain_grid, times_grid, tuned_tokens

PAGE = paths.DOCS / "tune.md"
BEGIN = "<!-- tuning: written by scripts/update_tune.py -->"
END = "<!-- end of tuning -->"
SHOWN = 3  # configurations of each column and T on the page


def how_recorded(record: Record) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in sorted(record.head.libs.items()))
    stale = "" if record.head.kernels_sha1 == kernels_sha1() else " **Stale: the kernels have changed since.**"
    left_out = Counter(map(reason_kind, record.left_out.values()))
    counts = ", ".join(f"{number} for {kind}" for kind, number in left_out.most_common())
    wrong = sum(line.error is not None for line in record.timed.values())
    return (
        f"Routing: {record.head.routing}. {versions}.{stale} Left out before timing: {sum(left_out.values())} "
        f"({counts or 'none'}). Timed: {len(record.timed)}, of which {wrong} failed the check or did not run."
    )


def block(records: list[Record]) -> str:
    """Markdown of all records: what is kept, what TMA is worth, the best tiles at each T."""
    if not records:
        return "Nothing has been recorded yet: run the command above on a GPU."
    parts = []
    for record in records:
        parts += [f"## {record.head.gpu}, hidden {record.head.hidden}, intermediate {record.head.intermediate}"]
        parts += [how_recorded(record), markdown(compared_grid(record)), markdown(gain_grid(record))]
        parts += [markdown(times_grid(record, num_tokens, SHOWN)) for num_tokens in tuned_tokens(record)]
    return "\n\n".join(parts)


def renewed(page: str, folder: Path = paths.TUNING) -> str:
    """The page with its block made anew. Raises ValueError for a missing marker or a broken record."""
    records = [read_record(path) for path in sorted(folder.glob("*.jsonl"))]
    return marked_block.replaced(page, BEGIN, END, block(records), PAGE.name)
