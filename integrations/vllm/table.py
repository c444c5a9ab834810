"""Print the tables of README.md, in Markdown, from records that measure.py and logprobs.py wrote.

python table.py results.jsonl
"""

import json
import re
import sys
from collections import defaultdict
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median


@dataclass(frozen=True)
class Figure:
    """A number of a record, as the table shows it."""

    key: str  # in the record
    name: str  # in the head of the table
    digits: int  # after the decimal point

    def text(self, runs: list[float]) -> str:
        """Return the median of some runs; "-" without any."""
        return f"{median(runs):.{self.digits}f}" if runs else "-"


FIGURES = (
    Figure("median_tpot_ms", "TPOT ms", 3),
    Figure("median_ttft_ms", "TTFT ms", 1),
    Figure("output_throughput", "tokens/s", 0),
)
BACKEND_NAMES = {"triton": "Triton", "deep_gemm": "DeepGEMM"}
Cells = dict[tuple, list[float]]  # (concurrency, key of a Figure, column) -> a number for each run


def column(record: dict) -> str:
    """Return the name of a record's column: the solution, or the backend of vLLM."""
    backend = record["backend"]
    if backend in BACKEND_NAMES:
        return BACKEND_NAMES[backend]

    name = re.search(r"solution (\w+)", record["kernels"])[1]
    if backend == "solution_sum":
        name += ", sum over ranks"
    return name


def title(record: dict) -> str:
    """Return the heading of a record's table. Records with the same heading are in one table."""
    model = record["model"]
    layers = model["num_hidden_layers"]
    sizes = "{experts} experts, H {hidden_size}, I {moe_intermediate_size}".format(**model)
    if model["ranks"] > 1:
        sizes += f", the share of one of {model['ranks']} ranks"
    slices = re.search(r"--tensor-parallel-size (\d+)", record["options"])
    if slices:
        sizes += f", in {slices[1]} slices"

    software = f"vLLM {record['versions']['vllm']}"
    for name, value in record["environment"].items():
        software += f" {name}={value}"
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
    """Return the lines of a table of medians over starts and repeats, and of a sentence on their
    spread.
    """
    backends = list(dict.fromkeys(map(column, records)))
    columns = list(product(FIGURES, backends))
    head = ["concurrency"]
    for figure, backend in columns:
        head.append(f"{figure.name}, {backend}")
    lines = [table_row(head), "|" + " ---: |" * len(head)]

    cells = cells_of(records)
    for concurrency in sorted({record["concurrency"] for record in records}):
        row = [str(concurrency)]
        for figure, backend in columns:
            runs = cells.get((concurrency, figure.key, backend), [])
            row.append(figure.text(runs))
        lines.append(table_row(row))
    return [*lines, "", distances(cells), ""]


def table_row(texts: list[str]) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(texts)} |"


def distances(cells: Cells) -> str:
    """Return a sentence: how far the runs of a cell are apart, the most of all cells, by figure."""
    counts = {len(runs) for runs in cells.values()}
    if counts == {1}:
        return "One run each."

    parts = []
    for figure in FIGURES:
        excess = largest_ratio(cells, figure) - 1
        parts.append(f"{figure.name} {excess:.1%}")
    numbers = " or ".join(map(str, sorted(counts)))
    return f"Medians of {numbers} runs, at most so far apart: {', '.join(parts)}."


def largest_ratio(cells: Cells, figure: Figure) -> float:
    """Return the ratio of a cell's largest run to its smallest, the largest of all cells."""
    ratios = []
    for (_, key, _), runs in cells.items():
        if key == figure.key:
            ratios.append(max(runs) / min(runs))
    return max(ratios)


def show_logprobs(record: dict) -> None:
    """Print a line on a record of logprobs.py."""
    numbers = "median {median:.4f}, p99 {p99:.4f}, same best {same_best:.1%}".format(**record)
    print(f"- {column(record)}, {record['logprobs']}: {numbers}")


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
