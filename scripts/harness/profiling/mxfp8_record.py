"""What the MXFP8 profile records, in the format of docs/data/profile/mxfp8/*.json. Times: device microseconds."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from harness.core.schema import first_fault

STEPS = ("quantise", "product", "linear")


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Timing(Strict):
    """One step of one contestant on one case.

    rate: GB/s for `quantise`, TFLOP/s otherwise. error: relative Frobenius error of the result against the fp32
    product of the same codes and scales, cast to no other dtype; None for `quantise`.
    skipped: why it was not timed; then nothing else is given.
    """

    step: str
    contestant: str
    mean_us: float | None = None
    std_us: float | None = None
    rate: float | None = None
    error: float | None = None
    skipped: str | None = None


class CaseProfile(Strict):
    """One size: x [m, k], weight [n, k]. route: what triton_mxfp8 chose for it."""

    m: int
    n: int
    k: int
    route: str
    timings: list[Timing]


class Mxfp8Record(Strict):
    """One run on one machine. clock: "device", or "cpu" for times of Triton's interpreter."""

    hardware: str
    clock: str
    dtype: str
    iterations: int
    libs: dict[str, str]
    solutions_sha1: dict[str, str]
    command: str
    timestamp: str
    cases: list[CaseProfile]


def read_record(path: Path) -> Mxfp8Record:
    """A record from its file. Raises ValueError, one line, for a file that holds none."""
    try:
        return Mxfp8Record.model_validate_json(path.read_text())
    except ValidationError as error:
        raise ValueError(f"{path.name}: no record of profile_mxfp8.py: {first_fault(error, 'file')}") from error
