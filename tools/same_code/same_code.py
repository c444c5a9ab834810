"""Whether two checkouts of this repository compile to the same machine code, names of symbols apart.

    python tools/same_code/same_code.py BEFORE AFTER [--solutions mma_fused] [--definitions full]

Each checkout packs its solutions itself. Compared are each CUDA kernel's SASS, for every architecture of the solution,
and each Triton kernel's PTX for sm_90, in whatever file they are; then the most that AFTER's take. Needs nvcc and g++.
Exit status: 0, 1 where something differs or does not compile, 2 for bad arguments.
"""

import argparse
import sys
from collections import defaultdict
from difflib import unified_diff
from pathlib import Path

from compiled import Kernel, kernels, machines, packed
from rich.box import MARKDOWN
from rich.console import Console
from rich.progress import track
from rich.table import Table

SOME = ["full", "qwen3-next", "deepseek-v3-ep8-routed", "qwen3-next-routed", "bf16", "mxfp8"]  # forms of the code
SHOWN = 14  # lines of a kernel that differs


def pairs(before: list[Kernel], after: list[Kernel]) -> list[tuple[Kernel | None, Kernel | None]]:
    """Kernels of equal code, then of equal names, and with None those that are on one side alone."""
    found, left = [], list(after)
    for alike in (lambda kernel: (kernel.target, kernel.code), lambda kernel: (kernel.target, kernel.name)):
        for one in [kernel for kernel in before if all(kernel is not of for of, _ in found)]:
            if other := next((kernel for kernel in left if alike(kernel) == alike(one)), None):
                found.append((one, other))
                left.remove(other)
    alone = [(kernel, None) for kernel in before if all(kernel is not of for of, _ in found)]
    return found + alone + [(None, kernel) for kernel in left]


def difference(one: Kernel | None, other: Kernel | None) -> str:
    """How many lines differ, and the first of them."""
    lines = list(unified_diff(one.code if one else (), other.code if other else (), n=0, lineterm=""))[2:]
    return "\n  ".join([f"{sum(line[0] in '+-' for line in lines)} lines differ", *lines[:SHOWN]])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("checkouts", nargs=2, type=Path, metavar="BEFORE AFTER")
    add("--solutions", nargs="+", metavar="NAME", default=[], help="default: all with CUDA or Triton sources")
    add("--definitions", nargs="+", metavar="KEY", default=SOME, help=f"default: {' '.join(SOME)}")
    add("--machines", nargs="+", metavar="SM[:GPU]", help="sm_90, sm_80, ...; default: all of the solution")
    args = parser.parse_args()
    sides, rows, wrong = [packed(folder, args.solutions) for folder in args.checkouts], defaultdict(list), {}
    keys = [key for key in sorted({*sides[0], *sides[1]}) if key[1] in args.definitions]
    both = [[side.get(key) for side in sides] for key in keys]
    todo = [(one, other, sm) for one, other in both for sm in args.machines or machines(one or other)]
    for one, other, machine in track(todo, "compiling", console=Console(stderr=True)):
        about = f"{(one or other).name} {(one or other).definition} {machine}"
        try:
            found = pairs(kernels(one, other, machine), kernels(other, one, machine))
        except RuntimeError as error:
            wrong[f"{about}: {error}"] = None
            continue
        for before, after in found:
            names = " -> ".join(dict.fromkeys(kernel.name if kernel else "-" for kernel in (before, after)))
            result = "same" if before and after and before.code == after.code else "DIFFERS"
            kernel, of = after or before, other or one
            rows[of.name, names, kernel.target, kernel.mix, result].append((of.definition, kernel))
            if result != "same":
                wrong[f"{of.name} {of.definition} {kernel.target}, {names}: {difference(before, after)}"] = None
    table = Table(*"solution kernel target definitions lines registers shared local mix result".split(), box=MARKDOWN)
    for (name, names, target, *last), found in sorted(rows.items()):
        definitions, some = map(set, zip(*found, strict=True))
        most = map(max, zip(*((len(k.code), k.registers, k.shared, k.local) for k in some), strict=True))
        table.add_row(name, names, target, " ".join(sorted(definitions)), *map(str, most), *last)
    Console(width=None if sys.stdout.isatty() else 240, highlight=False).print(table, *wrong, sep="\n", markup=False)
    return 1 if wrong or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
