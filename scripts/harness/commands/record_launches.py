"""Record, through ncu, how large each launch of a solution is, how long it takes and what it keeps busy."""

import argparse
import shlex
import sys
from pathlib import Path

import torch

from harness.core.atomic_file import write_atomically
from harness.operators import catalogue
from harness.packing import manifest
from harness.profiling.launch_counters import record_launches
from harness.profiling.profiled_calls import ProfileError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("solutions", nargs="+", metavar="NAME")
    add("--workloads", nargs="+", required=True, metavar="W", help="T or a uuid")
    add("--output", type=Path, required=True, metavar="FILE", help="the record, JSON")


def main(args: argparse.Namespace) -> int:
    # where a file was put says nothing to a reader and too much about a machine
    shown = ["docs/" + args.output.name if word == str(args.output) else word for word in args.command_line.split()]
    command = shlex.join(["python", "moebench profile", *shown])
    try:
        if not torch.cuda.is_available():
            raise ValueError("ncu needs a CUDA device; torch sees none")
        names = manifest.choose(args.solutions)
        geometry = catalogue.geometry_here(manifest.served(manifest.read_manifest(names[0])), on_gpu=True)
        definition = catalogue.definition_name(geometry)
        found = record_launches(names, geometry, definition, args.workloads, command)
        write_atomically(args.output, found.model_dump_json(indent=2) + "\n")
    except (manifest.PackingError, ProfileError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(args.output)
    return 0
