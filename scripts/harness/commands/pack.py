"""Pack solutions into the JSON that FlashInfer-Bench reads, with the shared stages they list.

--build also lets FlashInfer-Bench build each, so that what they compile with nvcc or a C++ compiler is kept for later
runs, here or on another machine; no GPU is needed. TVM_FFI_CACHE_DIR is where, MAX_JOBS how many compilers at a time.

--package writes Python packages instead, for a program that calls `run` without FlashInfer-Bench: docs/engines.md.
"""

import argparse
import sys

from harness.core.arguments import output_folder
from harness.operators.catalogue import geometry_named
from harness.packing import build_ahead, pack


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add, add_either = parser.add_argument, parser.add_mutually_exclusive_group().add_argument
    add("names", nargs="*", metavar="NAME", help="default: every solution")
    add_either("--into", type=output_folder, metavar="PATH", help="register in another FlashInfer-Trace data set")
    add_either("--package", type=output_folder, metavar="FOLDER", help="write FOLDER/NAME/, which `import` finds")
    add_either("--build", action="store_true", help="also compile the CUDA and C++ sources; needs no GPU")
    which = "default: with --into full, with --package each solution's first"
    add("--definition", nargs="+", type=geometry_named, default=[], metavar="KEY", help=which)


def main(args: argparse.Namespace) -> int:
    _, left_out = pack.pack_all(args.names)
    if args.package:
        written = pack.pack_packages(args.names, args.package, args.definition)
    elif args.into:
        written = pack.pack_into(args.names, args.into, args.definition or ["full"])
    else:
        written = pack.pack_here(args.names)
    for path in written:
        print(path)
    for line in left_out:
        print(f"{line}; left out", file=sys.stderr)
    status = build_ahead.build(args.names, args.definition) if args.build else 0
    return 1 if left_out else status
