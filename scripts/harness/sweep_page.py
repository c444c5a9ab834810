"""docs/sweep.md: a recorded sweep of each solution in docs/sweep/, as a table, and what its picture is drawn from."""

import json
from pathlib import Path

from harness import marked_block, packing, paths

PAGE = paths.DOCS / "sweep.md"
BEGIN = "<!-- sweeps: written by scripts/update_sweep.py -->"
END = "<!-- end of sweeps -->"


def read(path: Path) -> list[dict]:
    """The measurements of one solution on one machine, as scripts/sweep.py --output writes them.

    Raises ValueError, with the file's name, for one that is empty or mixes solutions, sources or machines.
    """
    points = [json.loads(line) for line in path.read_text().splitlines()]
    mixed = {(p["solution"], p["solution_sha1"], p["hardware"], str(p["libs"])) for p in points}
    if len(mixed) != 1:
        raise ValueError(f"{path.name}: is of {len(mixed)} solutions, sources or machines, want one")
    return points


def kinds(points: list[dict]) -> list[str]:
    return list(dict.fromkeys(p["kind"] for p in points))


def below(points: list[dict]) -> str:
    """Where a sweep was run, and whether its solution is still what it was."""
    first = points[0]
    versions = ", ".join(f"{name} {version}" for name, version in sorted(first["libs"].items()))
    stale = not packing.is_current(first["solution"], first["solution_sha1"])
    return f"{first['hardware']}; {versions}" + ("; stale: the source has changed since" if stale else "")


def cell(point: dict | None) -> str:
    """ms, and in brackets how often the floor; * for more than the target; or what went wrong."""
    if point is None:
        return "-"
    if point["error"]:
        return f"**{point['error']}**"
    over = f" ({point['ms'] / point['floor_ms']:.2f})" if point["rows"] else ""
    return f"{point['ms']:.3f}{over}{'' if point['met'] else ' *'}"


def section(points: list[dict]) -> str:
    """Markdown: a row for each token count, a column for each kind of routing."""
    at = {(p["tokens"], p["kind"]): p for p in points}
    met, wrong = sum(p["met"] for p in points), sum(p["error"] is not None for p in points)
    name = points[0]["solution"]
    lines = ["| " + " | ".join(["T", *kinds(points)]) + " |", "|" + " ---: |" * (1 + len(kinds(points)))]
    for tokens in sorted({p["tokens"] for p in points}):
        lines.append("| " + " | ".join([str(tokens), *(cell(at.get((tokens, k))) for k in kinds(points))]) + " |")
    said = f"{met} of {len(points)} points are within the target, {wrong} wrong. {below(points)}."
    return "\n".join([f"## {name}", "", f"![{name} over the token count](sweep-{name}.svg)", "", said, "", *lines])


def renewed(page: str, sweeps: list[list[dict]]) -> str:
    """The page with its block made anew. Raises ValueError for a missing marker."""
    return marked_block.replaced(page, BEGIN, END, "\n\n".join(map(section, sweeps)), PAGE.name)
