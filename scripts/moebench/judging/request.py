"""What `moebench run` is asked for, once its command line is read."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

EVERY = "all"  # among the definitions asked for


@dataclass(frozen=True)
class RunRequest:
    """The arguments of `moebench run`, whose defaults these are; None, or nothing, where one was
    not given and another default depends on the machine.

    files: of third-party solutions. solutions: names of those here. tokens: to make workloads of.
    runs: how often everything is run.
    save: whether traces are kept. ray: a cluster's address, empty for this machine's.
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
        """Whether traces are kept: by default with a GPU or --output.

        Those of workloads that are made up, and of a data set, with --output alone.
        """
        has_output = self.output is not None
        wanted = (has_output or on_gpu) if self.save is None else self.save
        return wanted and (has_output or not (self.tokens or self.dataset))
