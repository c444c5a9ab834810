"""Print the README's tables from records.

python table.py results.jsonl
"""

import json
import re
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median


@dataclass(frozen=True)
class Figure:
    """A number of a record that is shown."""

    key: str
    name: str
    digits: int  # behind the point

    def text(self, runs: list[float]) -> str:
        """Return the median of some runs; "-" without any."""
        return f"{median(runs):.{self.digits}f}" if runs else "-"


FIGURES = (
    Figure("median_tpot_ms", "TPOT ms", 3),
    Figure("median_ttft_ms", "TTFT ms", 1),
    Figure("output_throughput", "tokens/s", 0),
)
BACKEND_NAMES = {"triton": "Triton", "deep_gemm": "DeepGEMM"}
Cells = dict[tuple, list[float]]  # runs, by concurrency, key and column


def column(record: dict) -> str:
    """Return a solution's own name, or that of vLLM's backend."""
    backend = record["backend"]
    if backend in BACKEND_NAMES:
        return BACKEND_NAMES[backend]
    _, _, solution = record["kernels"].partition("solution ")
    name = solution.partition(",")[0]
    return f"{name}, sum over ranks" if backend == "solution_sum" else name


def title(record: dict) -> str:
    """Return what must be the same for records of one table."""
    model = record["model"]
    sizes = f"{model['experts']} experts, H {model['hidden_size']}"
    sizes += f", I {model['moe_intermediate_size']}"
    if model["ranks"] > 1:
        sizes += f", the share of one of {model['ranks']} ranks"
    slices = re.search(r"--tensor-parallel-size (\d+)", record["options"])
    if slices:
        sizes += f", in {slices[1]} slices"

    software = f"vLLM {record['versions']['vllm']}"
    for name, value in record["environment"].items():
        software += f" {name}={value}"
    layers = model["num_hidden_layers"]
    return f"{record['gpu']}, {software}: {layers} layers of {sizes}"


def cells_of(records: list[dict]) -> Cells:
    """Return the runs of each cell."""
    cells = defaultdict(list)
    for record in records:
        for figure in FIGURES:
            cell = (record["concurrency"], figure.key, column(record))
            cells[cell].append(record[figure.key])
    return dict(cells)


def times(records: list[dict]) -> list[str]:
    """Return a table of medians over starts and repeats, and how far the runs lie apart."""
    columns = list(dict.fromkeys(map(column, records)))
    cells = cells_of(records)

    head = ["concurrency"]
    for figure in FIGURES:
        for name in columns:
            head.append(f"{figure.name}, {name}")
    rule = "|" + " ---: |" * len(head)

    lines = [table_row(head), rule]
    for concurrency in sorted({concurrency for concurrency, *_ in cells}):
        row = [str(concurrency)]
        for figure in FIGURES:
            for name in columns:
                runs = cells.get((concurrency, figure.key, name), [])
                row.append(figure.text(runs))
        lines.append(table_row(row))
    return [*lines, "", distances(cells), ""]


def table_row(texts: list[str]) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(texts)} |"


def distances(cells: Cells) -> str:
    """Return a sentence on how far the runs of a cell lie apart at most, by figure."""
    counts = {len(runs) for runs in cells.values()}
    if counts == {1}:
        return "One run each."

    parts = []
    for figure in FIGURES:
        ratio = largest_ratio(cells, figure)
        parts.append(f"{figure.name} {ratio - 1:.1%}")
    numbers = " or ".join(map(str, sorted(counts)))
    return f"Medians of {numbers} runs, at most so far apart: {', '.join(parts)}."


def largest_ratio(cells: Cells, figure: Figure) -> float:
    """Return how many times as large a cell's largest run is as its smallest, at most."""
    ratios = []
    for (_, key, _), runs in cells.items():
        if key == figure.key:
            ratios.append(max(runs) / min(runs))
    return max(ratios)


def show_logprobs(record: dict) -> None:
    """Print a line on logprobs."""
    median_text = f"median {record['median']:.4f}"
    p99 = f"p99 {record['p99']:.4f}"
    same_best = f"same best {record['same_best']:.1%}"
    print(f"- {column(record)}, {record['logprobs']}: {median_text}, {p99}, {same_best}")


def main() -> None:
    lines = Path(sys.argv[1]).read_text().splitlines()
    records = [json.loads(line) for line in lines]
    for heading in dict.fromkeys(map(title, records)):
        here = [record for record in records if title(record) == heading]
        points = [record for record in here if "concurrency" in record]
        table = times(points) if points else []
        print(heading, "", *table, sep="\n")
        for record in here:
            if "logprobs" in record:
                show_logprobs(record)


if __name__ == "__main__":
    main()
