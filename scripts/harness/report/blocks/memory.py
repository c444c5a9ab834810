"""The table of docs/memory.md: the GPU memory that judging the FP8 MoE definitions takes."""

from harness.core.names import counted
from harness.judging import memory
from harness.operators.catalogue import FP8_MOE, FULL, definition
from harness.operators.workloads import cases_by_uuid
from harness.report.table import Table

TRIALS = (3, 2, 1)


def block() -> str:
    """Markdown: GB by definition, number of trials, and whether one worker is kept."""
    rows = []
    for key in [key for key in FP8_MOE if key in FULL]:
        longest = max(case.seq_len for case in cases_by_uuid(key).values())
        full = definition(key)
        sizes = [memory.input_bytes(full, longest), memory.draw_bytes(full, longest)]
        for trials in TRIALS:
            needs = memory.needs(key, longest, trials)
            sizes += [needs.kept, needs.renewed]
        rows.append([f"`{key}`", *(f"{size / 1e9:.1f}" for size in sizes)])
    by_trials = [f"{counted(trials, 'trial')}, {how}" for trials in TRIALS for how in ("one worker", "a worker each")]
    return Table(["GB", "inputs", "largest draw", *by_trials], [rows], words=1).markdown()
