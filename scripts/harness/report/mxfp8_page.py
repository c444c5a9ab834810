"""The tables in docs/mxfp8.md, made from the records in docs/data/profile/mxfp8/ and from traces/."""

from pathlib import Path

from definitions.mxfp8_linear import definition_name
from harness.core import paths
from harness.packing import manifest, pack
from harness.profiling import mxfp8_tables
from harness.profiling.mxfp8_record import Mxfp8Record, read_record
from harness.report import comparison_markdown, marked_block
from harness.results import comparison
from harness.results.trace_sets import TraceSetError

PAGE = paths.DOCS / "mxfp8.md"
RECORDS = paths.PROFILES / "mxfp8"
BEGIN = "<!-- mxfp8: written by scripts/update_mxfp8.py -->"
END = "<!-- end of mxfp8 -->"


def how_recorded(record: Mxfp8Record) -> str:
    """What a reader needs to repeat the record."""
    libs = ", ".join(f"{name.replace('_', ' ')} {version}" for name, version in sorted(record.libs.items()))
    line = f"{record.timestamp[:10]}, {record.iterations} calls of each, {libs}: `{record.command}`."
    now = {name: pack.pack(name)["mxfp8"].hash() for name in manifest.solution_names() if name in record.solutions_sha1}
    changed = sorted(name for name, sha1 in record.solutions_sha1.items() if now.get(name) != sha1)
    return f"{line} **Stale: {', '.join(changed)} changed since.**" if changed else line


def recorded_block(record: Mxfp8Record) -> str:
    parts = [f"## {record.hardware}, output {record.dtype}, the three steps", how_recorded(record)]
    parts.append(mxfp8_tables.summary(record))
    parts.append(f"Each with all its contestants; {mxfp8_tables.ERROR_IS}.")
    for case in record.cases:
        parts += [f"### {mxfp8_tables.title(case)}", mxfp8_tables.markdown(case)]
    return "\n\n".join(parts)


def judged_block(file: Path) -> str:
    """What FIB said of the whole layer, from a trace file. Raises TraceSetError for traces that cannot be read."""
    found = comparison.build([file])
    if found.warnings:
        raise TraceSetError(found.warnings[0])
    return comparison_markdown.markdown(found).strip()


def block(folder: Path = RECORDS, traces: Path | None = None) -> str:
    """Markdown of all tables. Raises ValueError, TraceSetError."""
    records = [read_record(path) for path in sorted(folder.glob("*.json"))]
    parts = [recorded_block(record) for record in records]
    if not records:
        parts = ["Nothing has been recorded yet: run the command above with `--output` on a GPU."]
    traces = traces or paths.trace_file(definition_name("mxfp8"))
    if traces.exists():
        parts.append(judged_block(traces))
    return "\n\n".join(parts)


def renewed(page: str) -> str:
    """The page with its block made anew. Raises ValueError, TraceSetError."""
    return marked_block.replaced(page, BEGIN, END, block(), PAGE.name)
