"""Print the README's tables from records: python table.py results.jsonl"""

import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median


@dataclass(frozen=True)
class Figure:
    """What of a record is shown. digits: behind the point."""

    key: str
    name: str
    digits: int

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
    backend = BACKEND_NAMES.get(record["backend"])
    return backend or record["kernels"].split("solution ")[1].split(",")[0]


def title(record: dict) -> str:
    """Return what must be the same for records of one table."""
    model = record["model"]
    sizes = f"{model['experts']} experts, H {model['hidden_size']}"
    sizes += f", I {model['moe_intermediate_size']}"
    if model["ranks"] > 1:
        sizes += f", the share of one of {model['ranks']} ranks"

    software = [f"vLLM {record['versions']['vllm']}"]
    software += [f"{name}={value}" for name, value in record["environment"].items()]
    layers = model["num_hidden_layers"]
    return f"{record['gpu']}, {' '.join(software)}: {layers} layers of {sizes}"


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
        head += [f"{figure.name}, {name}" for name in columns]
    lines = [f"| {' | '.join(head)} |", "|" + " ---: |" * len(head)]
    for concurrency in sorted({concurrency for concurrency, *_ in cells}):
        row = [str(concurrency)]
        for figure in FIGURES:
            for name in columns:
                row.append(figure.text(cells.get((concurrency, figure.key, name), [])))
        lines.append(f"| {' | '.join(row)} |")
    return [*lines, "", distances(cells), ""]


def distances(cells: Cells) -> str:
    """Return a sentence on how far the runs of a cell lie apart at most, by figure."""
    counts = {len(runs) for runs in cells.values()}
    if counts == {1}:
        return "One run each."

    said = []
    for figure in FIGURES:
        ratios = [max(runs) / min(runs) for (_, key, _), runs in cells.items() if key == figure.key]
        said.append(f"{figure.name} {max(ratios) - 1:.1%}")
    numbers = " or ".join(map(str, sorted(counts)))
    return f"Medians of {numbers} runs, at most so far apart: {', '.join(said)}."


def main() -> None:
    records = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    for heading in dict.fromkeys(map(title, records)):
        here = [record for record in records if title(record) == heading]
        points = [record for record in here if "concurrency" in record]
        print(heading, "", *(times(points) if points else []), sep="\n")
        for record in here:
            if "logprobs" in record:
                shown = f"median {record['median']:.4f}, p99 {record['p99']:.4f}"
                shown += f", same best {record['same_best']:.1%}"
                print(f"- {column(record)}, {record['logprobs']}: {shown}")


if __name__ == "__main__":
    main()
