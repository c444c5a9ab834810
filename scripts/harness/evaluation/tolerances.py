"""The settings that an element-wise comparison is judged by."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerance:
    """An element fails beyond atol and rtol both; the share `ratio` must not fail."""

    name: str
    rtol: float
    atol: float
    ratio: float

    def __str__(self) -> str:
        return f"{self.name}: rtol={self.rtol:g} atol={self.atol:g} ratio={self.ratio:g}"


TOLERANCES = {
    t.name: t
    for t in (
        Tolerance("relaxed", rtol=0.2, atol=0.1, ratio=0.85),
        Tolerance("contest", rtol=0.3, atol=1.0, ratio=0.9),
        Tolerance("default", rtol=0.01, atol=0.01, ratio=0.95),
    )
}
