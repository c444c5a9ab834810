"""What moebench sweep --output leaves: a line of JSON for each point, one solution at one routing."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from harness.core.schema import first_fault
from harness.evaluation.sweep_point import TARGETS
from harness.evaluation.tolerances import TOLERANCES


class SweepPoint(BaseModel):
    """ms, matched and repeatable: None after an exception.

    error: why the answer is wrong, or what was raised; one line, or None.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    solution: str
    solution_sha1: str
    hardware: str
    libs: dict[str, str]
    timestamp: str
    tolerance: Literal[*TOLERANCES]
    target: Literal[*TARGETS]
    tokens: int
    kind: str
    rows: int
    active: int
    bound_ms: float
    target_ms: float
    ms: float | None = None
    matched: dict[str, float] | None = None
    repeatable: bool | None = None
    error: str | None

    @property
    def met(self) -> bool:
        return self.error is None and self.ms <= self.target_ms


def read(path: Path) -> list[SweepPoint]:
    """The points of one solution on one machine.

    Raises ValueError, with the file's name, for what is no such record, is empty, or mixes solutions, sources,
    machines or settings.
    """
    try:
        points = [SweepPoint.model_validate_json(line) for line in path.read_text().splitlines()]
    except ValidationError as error:
        raise ValueError(f"{path.name}: no record of a sweep: {first_fault(error, 'line')}") from error
    mixed = {(p.solution, p.solution_sha1, p.hardware, str(p.libs), p.tolerance, p.target) for p in points}
    if len(mixed) != 1:
        raise ValueError(f"{path.name}: is of {len(mixed)} solutions, sources, machines or settings, want one")
    return points
