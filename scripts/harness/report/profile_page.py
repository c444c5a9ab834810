"""The tables in docs/profile.md, made from the records in docs/data/profile/."""

from collections import defaultdict
from pathlib import Path

from harness.core import paths
from harness.packing import pack
from harness.profiling.profile_record import ProfileRecord, read_record
from harness.profiling.profile_tables import common_uuids, head_to_head_grid, markdown, stage_grid
from harness.report import marked_block

PAGE = paths.DOCS / "profile.md"
BEGIN = "<!-- profile: written by scripts/update_profile.py -->"
END = "<!-- end of profile -->"


def read_records(folder: Path = paths.PROFILES) -> list[ProfileRecord]:
    """The folder's records by name of file; [] without any. Raises ValueError for a file that is none."""
    return [read_record(path) for path in sorted(folder.glob("*.json"))]


def how_recorded(record: ProfileRecord) -> str:
    """What a reader needs to repeat the record."""
    versions = ", ".join(f"{name.replace('_', ' ')} {version}" for name, version in sorted(record.libs.items()))
    stale = (
        "" if pack.is_current(record.solution, record.solution_sha1) else " **Stale: its source has changed since.**"
    )
    return (
        f"- {record.solution}, source {record.solution_sha1[:10]}, {record.timestamp[:10]}, {record.backend}, "
        f"{versions}: `{record.command}`.{stale}"
    )


def block(records: list[ProfileRecord]) -> str:
    """Markdown of all tables: by machine, then by workload: the solutions side by side, then each by itself."""
    if not records:
        return "No profile has been recorded yet: run the command above with `--records docs/profile` on a GPU."
    machines = defaultdict(list)
    for record in records:
        machines[record.hardware, record.clock].append(record)
    parts = []
    for (hardware, clock), found in sorted(machines.items()):
        found.sort(key=lambda record: sum(profile.pipeline_us for profile in record.workloads) / len(record.workloads))
        parts.append(f"## {hardware}{', CPU time of an interpreter' if clock == 'cpu' else ''}")
        parts.append("\n".join(how_recorded(record) for record in found))
        lengths = {profile.uuid: profile.T for record in found for profile in record.workloads}
        for uuid in sorted(lengths, key=lambda uuid: (lengths[uuid], uuid)):
            parts.append(f"### T = {lengths[uuid]}, {uuid}")
            if len(found) > 1 and uuid in common_uuids(found):
                parts.append(markdown(head_to_head_grid(found, uuid)))
            for record in found:
                parts += [markdown(stage_grid(record, p)) for p in record.workloads if p.uuid == uuid]
    return "\n\n".join(parts)


def renewed(page: str, folder: Path = paths.PROFILES) -> str:
    """The page with its block made anew. Raises ValueError for a missing marker or a broken record."""
    return marked_block.replaced(page, BEGIN, END, block(read_records(folder)), PAGE.name)
