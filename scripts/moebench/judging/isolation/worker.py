"""What a solution's process does: build solutions, and call them on inputs that the run sends.

It answers the requests of ask.py. What the reference computes never comes here: outputs are sent to
the run, which compares them.
"""

import copy
import faulthandler
import json
import os
import socket
import sys
import traceback

import torch
from flashinfer_bench import Definition, Solution
from flashinfer_bench.compile import BuilderRegistry, BuildError

from moebench.judging import fib
from moebench.judging.calling import call, with_outputs
from moebench.judging.isolation.channel import Channel, TensorKind, kind_of


def serve(connection: socket.socket, settings: dict) -> None:
    """Answer the run's requests until it closes the connection.

    settings: as of core.nursery.become_solution.
    """
    torch.set_num_threads(settings["threads"])
    channel = Channel(connection)
    worker = Worker(channel)
    while True:
        try:
            request = json.loads(channel.receive())
        except ConnectionError:
            return

        # a solution may have removed this folder, or changed to another
        os.makedirs(settings["folder"], exist_ok=True)
        os.chdir(settings["folder"])
        faulthandler.dump_traceback_later(request.pop("seconds"), file=2)
        answer, tensors = worker.answer(request.pop("do"), request)
        faulthandler.cancel_dump_traceback_later()
        channel.send(answer, tensors)


class Worker:
    """Holds the inputs of all trials, and the solutions that it has built.

    Each request has a method here, which returns the fields of the answer (processes.Answer) beside
    its status, and the tensors that follow it.
    """

    def __init__(self, channel: Channel):
        self.channel = channel
        self.device = "cpu"
        self.definition: Definition | None = None
        self.trials: list[list] = []
        self.runnables = {}

    def answer(self, request: str, fields: dict) -> tuple[dict, list[torch.Tensor]]:
        """Return the answer to a request, and the tensors that follow it. request: a method."""
        try:
            answer, tensors = getattr(self, request)(**fields)
            return {"status": "PASSED"} | answer, tensors
        except BaseException as error:  # whatever a solution raises is its result
            traceback.print_exc()
            if isinstance(error, SystemExit):
                print(f"{fib.ENDED}exit status {error.code or 0}", file=sys.stderr)
            status = (
                "COMPILE_ERROR" if isinstance(error, BuildError) else "RUNTIME_ERROR"
            )
            return {"status": status}, []

    def take_inputs(
        self, definition: str, device: str, trials: list[list], kinds: list[dict]
    ):
        """Hold the inputs of all trials, in place of earlier ones.

        trials: None stands for each tensor. kinds: of the tensors, which follow the request.
        """
        self.trials = []
        if device != "cpu":
            torch.cuda.set_device(device)
            torch.cuda.empty_cache()
        self.device = device
        self.definition = Definition.model_validate_json(definition)

        tensors = self.channel.receive_tensors([TensorKind(**kind) for kind in kinds])
        for inputs in trials:
            for place, value in enumerate(inputs):
                if value is None:
                    inputs[place] = next(tensors).to(device)
        self.trials = trials
        return {}, []

    def build(self, solution: str):
        packed = Solution.model_validate_json(solution)
        registry = BuilderRegistry.get_instance()
        self.runnables[packed.name] = registry.build(self.definition, packed)
        return {}, []

    def call(self, solution: str, trial: int, wanted: list[dict]):
        """Answer with the outputs' kinds, and with the outputs if these are the wanted kinds."""
        inputs = copy.deepcopy(self.trials[trial])
        outputs = call(self.definition, self.runnables[solution], inputs, self.device)
        kinds = [kind_of(output).model_dump() for output in outputs]
        if kinds != wanted:
            outputs = []
        return {"outputs": kinds}, outputs

    def time(self, solution: str, warmup_runs: int, iterations: int, clock: str):
        """Answer with the time of a call in ms, on the inputs of each trial."""
        runnable = self.runnables[solution]
        time_runnable = fib.timer(clock)
        milliseconds = []
        for inputs in self.trials:
            arguments = with_outputs(self.definition, runnable, inputs, self.device)
            fib.rest()
            counts = (warmup_runs, iterations)
            ms = time_runnable(runnable, arguments, *counts, self.device)
            milliseconds.append(ms)
        return {"milliseconds": milliseconds}, []
