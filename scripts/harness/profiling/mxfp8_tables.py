"""A record of profile_mxfp8.py as tables, for the terminal and for Markdown."""

from rich.table import Table

from harness.profiling.mxfp8_record import STEPS, CaseProfile, Mxfp8Record, Timing

HEADINGS = ("step", "contestant", "mean us", "std us", "rate", "error")
UNITS = {"quantise": "GB/s", "product": "TFLOP/s", "linear": "TFLOP/s"}
ERROR_IS = "error: relative Frobenius error of the result against the product in fp32"


def title(case: CaseProfile) -> str:
    return f"M = {case.m}, N = {case.n}, K = {case.k}; triton_mxfp8 takes route {case.route}"


def cells(timing: Timing) -> list[str]:
    if timing.skipped:
        return [timing.step, timing.contestant, f"SKIPPED: {timing.skipped}", "", "", ""]
    error = "" if timing.error is None else f"{timing.error:.1e}"
    rate = f"{timing.rate:.1f} {UNITS[timing.step]}"
    return [timing.step, timing.contestant, f"{timing.mean_us:.1f}", f"{timing.std_us:.1f}", rate, error]


def by_step(case: CaseProfile) -> list[Timing]:
    """The case's timings, a step's together."""
    return sorted(case.timings, key=lambda timing: STEPS.index(timing.step))


def terminal(record: Mxfp8Record) -> Table:
    """One table of all cases."""
    table = Table(title=f"MXFP8 linear on {record.hardware}, output {record.dtype}", caption=ERROR_IS)
    for heading in ("M x N x K", *HEADINGS):
        table.add_column(heading, justify="left" if heading in ("step", "contestant") else "right")
    for case in record.cases:
        shape = f"{case.m} x {case.n} x {case.k}"
        for timing in by_step(case):
            table.add_row(shape, *cells(timing))
            shape = ""
        table.add_section()
    return table


def _row(entries: list[str]) -> str:
    return "| " + " | ".join(entries) + " |"


def markdown(case: CaseProfile) -> str:
    """One table of one case."""
    lines = [_row(list(HEADINGS)), "| --- | --- | ---: | ---: | ---: | ---: |"]
    return "\n".join([*lines, *(_row(cells(timing)) for timing in by_step(case))])


def summary(record: Mxfp8Record) -> str:
    """The three steps of triton_mxfp8 by M, with torch's linear beside them: Markdown, microseconds."""
    head = ["M", *(f"{step} us" for step in STEPS), "quantise GB/s", "product TFLOP/s", "route", "emulated linear us"]
    lines = [_row([*head, "emulated / ours"]), "| ---: " * (len(head) + 1) + "|"]
    for case in record.cases:
        found = {(timing.step, timing.contestant): timing for timing in case.timings}
        ours = {step: found[step, "triton_mxfp8"] for step in STEPS}
        other = found["linear", "torch_mxfp8_emulated"]
        entries = [str(case.m), *(f"{ours[step].mean_us:.1f}" for step in STEPS)]
        entries += [f"{ours['quantise'].rate:.0f}", f"{ours['product'].rate:.1f}", case.route]
        entries += [f"{other.mean_us:.1f}", f"{other.mean_us / ours['linear'].mean_us:.2f}x"]
        lines.append(_row(entries))
    return "\n".join(lines)
