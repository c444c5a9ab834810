"""Compile the Triton kernels of solutions for any architecture, and print the registers, shared
memory and stack that they need.

    python tools/kernel_resources.py triton_fused_v2 --architecture sm_100

No GPU is needed. A kernel is compiled in all variants that calls of different numbers of tokens
launch; the table has the largest number of each resource.
"""

import argparse
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.box import MARKDOWN
from rich.console import Console
from rich.progress import track
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
for folder in ("scripts", "", "tests/support/solutions"):
    sys.path.insert(0, str(ROOT / folder))

from ahead_of_time import compiled  # noqa: E402
from moebench.core.errors import exit_with  # noqa: E402
from moebench.operators.catalogue import layer_key_named  # noqa: E402

# Numbers of tokens that together launch every kernel. Some are multiples of 16, for which Triton
# compiles variants of their own.
TOKENS = (1, 7, 80, 300, 901, 2000, 14107)
# Printed are opcodes with these endings: those of tensor cores and asynchronous copies.
PRINTED_OPCODES = ("MMA", "UTMALDG", "LDGSTS")
LAYER_KEY = "deepseek-v3-ep8"
COLUMNS = (
    "solution",
    "kernel",
    "variants",
    "registers",
    "shared bytes",
    "stack bytes",
    "instructions",
)


def instructions(opcodes: Iterable[str] | None) -> str:
    """Return the opcodes to print, or "?" where the disassembler cannot tell (None)."""
    if opcodes is None:
        return "?"
    printed = [opcode for opcode in opcodes if opcode.endswith(PRINTED_OPCODES)]
    return " ".join(sorted(printed))


@dataclass(frozen=True)
class Kernel:
    """A kernel of a solution: a row of the table."""

    solution: str
    name: str
    instructions: str  # as printed


@dataclass(frozen=True)
class Resources:
    """What a variant of a kernel needs."""

    registers: int  # of a thread
    shared_bytes: int  # of a block
    stack_bytes: int  # of a thread


def variants_of(
    solutions: list[str], layer_key: str, architecture: str
) -> dict[Kernel, list[Resources]]:
    """Return what each variant of each kernel needs."""
    variants = defaultdict(list)
    for name in track(solutions, "compiling", console=Console(stderr=True)):
        with tempfile.TemporaryDirectory() as folder:
            binaries = compiled(name, layer_key, architecture, TOKENS, Path(folder))
        for binary in binaries:
            opcodes = instructions(binary["instructions"])
            kernel = Kernel(name, binary["kernel"], opcodes)
            needed = Resources(binary["registers"], binary["shared"], binary["stack"])
            variants[kernel].append(needed)
    return variants


def table_of(variants: dict[Kernel, list[Resources]]) -> Table:
    """Return a table with a row for each kernel: the most of each resource of its variants."""
    table = Table(*COLUMNS, box=MARKDOWN)
    for kernel, needs in variants.items():
        table.add_row(
            kernel.solution,
            kernel.name,
            str(len(needs)),
            str(max(needed.registers for needed in needs)),
            str(max(needed.shared_bytes for needed in needs)),
            str(max(needed.stack_bytes for needed in needs)),
            kernel.instructions,
        )
    return table


def main(argv: list[str]) -> int:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("solutions", nargs="+", metavar="SOLUTION")
    parser.add_argument(
        "--definition", type=layer_key_named, default=LAYER_KEY, metavar="KEY"
    )
    gpu_help = (
        "for example sm_100; GPU: a GPU's name, for the tiles that were tuned for it"
    )
    parser.add_argument(
        "--architecture", default="sm_100", metavar="SM[:GPU]", help=gpu_help
    )
    args = parser.parse_args(argv)

    variants = variants_of(args.solutions, args.definition, args.architecture)
    Console(width=200).print(table_of(variants))
    return 0


if __name__ == "__main__":
    exit_with(main)
