"""The record of a sweep: JSON Lines, first what it is of, then one line per point as it is measured."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import field_validator

from harness.core.provenance import Provenance
from harness.core.schema import Strict, read_record
from harness.judging.tolerances import TOLERANCES
from harness.operators.catalogue import definition_name
from harness.operators.roofline import Bound

FEW_TOKENS = 1024  # up to here reading the weights bounds the time, above it the tensor cores do


@dataclass(frozen=True)
class Target:
    """The latency that a point should not exceed; words: the formula."""

    words: str
    ms: Callable[[Bound], float]


TARGETS = {
    "loose": Target("1.5 x bound + 0.03", lambda least: 1.5 * least.ms + 0.03),
    "tight": Target(
        f"1.10 x bound + 0.025 up to T = {FEW_TOKENS}, else 1.25 x bound",
        lambda least: 1.10 * least.ms + 0.025 if least.seq_len <= FEW_TOKENS else 1.25 * least.ms,
    ),
}


class Head(Strict):
    """One solution on one machine. planned: number of points of a complete sweep. provenance.timestamp: its start.

    definition: its name; records that were made when there was one definition do not have it.
    """

    solution: str
    definition: str = definition_name("full")
    target: Literal[*TARGETS]
    planned: int
    provenance: Provenance

    @field_validator("provenance")
    @classmethod
    def known_tolerance(cls, provenance: Provenance) -> Provenance:
        if provenance.tolerance_name not in TOLERANCES:
            raise ValueError(f"tolerance: want one of {', '.join(TOLERANCES)}, got {provenance.tolerance_name!r}")
        return provenance


class Point(Strict):
    """One routing. after_s: whole seconds since the head's timestamp. ms, matched, repeatable: None after an exception.

    matched: tolerance -> share of elements within it. error: why the answer is wrong, or what was raised; one line.
    """

    tokens: int
    kind: str
    rows: int
    active: int
    bound_ms: float
    target_ms: float
    after_s: int
    ms: float | None = None
    matched: dict[str, float] | None = None
    repeatable: bool | None = None
    error: str | None = None

    @property
    def met(self) -> bool:
        """Right and within the target."""
        return self.error is None and self.ms <= self.target_ms


@dataclass(frozen=True)
class Sweep:
    """points: in the order in which they were measured."""

    head: Head
    points: list[Point] = field(default_factory=list)

    @property
    def kinds(self) -> list[str]:
        return list(dict.fromkeys(point.kind for point in self.points))

    @property
    def summary(self) -> str:
        """'1 of 4 points meet the target of 1.5 x bound + 0.03 ms (real 1 of 4); 0 wrong at tolerance relaxed'."""

        def met(points: list[Point]) -> str:
            return f"{sum(p.met for p in points)} of {len(points)}"

        by_kind = ", ".join(f"{kind} {met([p for p in self.points if p.kind == kind])}" for kind in self.kinds)
        wrong = sum(p.error is not None for p in self.points)
        text = f"{met(self.points)} points meet the target of {TARGETS[self.head.target].words} ms ({by_kind}); "
        text += f"{wrong} wrong at tolerance {self.head.provenance.tolerance_name}"
        missing = self.head.planned - len(self.points)
        return text + (f"; cut short: {missing} points are missing" if missing else "")


def read(path: Path) -> Sweep:
    """Raises UserError, with the file's name and the line, for what is no such record."""
    return Sweep(*read_record(path, Head, Point, "a sweep"))
