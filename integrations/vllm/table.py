"""Print the README's tables from records: python table.py results.jsonl"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

SHOWN = {
    "median_tpot_ms": ("TPOT ms", 3),
    "median_ttft_ms": ("TTFT ms", 1),
    "output_throughput": ("tokens/s", 0),
}
NAMES = {"triton": "Triton", "deep_gemm": "DeepGEMM"}


def column(record: dict) -> str:
    """A solution's own name, or that of vLLM's backend."""
    return NAMES.get(record["backend"]) or record["kernels"].split("solution ")[1].split(",")[0]


def title(record: dict) -> str:
    """What must be the same for records of one table."""
    model = record["model"]
    share = f", the share of one of {model['ranks']} ranks" if model["ranks"] > 1 else ""
    sizes = f"{model['experts']} experts, H {model['hidden_size']}, I {model['moe_intermediate_size']}{share}"
    software = [f"vLLM {record['versions']['vllm']}", *map("=".join, record["environment"].items())]
    return f"{record['gpu']}, {' '.join(software)}: {model['num_hidden_layers']} layers of {sizes}"


def times(records: list[dict]) -> list[str]:
    """A table of medians over starts and repeats, and how far the runs of a cell lie apart at most,
    by column.
    """
    cells, columns = defaultdict(list), list(dict.fromkeys(map(column, records)))
    for record in records:
        for key in SHOWN:
            cells[record["concurrency"], key, column(record)].append(record[key])
    head = ["concurrency", *(f"{SHOWN[key][0]}, {name}" for key in SHOWN for name in columns)]
    lines = [f"| {' | '.join(head)} |", "|" + " ---: |" * len(head)]
    for concurrency in sorted({at for at, *_ in cells}):
        found = [
            (cells.get((concurrency, key, name)), SHOWN[key][1])
            for key in SHOWN
            for name in columns
        ]
        shown = [f"{median(runs):.{digits}f}" if runs else "-" for runs, digits in found]
        lines.append(f"| {concurrency} | {' | '.join(shown)} |")
    if (counts := {len(runs) for runs in cells.values()}) == {1}:
        return [*lines, "", "One run each.", ""]
    apart = {
        key: max(max(runs) / min(runs) for (_, of, _), runs in cells.items() if of == key) - 1
        for key in SHOWN
    }
    said = ", ".join(f"{SHOWN[key][0]} {most:.1%}" for key, most in apart.items())
    return [
        *lines,
        "",
        f"Medians of {' or '.join(map(str, sorted(counts)))} runs, at most so far apart: {said}.",
        "",
    ]


def main() -> None:
    records = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    for heading in dict.fromkeys(map(title, records)):
        here = [record for record in records if title(record) == heading]
        points = [record for record in here if "concurrency" in record]
        print(heading, "", *(times(points) if points else []), sep="\n")
        for found in (record for record in here if "logprobs" in record):
            shown = f"median {found['median']:.4f}, p99 {found['p99']:.4f}, same best {found['same_best']:.1%}"
            print(f"- {column(found)}, {found['logprobs']}: {shown}")


if __name__ == "__main__":
    main()
