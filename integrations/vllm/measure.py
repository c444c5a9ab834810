"""Serve a checkpoint by one backend after another, and measure each by vLLM's own client, `vllm
bench serve`.

    python measure.py FOLDER --backends triton solution triton

A backend that is named twice is started twice. Each point becomes a line of JSON.
"""

import contextlib
import sys
from pathlib import Path

from server import parser_of, record, served
from vllm.benchmarks import serve as client
from vllm.utils.argparse_utils import FlexibleArgumentParser

POINTS = ["1:16", "8:64", "32:192", "128:512"]
KEPT = (
    "median_ttft_ms",
    "median_tpot_ms",
    "mean_tpot_ms",
    "p99_tpot_ms",
    "output_throughput",
    "duration",
)


def measure(url: str, model: Path, point: str, lengths: tuple[int, int]) -> dict:
    """What the client, in this process, reports of CONCURRENCY:PROMPTS. Raises RuntimeError where a
    request failed.
    """
    concurrency, prompts = point.split(":")
    options = f"--num-prompts {prompts} --max-concurrency {concurrency} --num-warmups {concurrency} --seed {concurrency}"
    options += f" --random-input-len {lengths[0]} --random-output-len {lengths[1]} --ignore-eos --temperature 0"
    parser = FlexibleArgumentParser()
    client.add_cli_args(parser)
    ours = f"--base-url {url} --model moe --dataset-name random --disable-tqdm {options} --tokenizer".split()
    with contextlib.redirect_stdout(sys.stderr):
        found = client.main(parser.parse_args([*ours, str(model)]))
    if found["completed"] != int(prompts):
        raise RuntimeError(f"completed: got {found['completed']} requests, want {prompts}")
    return {"concurrency": int(concurrency), "client": options} | {key: found[key] for key in KEPT}


def main() -> None:
    parser = parser_of(__doc__, ["triton", "solution", "triton"])
    parser.add_argument("model", type=Path, help="folder of a checkpoint")
    parser.add_argument(
        "--points",
        nargs="+",
        default=POINTS,
        help=f"CONCURRENCY:PROMPTS; default: {' '.join(POINTS)}",
    )
    parser.add_argument(
        "--lengths", nargs=2, type=int, default=(1024, 128), help="of prompt and answer, in tokens"
    )
    parser.add_argument("--repeats", type=int, default=2, help="of all points, on one server")
    args = parser.parse_args()
    for start, backend in enumerate(args.backends):
        log = args.logs / f"{args.model.name}_{start}_{backend}.log"
        with served(args.model, backend, log, args.serve) as (url, about):
            for repeat in range(args.repeats):
                for point in args.points:
                    found = measure(url, args.model, point, args.lengths)
                    record(args.results, about, {"start": start, "repeat": repeat}, found)
                    print(
                        backend,
                        repeat,
                        *(f"{key} {value}" for key, value in found.items()),
                        flush=True,
                    )


if __name__ == "__main__":
    main()
