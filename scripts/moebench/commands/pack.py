"""Pack solutions into the JSON that FlashInfer-Bench reads, with the shared stages they list.

--build also lets FlashInfer-Bench build each, without a GPU; TVM_FFI_CACHE_DIR says where, MAX_JOBS
how many at once.

--package writes Python packages instead, which pip installs, and vLLM and SGLang find then:
integrations/README.md.
"""

import argparse
import sys

from moebench.core.arguments import output_folder
from moebench.core.errors import UserError
from moebench.operators.catalogue import geometry_named
from moebench.packing import build_ahead, pack


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add, add_either = parser.add_argument, parser.add_mutually_exclusive_group().add_argument
    add("names", nargs="*", metavar="NAME", help="default: every solution")
    add_either(
        "--package",
        type=output_folder,
        metavar="FOLDER",
        help="write FOLDER/NAME/, which `import` finds",
    )
    add_either(
        "--build", action="store_true", help="also compile the CUDA and C++ sources; needs no GPU"
    )
    which = "with --package or --build; default: each solution's first with --package, else all"
    add("--definition", nargs="+", type=geometry_named, default=[], metavar="KEY", help=which)


def main(args: argparse.Namespace) -> int:
    if args.definition and not (args.package or args.build):
        raise UserError("--definition: got it alone, want --package or --build with it")
    _, left_out = pack.pack_all(args.names)
    names, package = args.names, args.package
    written = (
        pack.pack_packages(names, package, args.definition) if package else pack.pack_here(names)
    )
    print(*written, sep="\n")
    if package and (bare := [str(path) for path in written if not (path / "for_vllm.py").exists()]):
        print(
            f"{', '.join(bare)}: no plugin, as its router is inside or it takes no bf16 tokens",
            file=sys.stderr,
        )
    for line in left_out:
        print(f"{line}; left out", file=sys.stderr)
    status = build_ahead.build(args.names, args.definition) if args.build else 0
    return 1 if left_out else status
