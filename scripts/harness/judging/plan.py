"""What a run does, decided before anything runs: a Plan, of which every cell is judged, recorded and shown."""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from flashinfer_bench import BenchmarkConfig, Definition, Solution, Trace, Workload
from flashinfer_bench.utils import dtype_str_to_torch_dtype

from harness.core import paths
from harness.core.arguments import writable
from harness.core.errors import CannotRun, UserError
from harness.judging.selection import Device, check_device, eligible
from harness.judging.tolerances import TOLERANCES, Tolerance
from harness.operators import routing_kinds, workloads
from harness.operators.catalogue import BY_NAME, FULL, definition, definition_name, geometry_named
from harness.packing import files, manifest

EVERY = "all"  # of --definition
CONTEXTS = 2_000_000_000  # bytes of two CUDA contexts, their code and libraries' workspaces; a guess


@dataclass(frozen=True)
class Cell:
    """A workload, and the solutions to judge on it in one go. definition: its name."""

    definition: str
    label: str
    workload: Workload
    names: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """What is run of one definition: a table of its own.

    solutions: by name. theirs: names of those that are not of this repository, each of which has cells and a process of
    its own. skipped: a line for each solution and workload that is not run. path: of the traces, or None; asked: of
    theirs, too. kept: traces of a run that is resumed. renew_worker: one worker process for all would run out of GPU
    memory.
    """

    full: Definition
    solutions: dict[str, Solution]
    skipped: tuple[str, ...]
    cells: tuple[Cell, ...]
    path: Path | None
    theirs: frozenset[str] = frozenset()
    asked: bool = False
    kept: tuple[Trace, ...] = ()
    renew_worker: bool = False

    @property
    def ours(self) -> dict[str, Solution]:
        return {name: packed for name, packed in self.solutions.items() if name not in self.theirs}

    def keeps(self, cell: Cell) -> bool:
        """Whether its traces are kept: this repository's traces are of its solutions."""
        return self.path is not None and (self.asked or self.theirs.isdisjoint(cell.names))

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

    parts: by the definition's name. notes: a line for each definition and file that was asked for and is not run, or
    not as it is written. command: the text that repeats the run. verbose: every wrong output is diagnosed on a GPU, not
    each solution's first.
    """

    device: Device
    parts: dict[str, Part]
    notes: tuple[str, ...]
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
    theirs, notes = files.named(args.files)
    names = args.solutions or (None if args.files else [])
    parts, wanted = {}, wanted_definitions(args.definition, names, theirs, device.on_gpu)
    for name in wanted:
        try:
            full, geometry = definition(geometry_named(name)), BY_NAME[name]
            check_device(geometry, device.on_gpu)
            default = paths.trace_file(name, clock=args.clock)
            path = (args.output or writable(default)) if keep else None
            if args.tokens:
                routing = args.routing or routing_kinds.KINDS[0]
                labelled = [routing_kinds.workload(routing, tokens, geometry) for tokens in dict.fromkeys(args.tokens)]
            else:
                labelled = labelled_workloads(geometry, args.workloads)
            part = part_of(full, labelled, names, theirs, trials, device)
            parts[name] = replace(part, path=path, asked=args.output is not None)
        except CannotRun as error:  # one of several that these solutions do not serve, or that does not fit
            if len(wanted) == 1:
                raise
            notes.append(f"{name}: {error}")
    if not parts:
        raise CannotRun(f"nothing can be run here: {notes[-1]}")
    others = {name: packed.definition for name, packed in theirs.items() if packed.definition not in parts}
    notes += [f"{name}: SKIPPED: it is for {definition}, which is not run here" for name, definition in others.items()]
    return Plan(device, parts, tuple(notes), tolerance, config, args.clock, args.command_line, args.verbose)


def wanted_definitions(
    named: list[str], names: list[str] | None, theirs: dict[str, Solution], on_gpu: bool
) -> list[str]:
    """Those named; for EVERY all, else the first, that are for this machine and that these solutions serve.

    names: of solutions here, [] for all, None for none. Raises UserError for an unknown one.
    """
    if named and EVERY not in named:
        return [*dict.fromkeys(definition_name(geometry_named(text)) for text in named)]
    chosen, served = manifest.choose(names) if names is not None else [], [p.definition for p in theirs.values()]
    served += [definition_name(key) for name in chosen for key in manifest.read_manifest(name).definitions]
    order = served if names or theirs and not named else BY_NAME
    known = [name for name in dict.fromkeys(order) if name in served and name in BY_NAME]
    able = [name for name in known if (BY_NAME[name] in FULL) == on_gpu]
    return (able if named else able[:1]) or served[:1]


def labelled_workloads(geometry: str, named: list[str]) -> list[tuple[str, Workload]]:
    """(label, workload) in the order in which they are run; their tensors are generated where they are missing.

    named: as `workloads.named` has it; [] for all, a user's own among them. Raises UserError.
    """
    workloads.make(geometry)
    chosen = {workload.uuid for text in named for workload in workloads.named(text, geometry)}
    recorded = workloads.recorded(geometry)
    return [(workloads.label(w, geometry), w) for w in recorded if not named or w.uuid in chosen]


def part_of(
    full: Definition,
    labelled: list[tuple[str, Workload]],
    names: list[str] | None,
    theirs: dict[str, Solution],
    trials: int,
    device: Device,
) -> Part:
    """names: of solutions here, [] for all of the operator's, None for none. theirs: of others, by name.

    Raises CannotRun if no solution or no workload is left.
    """
    ours, skipped = eligible(names, BY_NAME[full.name], device) if names is not None else ({}, [])
    solutions = ours | {name: packed for name, packed in theirs.items() if packed.definition == full.name}
    if not solutions:
        raise CannotRun(f"no solution can be run here: {'; '.join(skipped)}")
    fitting, most = [], 0
    for label, workload in labelled:
        each = input_bytes(full, workload) if device.on_gpu else 0
        if each and 2 * each + CONTEXTS > device.free:  # twice, as FIB times a clone of them
            need = f"needs {(2 * each + CONTEXTS) / 1e9:.1f} GB of GPU memory for its inputs twice"
            skipped.append(f"{label}: SKIPPED: {need}, {device.free / 1e9:.1f} GB are free")
        else:
            fitting.append((label, workload))
            most = max(most, each)
    if not fitting:
        raise CannotRun(f"no workload fits on this GPU: {skipped[-1]}")
    groups = [tuple(ours)] * bool(ours) + [(name,) for name in solutions if name not in ours]
    cells = tuple(Cell(full.name, *one, group) for group in groups for one in fitting)
    # all trials here, in the worker, and there twice again between two solutions; clones; the reference's temporaries
    renew = len(cells) > 1 and most > 0 and (4 * trials + 3) * most + CONTEXTS > device.free
    theirs = frozenset(solutions.keys() - ours.keys())
    return Part(full, solutions, tuple(skipped), cells, None, theirs, renew_worker=renew)


def input_bytes(full: Definition, workload: Workload) -> int:
    """Of one trial."""
    shapes = full.get_input_shapes(workload.axes)
    widths = [dtype_str_to_torch_dtype(spec.dtype).itemsize for spec in full.inputs.values()]
    return sum(prod(shape) * width for shape, width in zip(shapes, widths, strict=True) if shape is not None)
