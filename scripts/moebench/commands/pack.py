"""Pack solutions into the JSON that FlashInfer-Bench reads, with the files of common/ they need.

--build also lets FlashInfer-Bench build each, without a GPU; TVM_FFI_CACHE_DIR says where, MAX_JOBS
how many at once.

--package writes Python packages instead, which pip installs, and vLLM and SGLang find then:
integrations/README.md.

--trace-apply writes solutions that FlashInfer's own calls find and use:
integrations/flashinfer/README.md.
"""

import argparse
import sys
from pathlib import Path

from moebench.core.arguments import output_folder
from moebench.core.errors import UserError
from moebench.operators.catalogue import layer_key_named
from moebench.packing import build_ahead, pack, python_package, trace_apply

DEFINITION_HELP = (
    "with --package, --trace-apply or --build; default: each solution's first with --package, else "
    "all"
)
NO_PLUGIN = "no plugin, as its router is inside or it takes no bf16 tokens"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="default: every solution"
    )
    output_form = parser.add_mutually_exclusive_group()
    output_form.add_argument(
        "--package",
        type=output_folder,
        metavar="FOLDER",
        help="write FOLDER/NAME/, which `import` finds",
    )
    output_form.add_argument(
        "--trace-apply",
        type=output_folder,
        metavar="FOLDER",
        help="write FOLDER/solutions/, which FlashInfer's Trace Apply reads",
    )
    output_form.add_argument(
        "--build",
        action="store_true",
        help="also compile the CUDA and C++ sources; needs no GPU",
    )
    parser.add_argument(
        "--definition",
        nargs="+",
        type=layer_key_named,
        default=[],
        metavar="KEY",
        help=DEFINITION_HELP,
    )


def main(args: argparse.Namespace) -> int:
    if args.definition and not (args.package or args.trace_apply or args.build):
        raise UserError(
            "--definition: got it alone, want --package, --trace-apply or --build with it"
        )

    # first, as it raises if a solution that is named cannot be packed: then nothing is written
    _, left_out = pack.pack_all(args.names)
    written = write(args)
    print(*written, sep="\n")
    if args.package:
        say_what_has_no_plugin(written)
    for line in left_out:
        print(f"{line}; left out", file=sys.stderr)

    status = build_ahead.build(args.names, args.definition) if args.build else 0
    return 1 if left_out else status


def write(args: argparse.Namespace) -> list[Path]:
    """Write the solutions that can be packed: as packages, for Trace Apply, or into packed/; return
    the files, or the packages' folders.
    """
    if args.package:
        return python_package.pack_packages(args.names, args.package, args.definition)
    if args.trace_apply:
        return trace_apply.pack_for_trace_apply(
            args.names, args.trace_apply, args.definition
        )
    return pack.write_packed(args.names)


def say_what_has_no_plugin(packages: list[Path]) -> None:
    """Print which of the packages hold no adapter that vLLM finds as a plugin."""
    without_plugin = []
    for package in packages:
        if not (package / "for_vllm.py").exists():
            without_plugin.append(str(package))
    if without_plugin:
        print(f"{', '.join(without_plugin)}: {NO_PLUGIN}", file=sys.stderr)
