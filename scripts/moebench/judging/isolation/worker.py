"""What a solution's process does: build solutions and call them on inputs that the run sends.

It never sees what is expected. Its answers are JSON and the outputs' bytes, which the run compares.
"""

import faulthandler
import os
import socket
import sys
import traceback

import torch
from flashinfer_bench import Definition, Solution
from flashinfer_bench.compile import BuilderRegistry, BuildError

from moebench.judging import fib
from moebench.judging.calling import call, with_outputs
from moebench.judging.isolation.channel import Channel, described


def serve(connection: socket.socket, settings: dict) -> None:
    """Answer the run's requests until it closes the connection."""
    torch.set_num_threads(settings["threads"])
    channel = Channel(connection)
    worker = Worker(channel)
    while True:
        try:
            request = channel.receive()
        except EOFError:
            return

        # a solution may have removed it, or gone elsewhere
        os.makedirs(settings["folder"], exist_ok=True)
        os.chdir(settings["folder"])
        faulthandler.dump_traceback_later(request.pop("seconds"), file=2)
        answer, tensors = worker.answer(request.pop("do"), request)
        faulthandler.cancel_dump_traceback_later()
        channel.send(answer, tensors)


class Worker:
    """Holds the inputs of all trials, and the solutions that it has built."""

    def __init__(self, channel: Channel):
        self.channel = channel
        self.device = "cpu"
        self.definition: Definition | None = None
        self.trials: list[list] = []
        self.runnables = {}

    def answer(self, name: str, request: dict) -> tuple[dict, list[torch.Tensor]]:
        """Return the answer to a request, and the tensors that belong to it."""
        requests = {
            "inputs": self.take_inputs,
            "build": self.build,
            "call": self.call,
            "time": self.time,
        }
        try:
            return requests[name](**request)
        except BuildError:
            traceback.print_exc()
            return {"status": "COMPILE_ERROR"}, []
        except BaseException as error:  # whatever a solution raises is its result
            traceback.print_exc()
            if isinstance(error, SystemExit):
                print(f"{fib.ENDED}exit status {error.code or 0}", file=sys.stderr)
            return {"status": "RUNTIME_ERROR"}, []

    def take_inputs(self, definition: str, device: str, trials: list[list[dict]]):
        """Replace the inputs of all trials, whose tensors follow the request."""
        self.trials = []
        if device != "cpu":
            torch.cuda.set_device(device)
            torch.cuda.empty_cache()
        self.device = device
        self.definition = Definition.model_validate_json(definition)
        for trial in trials:
            self.trials.append([self.take_input(each) for each in trial])
        return {"status": "PASSED"}, []

    def take_input(self, described_input: dict) -> object:
        if "value" in described_input:
            return described_input["value"]

        dtype = getattr(torch, described_input["dtype"])
        return self.channel.receive_tensor(dtype, described_input["shape"]).to(self.device)

    def build(self, solution: str):
        packed = Solution.model_validate_json(solution)
        registry = BuilderRegistry.get_instance()
        self.runnables[packed.name] = registry.build(self.definition, packed)
        return {"status": "PASSED"}, []

    def call(self, solution: str, trial: int, wanted: list[dict]):
        """Answer with the outputs of a call, and their bytes if they are as they have to be."""
        inputs = [
            each.clone() if isinstance(each, torch.Tensor) else each for each in self.trials[trial]
        ]
        outputs = call(self.definition, self.runnables[solution], inputs, self.device)
        on_cpu = [output.cpu() for output in outputs]
        answer = {"status": "PASSED", "outputs": [described(output) for output in on_cpu]}
        return answer, on_cpu if answer["outputs"] == wanted else []

    def time(self, solution: str, warmup_runs: int, iterations: int, clock: str):
        """Answer with the time of a call in ms, for each trial's inputs."""
        runnable = self.runnables[solution]
        milliseconds = []
        for inputs in self.trials:
            arguments = with_outputs(self.definition, runnable, inputs, self.device)
            time_runnable = fib.timer(clock)
            milliseconds.append(
                time_runnable(runnable, arguments, warmup_runs, iterations, self.device)
            )
        return {"status": "PASSED", "milliseconds": milliseconds}, []
