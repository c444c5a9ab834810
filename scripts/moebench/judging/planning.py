"""Make a request's plan: which definitions, solutions and workloads are run on a device.

`moebench run mine --definition small` becomes a plan of one part, with a task for each workload of
`small`; `moebench run mine` takes the first definition that `mine` serves and the device can run.
What cannot be run is skipped with a line in the plan, or refused where nothing else is asked for.
"""

from dataclasses import dataclass
from pathlib import Path

from flashinfer_bench import BenchmarkConfig, Definition

from moebench.core import paths
from moebench.core.arguments import writable
from moebench.core.errors import CannotRun, UserError
from moebench.judging import dataset, fib
from moebench.judging.building import Solutions
from moebench.judging.device import Device, needs_renewal, too_large
from moebench.judging.plan import EVERY, Part, Plan, RunRequest, Task
from moebench.judging.selection import check_device, eligible, is_for
from moebench.judging.tolerances import TOLERANCES
from moebench.operators import catalogue
from moebench.operators.routing import kinds as routing_kinds
from moebench.operators.workloads import LabelledWorkload
from moebench.packing import manifest, solution_files


def plan_run(request: RunRequest, device: Device) -> Plan:
    """Return a request's plan. Raises UserError for what is asked wrongly, CannotRun where nothing
    of it can be run here.
    """
    refuse_conflicts(request, device.on_gpu)
    third_party, notes = solution_files.solutions_at(list(request.files))
    tolerance = TOLERANCES[request.tolerance]
    config = tolerance.config(
        timeout_seconds=request.timeout_seconds,
        warmup_runs=request.warmup_runs,
        iterations=request.iterations,
        num_trials=request.num_trials or (3 if device.on_gpu else 1),
    )
    root = (request.dataset or paths.ROOT).resolve()
    default_clock = fib.CLOCK if device.on_gpu else "events"
    clock = request.clock or default_clock

    planner = Planner(request, device, third_party, config, root, clock)
    parts, part_notes = planner.parts()
    notes += part_notes
    if not parts:
        raise CannotRun(f"nothing can be run here: {notes[-1]}")

    for name, packed in third_party.items():
        if packed.definition not in parts:
            notes.append(
                f"{name}: SKIPPED: for {packed.definition}, which is not run here"
            )

    return Plan(
        device=device,
        parts=parts,
        notes=tuple(notes),
        tolerance=tolerance,
        config=config,
        clock=clock,
        command=request.command_line,
        verbose=request.verbose,
        dataset=root.name if root != paths.ROOT else None,
    )


def refuse_conflicts(request: RunRequest, on_gpu: bool) -> None:
    """Raise UserError for arguments that exclude each other, CannotRun for those that this machine
    excludes.
    """
    if request.clock == "gpu" and not on_gpu:
        raise CannotRun(
            "--clock gpu: takes times and needs a CUDA device; torch sees none"
        )
    if request.clock == "events" and fib.CLOCK == "gpu":
        raise CannotRun(
            "--clock events: FIB's main branch, which is here, times by the GPU's clock alone"
        )
    if request.routing and not request.tokens:
        raise UserError("--routing: is for --tokens")
    if request.resume and not request.keeps_traces(on_gpu):
        raise UserError(
            "--resume: no traces are kept here: name them with --output FILE"
        )
    if request.tokens:
        refuse_beside_tokens(request)


def refuse_beside_tokens(request: RunRequest) -> None:
    """Raise UserError for what does not go with --tokens."""
    others = {
        "--workloads": request.workloads,
        "--ray": request.ray is not None,
        "--dataset": request.dataset,
    }
    for other, is_asked_for in others.items():
        if is_asked_for:
            raise UserError(
                f"--tokens: makes workloads on this machine, so it does not go with {other}"
            )


@dataclass(frozen=True)
class Planner:
    """Plans the parts of one request.

    third_party: the solutions in the user's files, by name. root: of the data set that is run, this
    repository's or another. clock: one of provenance.CLOCKS.
    """

    request: RunRequest
    device: Device
    third_party: Solutions
    config: BenchmarkConfig
    root: Path
    clock: str

    def parts(self) -> tuple[dict[str, Part], list[str]]:
        """Return definition's name -> its part, and notes for the plan.

        Where several definitions are asked for, one that cannot be run is left out with a note.
        Raises as `part` where it is the only one, or where the request itself is wrong.
        """
        parts = {}
        notes = []
        names = self.wanted_definitions()
        for name in names:
            try:
                part = self.part(name)
            except UserError as error:
                may_be_left_out = isinstance(error, CannotRun) or self.request.dataset
                if len(names) == 1 or not may_be_left_out:
                    raise
                notes.append(f"{name}: {error}")
                continue

            parts[name] = part
            if dataset.differing_fields(part.definition):
                notes.append(self.difference(part.definition))
        return parts, notes

    def difference(self, definition: Definition) -> str:
        """Return a line on a data set's definition that differs from this repository's."""
        evaluated = dataset.files(self.root)[definition.name]
        our_file = paths.definition_file(definition.name).relative_to(paths.ROOT)
        fields = ", ".join(dataset.differing_fields(definition))
        return f"{evaluated} is evaluated; {our_file} here has another {fields}"

    def wanted_definitions(self) -> list[str]:
        """Return the names of the definitions to run: those that the request names, or with EVERY
        all that are for this machine and that its solutions serve, or by default the first of
        these.

        Raises UserError for an unknown solution.
        """
        keys = self.request.definitions
        if EVERY in keys:
            return self.definitions_here(dataset.names(self.root))
        if keys:
            return list(dict.fromkeys(map(catalogue.definition_named, keys)))

        names_solutions = self.request.solutions or self.third_party
        if names_solutions:
            order = self.served_definitions()
        else:
            order = dataset.names(self.root)
        return self.definitions_here(order)[:1]

    def definitions_here(self, order: list[str]) -> list[str]:
        """Return the definitions in `order` that are in the data set, are for this machine and are
        served by the request's solutions.

        If none is, return one that planning refuses with a line that says why.
        """
        served = self.served_definitions()
        in_data_set = dataset.names(self.root)
        served_here = set(served) & set(in_data_set)
        served_in_data_set = [name for name in order if name in served_here]
        for_device = [name for name in served_in_data_set if self.is_for_device(name)]
        if for_device:
            return for_device
        return served_in_data_set[:1] or served[:1]

    def served_definitions(self) -> list[str]:
        """Return the definitions that the request's solutions serve, by name.

        Raises UserError for an unknown solution.
        """
        served = [packed.definition for packed in self.third_party.values()]
        if self.request.wants_ours:
            for name in manifest.choose(list(self.request.solutions)):
                keys = manifest.read_manifest(name).definitions
                served += map(catalogue.definition_name, keys)
        return list(dict.fromkeys(served))

    def is_for_device(self, definition: str) -> bool:
        """Whether a definition's size is for this machine. Of one that this repository does not
        have that is not known, and taken for granted.
        """
        layer_key = catalogue.by_name().get(definition)
        return layer_key is None or is_for(layer_key, self.device.on_gpu)

    def part(self, name: str) -> Part:
        """Return what is run of the definition of this name.

        Raises UserError for a definition or workload that is not there, CannotRun where nothing of
        it can be run.
        """
        definition = dataset.definition(name, self.root)
        layer_key = catalogue.by_name().get(name)
        if layer_key:
            check_device(layer_key, self.device.on_gpu)
        fib.check_evaluator(definition, self.device.on_gpu)
        path = self.trace_path(name)

        candidates = self.workloads(name)
        ours, skipped = self.our_solutions(name)
        third_party = {}
        for each, packed in self.third_party.items():
            if packed.definition == name:
                third_party[each] = packed
        if not ours and not third_party:
            raise CannotRun(f"no solution can be run here: {'; '.join(skipped)}")

        workloads, left_out = self.fitting(definition, candidates)
        tasks = self.tasks(name, list(ours), list(third_party), workloads)
        renew_worker = needs_renewal(
            definition, workloads, self.config.num_trials, self.device
        )
        return Part(
            definition=definition,
            solutions=ours | third_party,
            skipped=(*skipped, *left_out),
            tasks=tuple(tasks),
            path=path,
            third_party=frozenset(third_party),
            keeps_third_party=self.request.output is not None,
            root=self.root,
            renew_worker=renew_worker and len(tasks) > 1,
        )

    def trace_path(self, name: str) -> Path | None:
        """Return the file that a definition's traces are kept in, or None where none are kept."""
        if not self.request.keeps_traces(self.device.on_gpu):
            return None
        return self.request.output or writable(paths.trace_file(name, clock=self.clock))

    def workloads(self, name: str) -> list[LabelledWorkload]:
        """Return the workloads of a definition that are asked for: recorded ones, or with --tokens
        new ones. Raises UserError for one that is not there, CannotRun where none can be made.
        """
        if not self.request.tokens:
            return dataset.labelled(name, self.root, self.request.workloads)

        kind = self.request.routing or routing_kinds.KINDS[0]
        layer_key = catalogue.by_name().get(name)
        workloads = []
        for tokens in dict.fromkeys(self.request.tokens):
            workloads.append(routing_kinds.workload(kind, tokens, layer_key))
        return workloads

    def our_solutions(self, definition_name: str) -> tuple[Solutions, list[str]]:
        """Return this repository's solutions that can be run, by name, and a line for each that is
        asked for and cannot.
        """
        names = list(self.request.solutions)
        layer_key = catalogue.by_name().get(definition_name)
        if self.request.wants_ours and layer_key:
            return eligible(names, layer_key, self.device)
        reason = f"SKIPPED: does not serve {definition_name}"
        return {}, [f"{name}: {reason}" for name in names]

    def fitting(
        self, definition: Definition, candidates: list[LabelledWorkload]
    ) -> tuple[list[LabelledWorkload], list[str]]:
        """Return the workloads that can be run, and a line for each that cannot.

        Raises CannotRun where none can.
        """
        workloads = []
        skipped = []
        for labelled in candidates:
            reason = dataset.why_not_loadable(definition, labelled.workload, self.root)
            reason = reason or too_large(definition, labelled.workload, self.device)
            if reason:
                skipped.append(f"{labelled.label}: SKIPPED: {reason}")
            else:
                workloads.append(labelled)
        if not workloads:
            raise CannotRun(f"no workload can be run here: {skipped[-1]}")
        return workloads, skipped

    def tasks(
        self,
        definition_name: str,
        ours: list[str],
        third_party: list[str],
        workloads: list[LabelledWorkload],
    ) -> list[Task]:
        """Return for each run a task of every workload with all of our solutions, then one of it
        with each third-party solution.

        Every run begins with another of our solutions, so that none always follows the reference.
        """
        tasks = []
        for run in range(1, self.request.runs + 1):
            groups = [(solution,) for solution in third_party]
            if ours:
                groups.insert(0, tuple(ours))
                ours = ours[1:] + ours[:1]

            for group in groups:
                for label, workload in workloads:
                    shown = label if self.request.runs == 1 else f"{label}, run {run}"
                    tasks.append(Task(definition_name, shown, workload, group, run))
        return tasks
