"""Programs of ranks that run at once: each reads one request and writes an answer of its own."""

import subprocess

import torch

SECONDS = 400


def run_ranks(command, request, ranks, folder, environment):
    """Return what a program answers on each of these ranks, and its `log`.

    command: of the program, which gets the request's file, the answer's file and the rank.
    """
    torch.save(request, folder / "request")
    programs = []
    for rank in ranks:
        arguments = [folder / "request", folder / f"answer{rank}", str(rank)]
        with (folder / f"log{rank}").open("w") as log:
            program = subprocess.Popen(
                [*command, *arguments], stdout=log, stderr=log, env=environment
            )
        programs.append(program)

    answers = []
    for rank, program in zip(ranks, programs, strict=True):
        status = program.wait(SECONDS)
        log = (folder / f"log{rank}").read_text()
        assert status == 0, log[-3000:]
        answers.append(torch.load(folder / f"answer{rank}") | {"log": log})
    return answers
