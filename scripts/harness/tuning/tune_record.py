"""What a tuning run has measured, a JSON object a line, so that a run that was stopped goes on where it was.

Times are microseconds.
"""

import hashlib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from harness.core import paths
from harness.tuning.tune_space import TileSize, Variant

KERNELS = ("gemm1", "gemm1_swiglu_quant", "swiglu_quant", "gemm2", "pair_order", "tile_order")


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Head(Strict):
    """What all of a record's measurements have in common; kernels_sha1 is of the products' sources."""

    kind: Literal["head"] = "head"
    gpu: str
    architecture: str
    local_experts: int
    hidden: int
    intermediate: int
    routing: str
    libs: dict[str, str]
    kernels_sha1: str


class Described(Strict):
    """A variant in a line."""

    stage: Literal["gemm1", "gemm2"]
    tile: list[int]
    padded_to: int
    tma: bool
    fused: bool

    def variant(self) -> Variant:
        return Variant(self.stage, TileSize(*self.tile), self.padded_to, self.tma, self.fused)


def described(variant: Variant) -> Described:
    return Described(
        stage=variant.stage,
        tile=list(variant.tile),
        padded_to=variant.padded_to,
        tma=variant.tma,
        fused=variant.fused,
    )


class LeftOut(Strict):
    """A variant that was not timed, whatever T, as compiling it told why."""

    kind: Literal["left_out"] = "left_out"
    what: Described
    reason: str


class Timed(Strict):
    """A variant at one T. us: median over layers of each layer's median; None where it was wrong or did not run.

    layers: on how many it was timed; fewer than the others where it was hopeless on the first.
    """

    kind: Literal["timed"] = "timed"
    T: int
    what: Described
    us: float | None = None
    layers: int
    error: str | None = None


class Compared(Strict):
    """gemm1 and gemm2 one after the other: the solution's present tiles and the best found, turn about.

    noise_us: the larger of the two's interquartile ranges over rounds. The best found is kept only if it was faster.
    """

    kind: Literal["compared"] = "compared"
    T: int
    present: list[Described]
    found: list[Described]
    present_us: float
    found_us: float
    noise_us: float
    layers: int

    @property
    def kept(self) -> list[Described]:
        return self.found if self.found_us < self.present_us else self.present


LINE = TypeAdapter(Head | LeftOut | Timed | Compared)


def kernels_sha1() -> str:
    sources = [(paths.SHARED_STAGES / f"{name}.py").read_bytes() for name in KERNELS]
    return hashlib.sha1(b"\0".join(sources)).hexdigest()


class Record:
    """A record file and what is in it. Every addition is written at once."""

    def __init__(self, path: Path | None, head: Head):
        """Goes on with the file if there is one; None keeps the record in memory.

        Raises ValueError, one line, for a file that is none or was measured under other circumstances.
        """
        self.path, self.head = path, head
        self.left_out: dict[Variant, str] = {}
        self.timed: dict[tuple[int, Variant], Timed] = {}
        self.compared: dict[int, Compared] = {}
        if path is not None and path.exists() and path.stat().st_size:
            lines = read_lines(path)
            for field, was in lines[0]:
                if was != getattr(head, field):
                    raise ValueError(
                        f"{path.name}: was measured with {field} {was}, now it is {getattr(head, field)}: "
                        "move it away, or name another --record"
                    )
            for line in lines[1:]:
                self._take(line)
        else:
            self._write(head)

    def _take(self, line: BaseModel) -> None:
        if isinstance(line, LeftOut):
            self.left_out[line.what.variant()] = line.reason
        elif isinstance(line, Timed):
            self.timed[line.T, line.what.variant()] = line
        else:
            self.compared[line.T] = line

    def _write(self, line: BaseModel) -> None:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write(line.model_dump_json(exclude_none=True) + "\n")

    def add(self, line: LeftOut | Timed | Compared) -> None:
        self._take(line)
        self._write(line)

    def times(self, num_tokens: int) -> dict[Variant, float]:
        """Microseconds of the variants that were right and seen on all layers."""
        found = {v: t for (tokens, v), t in self.timed.items() if tokens == num_tokens and t.us is not None}
        most = max((t.layers for t in found.values()), default=0)
        return {variant: timed.us for variant, timed in found.items() if timed.layers == most}


def read_lines(path: Path) -> list[BaseModel]:
    """A record's lines, the head first; half a last line, as a stopped run may leave, is cut off.

    Raises ValueError, one line, for a file that is no record.
    """
    text = path.read_text()
    whole, _, rest = text.rpartition("\n")
    if rest:
        path.write_text(f"{whole}\n" if whole else "")
    found = []
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            found.append(LINE.validate_json(line))
        except ValidationError as error:
            raise ValueError(f"{path.name}:{number}: no line of a tuning record: {error.errors()[0]['msg']}") from error
    if not found or not isinstance(found[0], Head) or any(isinstance(line, Head) for line in found[1:]):
        raise ValueError(f"{path.name}: is no tuning record: want one head, in its first line")
    return found


def read_record(path: Path) -> Record:
    """A record as it lies there, for showing it. Raises ValueError, one line."""
    return Record(path, read_lines(path)[0])
