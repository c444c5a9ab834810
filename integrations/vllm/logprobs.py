"""Logprobs of prompts by each backend against those of the same experts in bf16: is ours further
off than vLLM's own?

    python logprobs.py FOLDER_FP8 FOLDER_BF16 --backends triton solution

Two layers are enough: over many, random weights make any two kernels diverge. Ends with status 1
where the solution's median is more than a tenth above that of another backend.
"""

import json
import random
import statistics
import sys
from pathlib import Path
from urllib.request import Request, urlopen

from server import SOLUTION, parser_of, record, served

SETS = {
    "many tokens": (8, 512, 1),
    "few tokens": (1, 9, 128),
}  # of a step: prompts, their tokens, requests of so many
NO_WORSE = 1.1


def ask(url: str, prompts: list[list[int]]) -> list[tuple[float, str]]:
    """The logprob of each token of the prompts but the first ones, and the likeliest token
    there.
    """
    body = {
        "model": "moe",
        "prompt": prompts,
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": 1,
    }
    request = Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urlopen(request, timeout=600) as answer:
        choices = json.load(answer)["choices"]
    found = []
    for prompt, choice in zip(prompts, choices, strict=True):
        for token, row in zip(prompt[1:], choice["prompt_logprobs"][1:], strict=True):
            found.append(
                (row[str(token)]["logprob"], max(row, key=lambda key: row[key]["logprob"]))
            )
    return found


def ask_all(url: str, words: int) -> dict[str, list]:
    """Set -> what `ask` gives for its prompts of random tokens, the same at each call."""
    source, found = random.Random(0), {name: [] for name in SETS}
    for name, (count, length, requests) in SETS.items():
        for _ in range(requests):
            found[name] += ask(
                url, [[source.randrange(1, words) for _ in range(length)] for _ in range(count)]
            )
    return found


def compare(got: list, want: list) -> dict:
    """How far logprobs are from the right ones, and how often the likeliest token is the same."""
    apart = sorted(abs(mine - right) for (mine, _), (right, _) in zip(got, want, strict=True))
    same = statistics.fmean(mine == right for (_, mine), (_, right) in zip(got, want, strict=True))
    p99 = apart[int(0.99 * (len(apart) - 1))]
    return {
        "positions": len(apart),
        "median": statistics.median(apart),
        "p99": p99,
        "same_best": same,
    }


def main() -> int:
    parser = parser_of(__doc__, ["triton", SOLUTION])
    parser.add_argument("fp8", type=Path, help="folder of a checkpoint")
    parser.add_argument("bf16", type=Path, help="folder of the same one by --experts bf16")
    args = parser.parse_args()
    words = json.loads((args.fp8 / "config.json").read_text())["vocab_size"]
    with served(args.bf16, "bf16", args.logs / "logprobs_bf16.log", args.serve) as (url, _):
        right = ask_all(url, words)
    medians = {}
    for backend in args.backends:
        with served(args.fp8, backend, args.logs / f"logprobs_{backend}.log", args.serve) as (
            url,
            about,
        ):
            got = ask_all(url, words)
        for name in SETS:
            found = compare(got[name], right[name])
            medians[backend, name] = found["median"]
            record(args.results, about, {"logprobs": name}, found)
            print(backend, name, found, flush=True)
    others = [(name, median) for (backend, name), median in medians.items() if backend != SOLUTION]
    return int(any(medians.get((SOLUTION, name), 0) > NO_WORSE * median for name, median in others))


if __name__ == "__main__":
    sys.exit(main())
