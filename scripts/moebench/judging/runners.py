"""Which runner evaluates a task of evaluate.py: one of isolation/, or FIB's own.

A runner's `run_workload` takes a definition, a workload and solutions, and returns what it finds
about each solution, by the packed name: a Finding from isolation/, an Evaluation from FIB.
"""

from contextlib import AbstractContextManager, ExitStack, closing

from moebench.core.errors import UserError, first_line
from moebench.judging import fib
from moebench.judging.isolation.runner import IsolatedRunner
from moebench.judging.plan import Part, Task


class Runners:
    """Holds one open runner, and replaces it when the next task cannot use it.

    Tasks of one definition share a runner: those with this repository's solutions one, and those
    with each third-party solution another. With `Part.renew_worker` every task gets a new one.
    device: as torch calls it. clock: one of provenance.CLOCKS, by which times are taken on a GPU.
    """

    def __init__(self, device: str, clock: str):
        self.device = device
        self.clock = clock
        self.current: IsolatedRunner | fib.Runner | None = None
        # whose tasks may share `current`: a definition, and a third-party solution's name or ()
        self.shared_by: tuple | None = None
        self.open_runner = ExitStack()  # closes `current`

    def close(self) -> None:
        self.open_runner.close()

    def runner_for(self, part: Part, task: Task) -> IsolatedRunner | fib.Runner:
        """Return the runner for a task, started unless the task before left one that it may share.

        Raises UserError where none can be started: the caller blames any other error on the
        reference.
        """
        third_party = task.names if part.is_third_party(task) else ()
        sharing = (task.definition_name, third_party)
        if sharing == self.shared_by and not part.renew_worker:
            return self.current

        self.shared_by = None  # nobody's, also where the next one does not start
        self.open_runner.close()
        context = self.new_runner(part, bool(third_party))
        try:
            self.current = self.open_runner.enter_context(context)
        except RuntimeError as error:  # FIB's, without a device or a worker
            raise UserError(f"no worker can be started: {first_line(error)}") from error
        self.shared_by = sharing
        return self.current

    def new_runner(self, part: Part, is_third_party: bool) -> AbstractContextManager:
        """Return a runner that closes with its context.

        On a CPU it is that of isolation/. On a GPU it is FIB's, which trusts what it runs, for our
        solutions, and also for outputs that FIB alone can compare.
        """
        if self.device == "cpu":
            return closing(IsolatedRunner())
        if is_third_party and fib.is_elementwise(part.definition):
            return closing(IsolatedRunner(self.device, self.clock))
        return fib.patched_runner(self.clock)
