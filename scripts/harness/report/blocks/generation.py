"""A language model's prefill and decode in tables, from the records below docs/data/generate/."""

from harness.core import paths
from harness.core.schema import read_record
from harness.report.table import Table
from harness.results import staleness
from harness.served.deepseek_v3 import BF16
from harness.served.generation_record import Head, Line

NOT_RUN = "**Not run** on a GPU: no times and no logits at real sizes are recorded here."
PHASES = {"prefill": "time to first token", "decode": "time per token", "decode graph": "the same, as a graph"}


def said(line: Line) -> str:
    """A line as it is measured."""
    at = f"{line.phase}, batch {line.batch}, {line.tokens} tokens" if line.phase else f"logits of {line.tokens} tokens"
    if line.error:
        return f"{line.experts}: {at}: {line.error}"
    if line.phase:
        return f"{line.experts}: {at}: {min(line.ms):.3f} ms"
    return (
        f"{line.experts}: {at}: relative error {line.median:.4f} in the median, {line.worst:.4f} at most, "
        f"same next token {line.same_token:.1%}"
    )


def times(head: Head, lines: list[Line]) -> Table:
    """ms of a pass, and in brackets bf16's time over it; a row for each phase and batch."""
    timed = {(line.phase, line.batch, line.experts): line for line in lines if line.phase}
    names = [BF16, *head.sources]

    def cell(line: Line, bf16: Line) -> str:
        if line.error or not line.ms:
            return "failed"
        ratio = f" ({min(bf16.ms) / min(line.ms):.2f}x)" if bf16.ms and line is not bf16 else ""
        return f"{min(line.ms):.3f}{ratio}"

    rows = []
    for phase, batch in dict.fromkeys(key[:2] for key in timed):
        bf16, *_ = found = [timed[phase, batch, name] for name in names]
        rows.append([PHASES[phase], batch, bf16.tokens, *(cell(line, bf16) for line in found)])
    return Table(
        ["ms", "batch", "tokens before", "bf16 experts", *head.sources],
        [rows],
        f"One dense and {head.moe_layers} MoE layers",
        caption="In brackets: against transformers' own implementation for experts in bf16.",
        notes=[f"{said(line)}." for line in lines if line.phase and line.error],
    )


def logits(lines: list[Line]) -> Table:
    rows = [
        [line.experts, line.tokens, f"{line.median:.4f}", f"{line.worst:.4f}", f"{line.same_token:.1%}"]
        for line in lines
        if not line.phase
    ]
    return Table(
        ["experts", "tokens", "median error", "largest error", "same next token"],
        [rows],
        "Logits against bf16 experts",
        caption="Relative, per token; well above the median are tokens that a rounding sent to another expert.",
    )


def origin(head: Head) -> str:
    """Machine, versions, protocol, date, and whose source has changed since."""
    made = head.provenance
    libraries = [f"{name} {version}" for name, version in head.versions.items()]
    where = [made.hardware, *libraries, made.versions_text, *([made.protocol] if made.protocol else [])]
    return "; ".join([*where, made.timestamp[:10], *staleness.changed(made, head.sources, head.definition)])


def block() -> str:
    """Markdown: each record's times and checks, and where they come from."""
    parts = []
    for path in sorted(paths.GENERATED.glob("*.jsonl")):
        head, lines = read_record(path, Head, Line, "generate")
        tables = times(head, lines), logits(lines)
        parts += [*(table.markdown(titled=True) for table in tables), f"<sub>{origin(head)}.</sub>"]
    return "\n\n".join(parts) or NOT_RUN
