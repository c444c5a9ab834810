"""A request becomes a plan: which definitions, solutions and workloads are run on this device."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from flashinfer_bench import Definition, Solution, Workload

from moebench.core import paths
from moebench.core.arguments import writable
from moebench.core.errors import CannotRun, UserError
from moebench.judging import dataset, fib
from moebench.judging.gpu_memory import needs_renewal, too_large
from moebench.judging.plan import Part, Plan, Task
from moebench.judging.request import EVERY, RunRequest
from moebench.judging.selection import Device, check_device, eligible
from moebench.judging.tolerances import TOLERANCES
from moebench.operators import catalogue
from moebench.operators.catalogue import definition_name
from moebench.operators.routing import kinds as routing_kinds
from moebench.packing import manifest, solution_files


def plan_run(request: RunRequest, device: Device) -> Plan:
    """Return a request's plan. Raises UserError, and CannotRun where nothing can be run."""
    refuse_conflicts(request, device)
    third_party, notes = solution_files.named(list(request.files))
    root = (request.dataset or paths.ROOT).resolve()
    tolerance = TOLERANCES[request.tolerance]
    config = tolerance.config(
        timeout_seconds=request.timeout_seconds,
        warmup_runs=request.warmup_runs,
        iterations=request.iterations,
        num_trials=request.num_trials or (3 if device.on_gpu else 1),
    )

    planner = Planner(request, device, root, third_party, config.num_trials)
    names = wanted_definitions(request, third_party, dataset.names(root), device.on_gpu)
    parts, part_notes = planner.parts(names)
    notes += part_notes
    if not parts:
        raise CannotRun(f"nothing can be run here: {notes[-1]}")

    return Plan(
        device=device,
        parts=parts,
        notes=(*notes, *left_out(third_party, parts)),
        tolerance=tolerance,
        config=config,
        clock=planner.clock,
        command=request.command,
        verbose=request.verbose,
        dataset=root.name if root != paths.ROOT else None,
    )


def refuse_conflicts(request: RunRequest, device: Device) -> None:
    """Raise UserError for arguments that do not go together, CannotRun for those that do not go
    with this machine.
    """
    refuse_clock(request.clock, device.on_gpu)
    if request.tokens:
        refuse_beside_tokens(request)
    elif request.routing:
        raise UserError("--routing: is for --tokens")
    if request.resume and not request.keeps_traces(device.on_gpu):
        raise UserError("--resume: no traces are kept here: name them with --output FILE")


def refuse_clock(clock: str | None, on_gpu: bool) -> None:
    if clock == "gpu" and not on_gpu:
        raise CannotRun("--clock gpu: takes times and needs a CUDA device; torch sees none")
    if clock == "events" and fib.CLOCK == "gpu":
        raise CannotRun(
            "--clock events: FIB's main branch, which is here, times by the GPU's clock alone"
        )


def refuse_beside_tokens(request: RunRequest) -> None:
    others = {
        "--workloads": bool(request.workloads),
        "--ray": request.ray is not None,
        "--dataset": request.dataset is not None,
    }
    for other, is_asked_for in others.items():
        if is_asked_for:
            raise UserError(
                f"--tokens: makes workloads on this machine, so it does not go with {other}"
            )


def wanted_definitions(
    request: RunRequest, third_party: dict[str, Solution], there: list[str], on_gpu: bool
) -> list[str]:
    """Return the definitions that are named; with EVERY all that are for this machine and that
    these solutions serve; without any, the first of those.

    there: definitions of the data set. Raises UserError for an unknown solution.
    """
    if request.definitions and EVERY not in request.definitions:
        return list(dict.fromkeys(map(definition_named, request.definitions)))

    wants_every = bool(request.definitions)
    served = served_definitions(request, third_party)
    names_solutions = bool(request.solutions or third_party)
    order = served if names_solutions and not wants_every else there
    in_both = [name for name in dict.fromkeys(order) if name in served and name in there]
    for_device = [name for name in in_both if is_for_device(name, on_gpu)]

    if wants_every and for_device:
        return for_device
    # one alone; if none fits, one whose error says what is wrong
    return for_device[:1] or in_both[:1] or served[:1]


def definition_named(text: str) -> str:
    """Return the name of the definition that a user means by its key, or by that name."""
    keys = catalogue.keys()
    return definition_name(keys[text]) if text in keys else text


def served_definitions(request: RunRequest, third_party: dict[str, Solution]) -> list[str]:
    """Return what the solutions serve that are asked for. Raises UserError for an unknown one."""
    served = [packed.definition for packed in third_party.values()]
    if request.wants_ours:
        for name in manifest.choose(list(request.solutions)):
            served += map(definition_name, manifest.read_manifest(name).definitions)
    return served


def is_for_device(definition: str, on_gpu: bool) -> bool:
    """Whether a definition's size is for this machine; of other people's that is not known."""
    layer_key = catalogue.by_name().get(definition)
    return layer_key is None or (layer_key in catalogue.full()) == on_gpu


def left_out(third_party: dict[str, Solution], parts: Collection[str]) -> list[str]:
    """Return a line for each definition of third-party solutions that is not run."""
    names: dict[str, list[str]] = {}
    for name, packed in third_party.items():
        if packed.definition not in parts:
            names.setdefault(packed.definition, []).append(name)

    return [
        f"{', '.join(solutions)}: SKIPPED: for {definition}, which is not run here"
        for definition, solutions in names.items()
    ]


class Planner:
    """Plans the parts of one request. clock: one of provenance.CLOCKS."""

    def __init__(
        self,
        request: RunRequest,
        device: Device,
        root: Path,
        third_party: dict[str, Solution],
        num_trials: int,
    ):
        self.request = request
        self.device = device
        self.root = root
        self.third_party = third_party
        self.num_trials = num_trials
        self.clock = request.clock or (fib.CLOCK if device.on_gpu else "events")

    def parts(self, names: list[str]) -> tuple[dict[str, Part], list[str]]:
        """Return the part of each definition by its name, and a line for each one that is not run,
        or not as it is here.

        Raises as `part` for a single definition, and for one that may not be left out.
        """
        parts = {}
        notes = []
        for name in names:
            try:
                parts[name] = self.part(name)
            except UserError as error:
                if len(names) == 1 or not self.may_be_left_out(error):
                    raise
                notes.append(f"{name}: {error}")
            else:
                notes += self.differences(parts[name].full)
        return parts, notes

    def may_be_left_out(self, error: UserError) -> bool:
        """Whether a definition with this error is left out beside others: these solutions do not
        serve it, it does not fit, or it is of a data set.
        """
        return isinstance(error, CannotRun) or self.request.dataset is not None

    def part(self, name: str) -> Part:
        """Return what is run of a definition. Raises UserError for what is not there, CannotRun
        where nothing of it can be run.
        """
        full = dataset.definition(name, self.root)
        check_device(catalogue.by_name().get(name), self.device.on_gpu)
        fib.check_evaluator(full, self.device.on_gpu)
        path = self.trace_path(name)
        labelled = self.labelled_workloads(name)
        ours, skipped = self.our_solutions(full)
        third_party = {}
        for solution, packed in self.third_party.items():
            if packed.definition == full.name:
                third_party[solution] = packed
        if not ours and not third_party:
            raise CannotRun(f"no solution can be run here: {'; '.join(skipped)}")

        part = part_of(full, labelled, ours, third_party, self.num_trials, self.device, self.root)
        return replace(
            part,
            skipped=(*skipped, *part.skipped),
            path=path,
            keeps_third_party=self.request.output is not None,
        )

    def trace_path(self, name: str) -> Path | None:
        if not self.request.keeps_traces(self.device.on_gpu):
            return None
        return self.request.output or writable(paths.trace_file(name, clock=self.clock))

    def our_solutions(self, full: Definition) -> tuple[dict[str, Solution], list[str]]:
        """Return this repository's solutions by name, and a line for each one that is not run."""
        names = list(self.request.solutions)
        if self.request.wants_ours and full.name in catalogue.by_name():
            return eligible(names, catalogue.by_name()[full.name], self.device)
        return {}, [f"{name}: SKIPPED: does not serve {full.name}" for name in names]

    def labelled_workloads(self, name: str) -> list[tuple[str, Workload]]:
        if not self.request.tokens:
            return dataset.labelled(name, self.root, self.request.workloads)

        routing = self.request.routing or routing_kinds.KINDS[0]
        return [
            routing_kinds.workload(routing, tokens, catalogue.by_name().get(name))
            for tokens in dict.fromkeys(self.request.tokens)
        ]

    def differences(self, full: Definition) -> list[str]:
        """Return a line if this repository has a definition of the same name and another text."""
        fields = dataset.differing(full)
        if not fields:
            return []
        there = dataset.files(self.root)[full.name]
        here = paths.definition_file(full.name).relative_to(paths.ROOT)
        return [f"{there} is evaluated; {here} here has another {', '.join(fields)}"]


def part_of(
    full: Definition,
    labelled: list[tuple[str, Workload]],
    ours: dict[str, Solution],
    third_party: dict[str, Solution],
    num_trials: int,
    device: Device,
    root: Path = paths.ROOT,
) -> Part:
    """Return the part of these solutions on those workloads that can be run.

    Raises CannotRun if no workload is left.
    """
    fitting = []
    skipped = []
    for label, workload in labelled:
        why = dataset.lacking(full, workload, root) or too_large(full, workload, device)
        if why:
            skipped.append(f"{label}: SKIPPED: {why}")
        else:
            fitting.append((label, workload))
    if not fitting:
        raise CannotRun(f"no workload can be run here: {skipped[-1]}")

    groups = [tuple(ours)] if ours else []
    groups += [(name,) for name in third_party]
    tasks = []
    for group in groups:
        tasks += [Task(full.name, label, workload, group) for label, workload in fitting]

    return Part(
        full=full,
        solutions=ours | third_party,
        skipped=tuple(skipped),
        tasks=tuple(tasks),
        third_party=frozenset(third_party),
        root=root,
        renew_worker=len(tasks) > 1 and needs_renewal(full, fitting, num_trials, device),
    )
