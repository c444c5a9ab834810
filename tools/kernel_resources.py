"""What the Triton kernels of solutions take on a GPU that is not here: the most of all variants
that are launched.

python tools/kernel_resources.py triton_fused_v2 --definition full --architecture sm_100
"""

import argparse
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from rich.box import MARKDOWN
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path[:0] = [
    str(Path(__file__).resolve().parents[1] / folder) for folder in ("tests/support", "", "scripts")
]

from ahead_of_time import compiled  # noqa: E402
from moebench.core.errors import exit_with  # noqa: E402
from moebench.operators.catalogue import geometry_named  # noqa: E402

TOKENS = (
    1,
    7,
    80,
    300,
    901,
    2000,
    14107,
)  # multiples of 16 and others, and every choice of kernels
SHOWN = ("MMA", "UTMALDG", "LDGSTS")  # ends of opcodes: of tensor cores and asynchronous copies


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("solutions", nargs="+", metavar="SOLUTION")
    parser.add_argument("--definition", type=geometry_named, default="full", metavar="KEY")
    parser.add_argument(
        "--architecture",
        default="sm_100",
        metavar="SM[:GPU]",
        help="GPU: a name, for its own tiles",
    )
    args = parser.parse_args(argv)
    variants = defaultdict(list)
    for name in track(args.solutions, "compiling", console=Console(stderr=True)):
        with tempfile.TemporaryDirectory() as folder:
            for kernel in compiled(name, args.definition, args.architecture, TOKENS, Path(folder)):
                opcodes = kernel[
                    "instructions"
                ]  # None where this disassembler does not know the architecture
                mix = (
                    "?"
                    if opcodes is None
                    else " ".join(sorted(each for each in opcodes if each.endswith(SHOWN)))
                )
                variants[name, kernel["kernel"], mix].append(
                    (kernel["registers"], kernel["shared"], kernel["stack"])
                )
    columns = (
        "solution",
        "kernel",
        "variants",
        "registers",
        "shared bytes",
        "stack bytes",
        "instructions",
    )
    table = Table(*columns, box=MARKDOWN)
    for (name, kernel, mix), found in variants.items():
        most = map(max, zip(*found, strict=True))
        table.add_row(name, kernel, str(len(found)), *map(str, most), mix)
    Console(width=200).print(table)
    return 0


if __name__ == "__main__":
    exit_with(main)
