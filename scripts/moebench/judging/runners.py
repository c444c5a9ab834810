"""Which runner evaluates a task: one of isolation/, or FIB's own.

A runner's `run_workload` takes a definition, a workload and solutions, and returns what is found
about each solution by its packed name: a Finding from isolation/, an Evaluation from FIB.
"""

from contextlib import AbstractContextManager, ExitStack, closing

from moebench.core.errors import UserError
from moebench.judging import fib
from moebench.judging.calling import first_line
from moebench.judging.isolation.runner import Runner
from moebench.judging.plan import Part, Task


class Runners:
    """The runner of the task before, which the next one shares if it may. One is open at a time.

    device: as torch calls it. clock: that times are taken by on a GPU.
    """

    def __init__(self, device: str, clock: str):
        self.device = device
        self.clock = clock
        self.current: Runner | fib.Runner | None = None
        self.shared_by: tuple | None = None  # the definition, and a third-party solution alone
        self.open_runner = ExitStack()

    def close(self) -> None:
        self.open_runner.close()

    def runner_for(self, part: Part, task: Task) -> Runner | fib.Runner:
        """Return the runner for a task. Raises UserError where none can be started, which is no
        fault of the reference.
        """
        third_party = task.names if part.is_third_party(task) else ()
        sharing = (task.definition, third_party)
        if sharing == self.shared_by and not part.renew_worker:
            return self.current

        self.shared_by = None  # where the next one does not start, this one is closed all the same
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

        On a GPU it is FIB's for our solutions, which are trusted, and for outputs that FIB alone
        can compare.
        """
        if self.device == "cpu":
            return closing(Runner())
        if is_third_party and fib.is_elementwise(part.definition):
            return closing(Runner(self.device, self.clock))
        return fib.running(self.clock)
