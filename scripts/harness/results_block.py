"""The results in README.md, made from traces/."""

from collections import defaultdict

from flashinfer_bench import EvaluationStatus, Trace

from definitions.moe_fp8_block_scale import definition_name
from harness import packing, paths, trace_store

BEGIN = "<!-- results: written by scripts/update_readme.py -->"
END = "<!-- end of results -->"
SHOWN_SEQ_LENS = (1, 7, 57, 901, 11948, 14107)
RECORDED = ("torch", "cuda", "triton", "flashinfer_bench", "cuda_driver", "python")


def current_hashes() -> dict[str, str]:
    """Full-geometry solution name -> hash of its source as it would be packed now."""
    packed = (packing.pack(name).get("full") for name in packing.solution_names())
    return {solution.name: solution.hash() for solution in packed if solution}


def row(solution: str, traces: list[Trace], num_workloads: int, current: str | None) -> str:
    """One line of Markdown: a solution at one tolerance on one machine."""
    good = [t for t in traces if t.evaluation.status == EvaluationStatus.PASSED]
    stale = any(t.evaluation.environment.libs.get("solution_sha1") != current for t in traces)
    cells = [solution + (" (stale)" if stale else ""), f"{len(good)}/{num_workloads}"]
    if good:
        speeds = [t.evaluation.performance.speedup_factor for t in good]
        times = [t.evaluation.performance.latency_ms for t in good]
        cells += [f"{sum(speeds) / len(good):.1f}x", f"{sum(times) / len(good):.3f}"]
    else:
        cells += ["-", "-"]
    by_length = {t.workload.axes["seq_len"]: t.evaluation.performance.latency_ms for t in good}
    cells += [f"{by_length[t]:.3f}" if t in by_length else "-" for t in SHOWN_SEQ_LENS]
    return "| " + " | ".join(cells) + " |"


def block(traces: list[Trace], num_workloads: int, hashes: dict[str, str]) -> str:
    """Markdown of all tables: one for each machine and tolerance, fastest solution first."""
    experiments = defaultdict(lambda: defaultdict(list))
    for trace in traces:
        environment = trace.evaluation.environment
        tolerance = environment.libs.get("tolerance", "unknown tolerance")
        experiments[environment.hardware, tolerance][trace.solution].append(trace)
    if not experiments:
        return "No traces have been recorded yet: run `make bench` on a machine with a CUDA GPU."

    def mean_ms(item):
        times = [t.evaluation.performance.latency_ms for t in item[1] if t.is_successful()]
        return (-len(times), sum(times) / len(times) if times else 0)

    parts = []
    for (hardware, tolerance), by_solution in sorted(experiments.items()):
        lengths = [f"T={t}" for t in SHOWN_SEQ_LENS]
        head = ["solution", "passed", "mean speed-up", "mean ms", *lengths]
        lines = [f"**{hardware}**, {tolerance}", "", "| " + " | ".join(head) + " |"]
        lines.append("| --- |" + " ---: |" * (len(head) - 1))
        for name, found in sorted(by_solution.items(), key=mean_ms):
            lines.append(row(name, found, num_workloads, hashes.get(name)))
        everything = [t.evaluation for found in by_solution.values() for t in found]
        notes = []
        for key in (*RECORDED, "protocol"):
            values = sorted({e.environment.libs[key] for e in everything if key in e.environment.libs})
            if values:
                notes.append(f"{key.replace('_', ' ')} {' / '.join(values)}")
        days = sorted({e.timestamp[:10] for e in everything})
        notes.append(days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}")
        parts.append("\n".join([*lines, "", f"Times in ms. {'; '.join(notes)}."]))
    if "(stale)" in "".join(parts):
        parts.append("*stale*: the solution's source has changed since it was measured.")
    return "\n\n".join(parts)


def renewed(readme: str) -> str:
    """README text with its block made anew. Raises ValueError when a marker is missing."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md lacks the marker {BEGIN if not begin else END}")
    name = definition_name("full")
    num_workloads = len(paths.workload_file(name).read_text().splitlines())
    text = block(trace_store.load(paths.trace_file(name)), num_workloads, current_hashes())
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"
