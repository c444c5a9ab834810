"""What a run does, decided before anything runs: a Plan, of which every cell is judged, recorded
and shown.
"""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from flashinfer_bench import BenchmarkConfig, Definition, Solution, Trace, Workload

from moebench.core import paths
from moebench.core.arguments import writable
from moebench.core.errors import CannotRun, UserError
from moebench.judging import dataset, fib
from moebench.judging.calling import input_bytes
from moebench.judging.selection import Device, check_device, eligible
from moebench.judging.tolerances import TOLERANCES, Tolerance
from moebench.operators.catalogue import BY_NAME, FULL, KEYS, definition_name
from moebench.operators.routing import kinds as routing_kinds
from moebench.packing import manifest, solution_files

EVERY = "all"  # of --definition
CONTEXTS = (
    2_000_000_000  # bytes of two CUDA contexts, their code and libraries' workspaces; a guess
)


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

    solutions: by name. theirs: names of those that are not of this repository, each of which has
    cells and a process of its own. skipped: a line for each solution and workload that is not run.
    path: of the traces, or None; asked: of theirs, too. root: the data set that has the workloads'
    tensors. kept: traces of a run that is resumed. renew_worker: one worker process for all would
    run out of GPU memory.
    """

    full: Definition
    solutions: dict[str, Solution]
    skipped: tuple[str, ...]
    cells: tuple[Cell, ...]
    path: Path | None
    theirs: frozenset[str] = frozenset()
    asked: bool = False
    root: Path = paths.ROOT
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
            kept += [
                known[cell.workload.uuid, name]
                for name in cell.names
                if (cell.workload.uuid, name) in known
            ]
            if left := tuple(
                name for name in cell.names if (cell.workload.uuid, name) not in known
            ):
                cells.append(replace(cell, names=left))
        return replace(self, cells=tuple(cells), kept=tuple(kept))


@dataclass(frozen=True)
class Plan:
    """device: what all cells are judged on. config: FIB's, at the tolerance. clock: one of
    provenance.CLOCKS.

    parts: by the definition's name. notes: a line for each definition and file that was asked for
    and is not run, or not as it is written. command: the text that repeats the run. verbose: every
    wrong output is diagnosed on a GPU, not each solution's first. where: the data set, if it is not
    this repository, as the protocol says it.
    """

    device: Device
    parts: dict[str, Part]
    notes: tuple[str, ...]
    tolerance: Tolerance
    config: BenchmarkConfig
    clock: str
    command: str
    verbose: bool
    where: str = ""

    def __iter__(self) -> Iterator[Cell]:
        return (cell for part in self.parts.values() for cell in part.cells)

    @property
    def protocol(self) -> str:
        """How times are taken, and of which data set, as traces say it."""
        if not self.device.on_gpu:
            return f"trials={self.config.num_trials} on the CPU through Triton's interpreter, not timed{self.where}"
        text = f"warmup={self.config.warmup_runs} iterations={self.config.iterations} trials={self.config.num_trials}"
        text += " fib=main" if fib.MAIN else ""
        return text + (f" clock={self.clock}" if self.clock != "events" else "") + self.where


def plan_of(args: Namespace, device: Device) -> Plan:
    """The Plan of `moebench run`'s arguments. Raises UserError, and CannotRun where nothing can be
    run.
    """
    refuse_conflicts(args, device)
    clock = args.clock or (fib.CLOCK if device.on_gpu else "events")
    tolerance = TOLERANCES[args.tolerance]
    config = tolerance.config(
        timeout_seconds=args.timeout,
        warmup_runs=args.warmup_runs,
        iterations=args.iterations,
        num_trials=args.num_trials or (3 if device.on_gpu else 1),
    )
    theirs, notes = solution_files.named(args.files)
    names = args.solutions or (None if args.files else [])
    root = (args.dataset or paths.ROOT).resolve()
    wanted = wanted_definitions(args.definition, names, theirs, dataset.names(root), device.on_gpu)
    parts = {}
    for name in wanted:
        geometry = BY_NAME.get(name)
        try:
            full = dataset.definition(name, root)
            check_device(geometry, device.on_gpu)
            fib.check_judge(full, device.on_gpu)
            path = None
            if keeps_traces(args, device):
                path = args.output or writable(paths.trace_file(name, clock=clock))
            if args.tokens:
                routing = args.routing or routing_kinds.KINDS[0]
                labelled = [
                    routing_kinds.workload(routing, tokens, geometry)
                    for tokens in dict.fromkeys(args.tokens)
                ]
            else:
                labelled = dataset.labelled(name, root, args.workloads)
            part = part_of(full, labelled, names, theirs, config.num_trials, device, root)
            parts[name] = replace(part, path=path, asked=args.output is not None)
        except (
            UserError
        ) as error:  # one of several that these solutions do not serve, or that does not fit
            if len(wanted) == 1 or not (args.dataset or isinstance(error, CannotRun)):
                raise
            notes.append(f"{name}: {error}")
            continue
        if fields := dataset.differing(full):
            there, here = (
                dataset.files(root)[name],
                paths.definition_file(name).relative_to(paths.SHIPPED),
            )
            notes.append(f"{there} is judged; {here} here has another {', '.join(fields)}")
    if not parts:
        raise CannotRun(f"nothing can be run here: {notes[-1]}")
    for other in dict.fromkeys(
        packed.definition for packed in theirs.values() if packed.definition not in parts
    ):
        left = ", ".join(name for name, packed in theirs.items() if packed.definition == other)
        notes.append(f"{left}: SKIPPED: for {other}, which is not run here")
    where = f" dataset={root.name}" if root != paths.ROOT else ""
    return Plan(
        device,
        parts,
        tuple(notes),
        tolerance,
        config,
        clock,
        args.command_line,
        args.verbose,
        where,
    )


def refuse_conflicts(args: Namespace, device: Device) -> None:
    """Raise UserError for arguments that do not go together, CannotRun for those that do not go
    with this machine.
    """
    if not device.on_gpu and args.clock == "gpu":
        raise CannotRun("--clock gpu: takes times and needs a CUDA device; torch sees none")
    if args.clock == "events" and fib.CLOCK == "gpu":
        raise CannotRun(
            "--clock events: FIB's main branch, which is here, times by the GPU's clock alone"
        )
    instead = {
        "--workloads": args.workloads,
        "--ray": args.ray is not None,
        "--dataset": args.dataset,
    }
    for other, given in instead.items():
        if args.tokens and given:
            raise UserError(
                f"--tokens: makes workloads on this machine, so it does not go with {other}"
            )
    if args.routing and not args.tokens:
        raise UserError("--routing: is for --tokens")
    if args.resume and not keeps_traces(args, device):
        raise UserError("--resume: no traces are kept here: name them with --output FILE")


def keeps_traces(args: Namespace, device: Device) -> bool:
    """By default with a GPU or --output; of made-up workloads and others' data with --output
    alone.
    """
    named = args.output is not None
    wanted = (named or device.on_gpu) if args.save is None else args.save
    return wanted and (named or not (args.tokens or args.dataset))


def wanted_definitions(
    named: list[str],
    names: list[str] | None,
    theirs: dict[str, Solution],
    there: list[str],
    on_gpu: bool,
) -> list[str]:
    """Those named; for EVERY all, else the first, that are for this machine and that these
    solutions serve.

    names: of solutions here, [] for all, None for none. there: definitions. Raises UserError for an
    unknown solution.
    """
    if named and EVERY not in named:
        return [
            *dict.fromkeys(definition_name(KEYS[text]) if text in KEYS else text for text in named)
        ]
    chosen, served = (
        manifest.choose(names) if names is not None else [],
        [p.definition for p in theirs.values()],
    )
    served += [
        definition_name(key) for name in chosen for key in manifest.read_manifest(name).definitions
    ]
    order = served if (names or theirs) and not named else there
    known = [name for name in dict.fromkeys(order) if name in served and name in there]
    able = [name for name in known if name not in BY_NAME or (BY_NAME[name] in FULL) == on_gpu]
    return (able if named else able[:1]) or known[:1] or served[:1]


def part_of(
    full: Definition,
    labelled: list[tuple[str, Workload]],
    names: list[str] | None,
    theirs: dict[str, Solution],
    trials: int,
    device: Device,
    root: Path = paths.ROOT,
) -> Part:
    """names: of solutions here, [] for all of the operator's, None for none. theirs: of others, by
    name.

    Raises CannotRun if no solution or no workload is left.
    """
    ours, skipped = {}, [f"{name}: SKIPPED: does not serve {full.name}" for name in names or []]
    if names is not None and full.name in BY_NAME:
        ours, skipped = eligible(names, BY_NAME[full.name], device)
    solutions = ours | {
        name: packed for name, packed in theirs.items() if packed.definition == full.name
    }
    if not solutions:
        raise CannotRun(f"no solution can be run here: {'; '.join(skipped)}")
    fitting, most = [], 0
    for label, workload in labelled:
        why = dataset.lacking(full, workload, root)
        size = sum(input_bytes(full, workload.axes).values()) if device.on_gpu and not why else 0
        if size and 2 * size + CONTEXTS > device.free:
            why = f"needs {(2 * size + CONTEXTS) / 1e9:.1f} GB of GPU memory for its inputs and FIB's clone"
            why += f", {device.free / 1e9:.1f} GB are free"
        if why:
            skipped.append(f"{label}: SKIPPED: {why}")
        else:
            fitting.append((label, workload))
            most = max(most, size)
    if not fitting:
        raise CannotRun(f"no workload can be run here: {skipped[-1]}")
    guests = [name for name in solutions if name not in ours]
    groups = ([tuple(ours)] if ours else []) + [(name,) for name in guests]
    cells = tuple(Cell(full.name, *one, group) for group in groups for one in fitting)
    # all trials here, in the worker, and there twice again between two solutions; clones; the
    # reference's temporaries
    renew = len(cells) > 1 and most > 0 and (4 * trials + 3) * most + CONTEXTS > device.free
    return Part(
        full,
        solutions,
        tuple(skipped),
        cells,
        None,
        frozenset(guests),
        root=root,
        renew_worker=renew,
    )
