"""The pictures in docs/: which there are, what each is made from, and whether a file is still the one to be made."""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from harness.evaluation.sweep_record import Sweep
from harness.operators.catalogue import geometry_of
from harness.profiling.record import ProfileRecord
from harness.report import plot_roofline, plot_speed, plot_stages, plot_style, plot_sweep, plot_w16a16
from harness.report import sweep as sweep_report
from harness.results.comparison import Comparison, RunGroup, Section


@dataclass(frozen=True)
class Picture:
    """file: its name; made_from: a line in the SVG that changes with the figures drawn and with how they are drawn."""

    file: str
    made_from: str
    figure: Callable[[], Figure]

    def svg(self) -> str:
        with plot_style.style():
            figure = self.figure()
        return plot_style.svg(figure, self.made_from)

    def is_in(self, folder: Path) -> bool:
        """Whether the file in folder was made from the same."""
        path = folder / self.file
        return path.is_file() and self.made_from in path.read_text()


def fingerprint(data: object, *modules) -> str:
    """The same as long as data and the source of the modules are, whichever matplotlib draws."""
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode())
    for module in (*modules, plot_style):
        digest.update(Path(module.__file__).read_bytes())
    return f"made from {digest.hexdigest()}"


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def speed(section: Section, group: RunGroup, where: str) -> Picture | None:
    data = plot_speed.data(group)
    if set(data) <= {"bound"}:
        return None
    title = f"{section.hardware}, {group.tolerance}"
    below = f"{section.versions_text}; {group.protocol}; {' to '.join(group.days)}"
    made_from = fingerprint([data, len(group.rows), title, below], plot_speed)
    return Picture(f"speed-{where}.svg", made_from, lambda: plot_speed.draw(data, len(group.rows), title, below))


def roofline(section: Section, group: RunGroup, where: str) -> Picture | None:
    data = plot_roofline.data(group)
    if not data:
        return None
    title = f"Roofline, {section.hardware}, {group.tolerance}"
    ceilings = [plot_roofline.BYTES_PER_SECOND, plot_roofline.FLOPS_PER_SECOND]
    made_from = fingerprint([data, ceilings, title], plot_roofline)
    return Picture(f"roofline-{where}.svg", made_from, lambda: plot_roofline.draw(data, title))


def stages(records: list[ProfileRecord], hardware: str) -> Picture | None:
    data = plot_stages.data([record for record in records if record.provenance.hardware == hardware])
    if not data:
        return None
    title = f"Where one call's time goes, {hardware}"
    made_from = fingerprint([data, title], plot_stages)
    return Picture(f"stages-{slug(hardware)}.svg", made_from, lambda: plot_stages.draw(data, title))


def pictures(comparison: Comparison, tolerance: str, records: list[ProfileRecord]) -> tuple[list[Picture], list[str]]:
    """Those that can be drawn of the full geometry at this tolerance, and a line for each that cannot.

    Run groups of one machine that differ in versions or protocol get pictures of their own, numbered from 2.
    """
    found, lines = [], []
    sections = [section for section in comparison.sections if geometry_of(section.definition) == "full"]
    taken: dict[str, int] = {}
    for section in sections:
        for group in section.groups:
            if group.tolerance_name != tolerance:
                continue
            where = slug(section.hardware)
            taken[where] = taken.get(where, 0) + 1
            where += f"-{taken[where]}" if taken[where] > 1 else ""
            drawn = {"speed": speed(section, group, where), "roofline": roofline(section, group, where)}
            found += [picture for picture in drawn.values() if picture]
            reasons = {"speed": "nothing that counts was timed", "roofline": "no bound is known for what was timed"}
            lines += [f"{name}-{where}.svg: left out: {reasons[name]}" for name, p in drawn.items() if p is None]
    if not taken:
        lines.append(f"speed, roofline: left out: no traces of the full geometry at tolerance {tolerance!r}")
    by_machine = [stages(records, hardware) for hardware in sorted({record.provenance.hardware for record in records})]
    found += [picture for picture in by_machine if picture]
    if not any(by_machine):
        lines.append("stages: left out: no profile was recorded on a GPU, see moebench profile")
    return found, lines


def sweep(one: Sweep) -> Picture:
    below = sweep_report.origin(one)
    made_from = fingerprint([[p.model_dump() for p in one.points], below], plot_sweep)
    return Picture(f"sweep-{one.head.solution}.svg", made_from, lambda: plot_sweep.draw(one, below))


def bf16(found: Comparison) -> list[Picture]:
    """Of the first machine and protocol; [] before anything was timed."""
    for section in found.sections:
        for group in section.groups:
            data = plot_w16a16.data(group)
            title = f"{section.definition}\n{section.hardware}, {group.tolerance}"
            below = f"{section.versions_text}; {group.protocol}; {' to '.join(group.days)}"
            made_from = fingerprint([data, title, below], plot_w16a16)
            return [Picture("w16a16.svg", made_from, lambda d=data, t=title, b=below: plot_w16a16.draw(d, t, b))]
    return []
