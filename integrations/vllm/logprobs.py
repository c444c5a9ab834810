"""Compare the logprobs of prompts by each backend with those of the same model with bf16 experts:
is the packed solution's error larger than that of vLLM's kernels?

    python logprobs.py FOLDER_FP8 FOLDER_BF16 --backends triton solution

Both folders are checkpoints that checkpoint.py has written. Two layers are enough: over many,
random weights make any two kernels diverge. Exit status: 1 where the solution's median error is
more than a tenth above that of another backend, else 0.
"""

import json
import random
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

from server import SOLUTION, parser_of, read, record, served

NO_WORSE = 1.1  # largest ratio of the solution's median error to another backend's


@dataclass(frozen=True)
class PromptSet:
    """Requests with random prompts."""

    prompts: int  # in a request
    length: int  # tokens of a prompt
    requests: int


# by the number of tokens in a step of the server
SETS = {
    "many tokens": PromptSet(prompts=8, length=512, requests=1),
    "few tokens": PromptSet(prompts=1, length=9, requests=128),
}


@dataclass(frozen=True)
class Position:
    """The logprob of a prompt's token, and the token that the model finds likeliest there."""

    logprob: float
    likeliest: str


def ask(url: str, prompts: list[list[int]]) -> list[Position]:
    """Return a Position for each token of the prompts, without each one's first."""
    body = {
        "model": "moe",
        "prompt": prompts,
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": 1,
    }
    content = json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = Request(f"{url}/v1/completions", content, headers)
    with urlopen(request, timeout=600) as answer:
        choices = json.load(answer)["choices"]

    positions = []
    for prompt, choice in zip(prompts, choices, strict=True):
        rows = choice["prompt_logprobs"][1:]
        for token, row in zip(prompt[1:], rows, strict=True):
            logprobs = {name: entry["logprob"] for name, entry in row.items()}
            likeliest = max(logprobs, key=logprobs.get)
            positions.append(Position(logprobs[str(token)], likeliest))
    return positions


def ask_all(url: str, words: int) -> dict[str, list[Position]]:
    """Return name of a set -> its Positions. words: size of the vocabulary.

    The prompts are random, but the same at each call.
    """
    source = random.Random(0)
    positions = {}
    for name, prompt_set in SETS.items():
        positions[name] = []
        for _ in range(prompt_set.requests):
            prompts = []
            for _ in range(prompt_set.prompts):
                prompts.append(
                    [source.randrange(1, words) for _ in range(prompt_set.length)]
                )
            positions[name] += ask(url, prompts)
    return positions


def compare(positions: list[Position], expected: list[Position]) -> dict:
    """Return how far logprobs are from the expected, and how often the likeliest tokens agree."""
    distances = []
    agreements = []
    for position, right in zip(positions, expected, strict=True):
        distances.append(abs(position.logprob - right.logprob))
        agreements.append(position.likeliest == right.likeliest)
    distances.sort()
    return {
        "positions": len(distances),
        "median": statistics.median(distances),
        "p99": distances[int(0.99 * (len(distances) - 1))],
        "same_best": statistics.fmean(agreements),
    }


def is_worse(medians: dict[tuple[str, str], float]) -> bool:
    """Return whether the solution's median error exceeds NO_WORSE times another backend's.

    medians: (backend, name of a set) -> median.
    """
    for (backend, name), median in medians.items():
        ours = medians.get((SOLUTION, name), 0)
        if backend != SOLUTION and ours > NO_WORSE * median:
            return True
    return False


def main() -> int:
    parser = parser_of(__doc__, ["triton", SOLUTION])
    parser.add_argument("fp8", type=Path, help="folder of a checkpoint")
    parser.add_argument(
        "bf16", type=Path, help="folder of the same one by --experts bf16"
    )
    args = parser.parse_args()
    words = read(args.fp8)["vocab_size"]

    log = args.logs / "logprobs_bf16.log"
    with served(args.bf16, "bf16", log, args.serve) as (url, _):
        expected = ask_all(url, words)

    medians = {}
    for backend in args.backends:
        log = args.logs / f"logprobs_{backend}.log"
        with served(args.fp8, backend, log, args.serve) as (url, about):
            positions = ask_all(url, words)

        for name in SETS:
            comparison = compare(positions[name], expected[name])
            record(args.results, about, {"logprobs": name}, comparison)
            print(backend, name, comparison, flush=True)
            medians[backend, name] = comparison["median"]
    return int(is_worse(medians))


if __name__ == "__main__":
    sys.exit(main())
