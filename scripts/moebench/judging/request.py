"""What `moebench run` is asked for, once its command line is read."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

EVERY = "all"  # among the definitions asked for


@dataclass(frozen=True)
class RunRequest:
    """The arguments of `moebench run`, with their defaults. None stands for what was not given and
    has a default that depends on the machine.

    files: of third-party solutions, in FIB's JSON. solutions: names of this repository's; with
    neither, all of these are run. definitions: keys or names, or EVERY. workloads: as the user
    names them. tokens: numbers of tokens, each of which a workload is made of. routing: the kind of
    those. clock: one of provenance.CLOCKS. runs: how often all of it is run. save: whether traces
    are kept. output: their file. ray: a cluster's HOST:PORT, "" for one on this machine.
    command_line: the text that repeats the run.
    """

    files: Sequence[Path] = ()
    solutions: Sequence[str] = ()
    definitions: Sequence[str] = ()
    dataset: Path | None = None
    workloads: Sequence[str] = ()
    tokens: Sequence[int] = ()
    routing: str | None = None
    tolerance: str = "relaxed"
    clock: str | None = None
    warmup_runs: int = 10
    iterations: int = 50
    num_trials: int | None = None
    runs: int = 1
    timeout_seconds: int = 300
    save: bool | None = None
    output: Path | None = None
    resume: bool = False
    ray: str | None = None
    verbose: bool = False
    command_line: str = "moebench run"

    @property
    def wants_ours(self) -> bool:
        """Whether solutions of this repository are asked for: all of them, where none is named."""
        return bool(self.solutions) or not self.files

    def keeps_traces(self, on_gpu: bool) -> bool:
        """Whether traces are kept: by default on a GPU or with --output.

        Those of --tokens and --dataset are kept with --output alone, as traces/ is of this
        repository's own workloads.
        """
        has_output = self.output is not None
        if (self.tokens or self.dataset) and not has_output:
            return False
        if self.save is not None:
            return self.save
        return has_output or on_gpu
