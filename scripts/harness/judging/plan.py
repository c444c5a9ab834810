"""What a run does, decided before anything runs: a Plan, of which every cell is judged, recorded and shown."""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from flashinfer_bench import BenchmarkConfig, Solution, Trace, Workload
from flashinfer_bench.utils import dtype_str_to_torch_dtype

from harness.core import paths
from harness.core.arguments import writable
from harness.core.errors import CannotRun, UserError
from harness.judging.selection import Device, choose_geometry, eligible
from harness.judging.tolerances import TOLERANCES, Tolerance
from harness.operators import routing_kinds, workloads
from harness.operators.catalogue import FULL, GEOMETRIES, definition, definition_name
from harness.packing import manifest

EVERY = "all"  # of --definition
CONTEXTS = 2_000_000_000  # bytes of two CUDA contexts, their code and libraries' workspaces; a guess


@dataclass(frozen=True)
class Cell:
    """A workload, and the solutions to judge on it in one go."""

    geometry: str
    label: str
    workload: Workload
    names: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """What is run of one definition: a table of its own.

    solutions: by folder's name. skipped: a line for each solution and workload that is not run. path: of the traces, or
    None. kept: traces of a run that is resumed. renew_worker: one worker process for all would run out of GPU memory.
    """

    geometry: str
    solutions: dict[str, Solution]
    skipped: tuple[str, ...]
    cells: tuple[Cell, ...]
    path: Path | None
    kept: tuple[Trace, ...] = ()
    renew_worker: bool = False

    @property
    def definition(self) -> str:
        return definition_name(self.geometry)

    def without(self, known: dict[tuple[str, str], Trace]) -> "Part":
        """What is left to judge. known: (workload's uuid, solution) -> its trace."""
        cells, kept = [], []
        for cell in self.cells:
            kept += [known[cell.workload.uuid, name] for name in cell.names if (cell.workload.uuid, name) in known]
            if left := tuple(name for name in cell.names if (cell.workload.uuid, name) not in known):
                cells.append(replace(cell, names=left))
        return replace(self, cells=tuple(cells), kept=tuple(kept))


@dataclass(frozen=True)
class Plan:
    """device: what all cells are judged on. config: FIB's, at the tolerance. clock: one of provenance.CLOCKS.

    refused: a line for each definition that was asked for and cannot be run. command: the text that repeats the run.
    verbose: every wrong output is diagnosed on a GPU, not each solution's first.
    """

    device: Device
    parts: dict[str, Part]
    refused: tuple[str, ...]
    tolerance: Tolerance
    config: BenchmarkConfig
    clock: str
    command: str
    verbose: bool

    def __iter__(self) -> Iterator[Cell]:
        return (cell for part in self.parts.values() for cell in part.cells)

    @property
    def protocol(self) -> str:
        """How times are taken, as traces say it."""
        if not self.device.on_gpu:
            return f"trials={self.config.num_trials} on the CPU through Triton's interpreter, not timed"
        text = f"warmup={self.config.warmup_runs} iterations={self.config.iterations} trials={self.config.num_trials}"
        return text + (f" clock={self.clock}" if self.clock != "events" else "")


def plan_of(args: Namespace, device: Device) -> Plan:
    """The Plan of `moebench run`'s arguments. Raises UserError, and CannotRun where nothing can be run."""
    if not device.on_gpu and args.clock == "gpu":
        raise CannotRun("--clock gpu: takes times and needs a CUDA device; torch sees none")
    for other, given in (("--workloads", args.workloads), ("--ray", args.ray is not None)):
        if args.tokens and given:
            raise UserError(f"--tokens: makes workloads on this machine, so it does not go with {other}")
    if args.routing and not args.tokens:
        raise UserError("--routing: is for --tokens")
    tolerance = TOLERANCES[args.tolerance]
    trials = args.num_trials or (3 if device.on_gpu else 1)
    how = {"warmup_runs": args.warmup_runs, "iterations": args.iterations, "num_trials": trials}
    config = tolerance.config(timeout_seconds=args.timeout, **how)
    keep = (args.output is not None or device.on_gpu) if args.save is None else args.save
    keep = keep and (args.output is not None or not args.tokens)
    if args.resume and not keep:
        raise UserError("--resume: no traces are kept here: name them with --output FILE")
    parts, refused = {}, []
    names = args.solutions or []
    wanted = wanted_definitions(args.definition or [None], names, device.on_gpu)
    for each in wanted:
        try:
            geometry = choose_geometry(each, device.on_gpu, names)
            default = paths.trace_file(definition_name(geometry), clock=args.clock)
            path = (args.output or writable(default)) if keep else None
            if args.tokens:
                routing = args.routing or routing_kinds.KINDS[0]
                labelled = [routing_kinds.workload(routing, tokens, geometry) for tokens in dict.fromkeys(args.tokens)]
            else:
                labelled = labelled_workloads(geometry, args.workloads)
            parts[geometry] = part_of(geometry, labelled, names, path, trials, device)
        except CannotRun as error:  # one of several that these solutions do not serve, or that does not fit
            if len(wanted) == 1:
                raise
            refused.append(f"{definition_name(each)}: {error}")
    if not parts:
        raise CannotRun(f"none of the {len(wanted)} definitions could be run here: {refused[0]}")
    return Plan(device, parts, tuple(refused), tolerance, config, args.clock, args.command_line, args.verbose)


def wanted_definitions(named: list[str | None], solutions: list[str], on_gpu: bool) -> list[str | None]:
    """Those named; for EVERY all for this machine that these solutions serve, [None] where there is none."""
    if EVERY not in named:
        return named
    served = {key for name in manifest.choose(solutions) for key in manifest.read_manifest(name).definitions}
    return [key for key in GEOMETRIES if key in served and (key in FULL) == on_gpu] or [None]


def labelled_workloads(geometry: str, named: list[str]) -> list[tuple[str, Workload]]:
    """(label, workload) in the order in which they are run; their tensors are generated where they are missing.

    named: as `workloads.named` has it; [] for all, a user's own among them. Raises UserError.
    """
    workloads.make(geometry)
    chosen = {workload.uuid for text in named for workload in workloads.named(text, geometry)}
    recorded = workloads.recorded(geometry)
    return [(workloads.label(w, geometry), w) for w in recorded if not named or w.uuid in chosen]


def part_of(geometry: str, labelled: list, names: list[str], path: Path | None, trials: int, device: Device) -> Part:
    """names: of solutions, [] for all of the operator's. Raises CannotRun if no solution or no workload is left."""
    solutions, skipped = eligible(names, geometry, device)
    cells, most = [], 0
    for label, workload in labelled:
        each = input_bytes(geometry, workload) if device.on_gpu else 0
        if each and 2 * each + CONTEXTS > device.free:  # twice, as FIB times a clone of them
            need = f"needs {(2 * each + CONTEXTS) / 1e9:.1f} GB of GPU memory for its inputs twice"
            skipped.append(f"{label}: SKIPPED: {need}, {device.free / 1e9:.1f} GB are free")
        else:
            cells.append(Cell(geometry, label, workload, tuple(solutions)))
            most = max(most, each)
    if not cells:
        raise CannotRun(f"no workload fits on this GPU: {skipped[-1]}")
    # all trials here, in the worker, and there twice again between two solutions; clones; the reference's temporaries
    renew = len(cells) > 1 and most > 0 and (4 * trials + 3) * most + CONTEXTS > device.free
    return Part(geometry, solutions, tuple(skipped), tuple(cells), path, renew_worker=renew)


def input_bytes(geometry: str, workload: Workload) -> int:
    """Of one trial."""
    full = definition(geometry)
    shapes = full.get_input_shapes(workload.axes)
    widths = [dtype_str_to_torch_dtype(spec.dtype).itemsize for spec in full.inputs.values()]
    return sum(prod(shape) * width for shape, width in zip(shapes, widths, strict=True) if shape is not None)
