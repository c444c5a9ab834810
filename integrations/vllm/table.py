"""Print tables of records that measure.py and logprobs.py wrote: medians, and how far runs differ.

python table.py results.jsonl            needs pandas
"""

import re
import sys

import pandas as pd

FIGURES = {
    "median_tpot_ms": "TPOT ms",
    "median_ttft_ms": "TTFT ms",
    "output_throughput": "tokens/s",
}
LOGPROBS = ["kernels", "logprobs", "median", "p99", "same_best"]
NONE = pd.Series(dtype=object)
BACKENDS = {"triton": "Triton", "deep_gemm": "DeepGEMM"}


def kernels_of(record: pd.Series) -> str:
    """Return what computed the experts: the solution, or the backend of vLLM."""
    backend = record.backend
    if backend in BACKENDS:
        return BACKENDS[backend]

    name = re.search(r"solution (\w+)", record.kernels)[1]
    if backend == "solution_sum":
        name += " with its sum"
    return name


def server_of(record: pd.Series) -> str:
    """Return which server it was, without what computed the experts: a table's heading."""
    model = record.model
    parts = [
        record.gpu,
        f"vLLM {record.versions['vllm']}",
        f"{model['num_hidden_layers']} layers of {model['experts']} experts",
        f"H {model['hidden_size']}, I {model['moe_intermediate_size']}",
    ]
    slices = re.search(r"--tensor-parallel-size \d+", record.options)
    if model["ranks"] > 1:
        parts.append(f"the share of one of {model['ranks']} ranks")
    if slices:
        parts.append(slices[0])
    for name, value in record.environment.items():
        parts.append(f"{name}={value}")
    return ", ".join(parts)


def show_times(runs: pd.DataFrame) -> None:
    """Print the medians of each concurrency and kernel, and the widest range of its runs."""
    cells = runs.rename(columns=FIGURES).groupby(["concurrency", "kernels"])
    figures = cells[list(FIGURES.values())]
    print(figures.median().unstack().round(3).to_string())

    widest = (figures.max() / figures.min() - 1).max()
    print(
        f"\nRuns of a cell differ by at most:\n{widest.map('{:.1%}'.format).to_string()}\n"
    )


def main() -> None:
    records = pd.read_json(sys.argv[1], lines=True)
    records["server"] = records.apply(server_of, axis="columns")
    records["kernels"] = records.apply(kernels_of, axis="columns")

    for server, runs in records.groupby("server", sort=False):
        print(server)
        if runs.get("concurrency", NONE).notna().any():
            show_times(runs)
        if runs.get("logprobs", NONE).notna().any():
            compared = runs.dropna(subset="logprobs")
            print(compared[LOGPROBS].to_string(index=False), "\n")


if __name__ == "__main__":
    main()
