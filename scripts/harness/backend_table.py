"""The table of our solutions in docs/backends.md, made from each solution.toml and from traces/."""

from collections import defaultdict

from flashinfer_bench import Trace

from definitions.moe_fp8_block_scale import definition_name
from harness import packing, paths, trace_store

BEGIN = "<!-- solutions: written by scripts/update_backends.py -->"
END = "<!-- end of solutions -->"
FACTS = {
    "input": "activations that gemm1 multiplies",
    "intermediate": "what gemm2 multiplies",
    "granularity": "quantisation granularity",
    "layout": "layout",
    "activation": "activation: order of gemm1's halves, where it is applied",
    "launches": "launches a call",
    "best": "best choice",
}
TOLERANCE = "relaxed"


NOISE = 1.05  # as fast as the fastest, within a run's scatter


def fastest_at(traces: list[Trace]) -> dict[str, dict[str, list[int]]]:
    """Solution -> machine -> token counts at which none that passed at TOLERANCE is faster by more than NOISE."""
    runs = defaultdict(list)
    for trace in traces:
        environment = trace.evaluation.environment
        if trace.is_successful() and environment.libs.get("tolerance", "").startswith(TOLERANCE):
            runs[environment.hardware, trace.workload.axes["seq_len"]].append(trace)
    out = defaultdict(lambda: defaultdict(list))
    for (hardware, seq_len), found in sorted(runs.items()):
        limit = NOISE * min(t.evaluation.performance.latency_ms for t in found)
        for trace in found:
            if trace.evaluation.performance.latency_ms <= limit:
                out[trace.solution][hardware].append(seq_len)
    return out


def block(traces: list[Trace]) -> str:
    """Markdown, one row a solution."""
    head = [
        "solution",
        "runs on",
        *FACTS.values(),
        f"within {NOISE - 1:.0%} of the fastest at T ({TOLERANCE})",
        "imports",
    ]
    lines = ["| " + " | ".join(head) + " |", "| --- " * len(head) + "|"]
    fastest, measured = fastest_at(traces), {trace.solution for trace in traces}
    for name in packing.solution_names():
        manifest = packing.read_manifest(name)
        facts = manifest.get("facts", {})
        if facts.keys() != FACTS.keys():
            wrong = ", ".join(sorted(facts.keys() ^ FACTS.keys()))
            raise packing.PackingError(f"{name}: [facts] lacks or does not know {wrong}")
        at = "; ".join(f"{gpu}: {', '.join(map(str, lengths))}" for gpu, lengths in fastest[name].items())
        cells = [
            f"`{name}`",
            ", ".join(manifest["target_hardware"]),
            *(facts[fact] for fact in FACTS),
            at or ("nowhere" if name in measured else "not measured"),
            ", ".join(f"`{module}`" for module in manifest.get("dependencies", [])),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def renewed(text: str) -> str:
    """The text of docs/backends.md with its table made anew. Raises ValueError when a marker is missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"docs/backends.md lacks the marker {BEGIN if not begin else END}")
    table = block(trace_store.load(paths.trace_file(definition_name("full"))))
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"
