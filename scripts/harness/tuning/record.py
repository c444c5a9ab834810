"""What a tuning run has measured, one JSON object per line, so that a stopped run continues. Times are microseconds."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, RootModel

from harness.core.errors import UserError
from harness.core.provenance import Provenance
from harness.core.schema import Strict, add_line, read_jsonl
from harness.tuning.space import Pair, Variant

STAGES = ("gemm1", "gemm1_swiglu_quant", "swiglu_quant", "gemm2", "tile_order")  # what is timed
LIBRARIES = ("torch", "triton")  # those whose versions change the times


class Head(Strict):
    """What all measurements of a record have in common; provenance.source_sha1 is staleness.stages_sha1(STAGES)."""

    kind: Literal["head"] = "head"
    architecture: str
    local_experts: int
    hidden: int
    intermediate: int
    routing: str
    provenance: Provenance

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.local_experts, self.hidden, self.intermediate

    @property
    def circumstances(self) -> dict[str, str | int]:
        """What must be the same for two measurements to be comparable, by name."""
        of = self.provenance
        versions = {name: of.versions[name] for name in LIBRARIES}
        own = self.model_dump(exclude={"kind", "provenance"})
        return {"gpu": of.hardware, **own, **versions, "source_sha1": of.source_sha1}

    @property
    def versions_text(self) -> str:
        return ", ".join(f"{name} {self.provenance.versions[name]}" for name in LIBRARIES)


class LeftOut(Strict):
    """A variant that is not timed at any T, and why: "kind: details", found by compiling it."""

    kind: Literal["left_out"] = "left_out"
    what: Variant
    reason: str


class Timed(Strict):
    """A variant at one T. us: median over layers of each layer's median; None where it was wrong or did not run.

    layers: on how many it was timed; 1 where it was too slow on the first to go on.
    """

    kind: Literal["timed"] = "timed"
    T: int
    what: Variant
    us: float | None = None
    layers: int = 0
    error: str | None = None


class Compared(Strict):
    """gemm1 and gemm2 in sequence: the solution's present tiles and the best found, interleaved.

    noise_us: the larger of the two's interquartile ranges over rounds. The best found is kept only if it was faster.
    """

    kind: Literal["compared"] = "compared"
    T: int
    present: Pair
    found: Pair
    present_us: float
    found_us: float
    noise_us: float
    layers: int

    @property
    def kept(self) -> Pair:
        return self.found if self.found_us < self.present_us else self.present


class TuningLine(RootModel[Annotated[Head | LeftOut | Timed | Compared, Field(discriminator="kind")]]):
    """A line of a tuning record."""


class Record:
    """A record file and its contents. Every addition is written at once."""

    def __init__(self, path: Path | None, head: Head | None = None):
        """Continue a file, or begin it with `head`; without a path the record stays in memory.

        head=None reads a file as it is. Raises UserError for a file that is no record or was measured under other
        circumstances than head's.
        """
        self.path = path
        self.left_out: dict[Variant, str] = {}
        self.timed: dict[tuple[int, Variant], Timed] = {}
        self.compared: dict[int, Compared] = {}
        if path is None or (head and not (path.exists() and path.stat().st_size)):
            self.head = head
            add_line(path, head, first=True)
            return
        text = path.read_text()
        if not text.endswith("\n"):  # half a last line, as a stopped run may leave
            path.write_text(text[: text.rfind("\n") + 1])
        lines = [line.root for line in read_jsonl(path, TuningLine)]
        if [at for at, line in enumerate(lines) if isinstance(line, Head)] != [0]:
            raise UserError(f"{path.name}: not a tuning record: want one head, in its first line")
        self.head, *lines = lines
        for name, now in (head or self.head).circumstances.items():
            if (was := self.head.circumstances[name]) != now:
                wanted = "move it away, or name another --record"
                raise UserError(f"{path.name}: was measured with {name} {was}, now it is {now}: {wanted}")
        for line in lines:
            self._keep(line)

    def add(self, line: LeftOut | Timed | Compared) -> None:
        self._keep(line)
        add_line(self.path, line, first=False)

    def _keep(self, line: LeftOut | Timed | Compared) -> None:
        match line:
            case LeftOut():
                self.left_out[line.what] = line.reason
            case Timed():
                self.timed[line.T, line.what] = line
            case Compared():
                self.compared[line.T] = line

    def times(self, num_tokens: int) -> dict[Variant, float]:
        """Microseconds of the variants that were right and timed on all layers."""
        found = {v: t for (tokens, v), t in self.timed.items() if tokens == num_tokens and t.us is not None}
        most = max((t.layers for t in found.values()), default=0)
        return {variant: timed.us for variant, timed in found.items() if timed.layers == most}


def table_source(record: Record) -> str:
    """Python text of the tiles that were kept, which triton_fused_v2 loads on the GPU of that name."""
    head = record.head
    lines = [
        f'"""{head.provenance.hardware}: tiles by token count, {head.local_experts} local experts, '
        f"hidden {head.hidden}, intermediate {head.intermediate}.",
        "",
        f"Written by moebench tune from {record.path.name if record.path else 'a record'}: {head.versions_text}.",
        '"""',
        "",
        "TABLE = (",
    ]
    for num_tokens, compared in sorted(record.compared.items()):
        first, second = compared.kept
        row = {"T": num_tokens, "gemm1_fused": first.fused, "gemm2_tma": first.tma}
        row |= {variant.stage: variant.tile._asdict() for variant in (first, second)}
        fields = (f"        '{name}': {value}," for name, value in row.items())
        lines += ["    {", *(field.replace("'", '"') for field in fields), "    },"]
    return "\n".join([*lines, ")", ""])
