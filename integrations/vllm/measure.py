"""Serve a checkpoint by one backend after another, and measure each by vLLM's own client, `vllm
bench serve`.

    python measure.py FOLDER --backends triton solution triton

A backend that is named twice is started twice. Each point becomes a line of JSON.
"""

import argparse
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


def client_options(point: str, lengths: tuple[int, int]) -> str:
    """Return what of the client's options is recorded, for CONCURRENCY:PROMPTS."""
    concurrency, prompts = point.split(":")
    input_length, output_length = lengths
    options = [
        f"--num-prompts {prompts}",
        f"--max-concurrency {concurrency}",
        f"--num-warmups {concurrency}",
        f"--seed {concurrency}",
        f"--random-input-len {input_length}",
        f"--random-output-len {output_length}",
        "--ignore-eos",
        "--temperature 0",
    ]
    return " ".join(options)


def measure(url: str, model: Path, point: str, lengths: tuple[int, int]) -> dict:
    """Return what the client, in this process, reports of CONCURRENCY:PROMPTS.

    Raises RuntimeError where a request failed.
    """
    concurrency, prompts = (int(number) for number in point.split(":"))
    options = client_options(point, lengths)
    command = ["--base-url", url, "--model", "moe", "--dataset-name", "random", "--disable-tqdm"]
    command += [*options.split(), "--tokenizer", str(model)]

    parser = FlexibleArgumentParser()
    client.add_cli_args(parser)
    with contextlib.redirect_stdout(sys.stderr):
        report = client.main(parser.parse_args(command))
    if report["completed"] != prompts:
        raise RuntimeError(f"completed: got {report['completed']} requests, want {prompts}")

    kept = {key: report[key] for key in KEPT}
    return {"concurrency": concurrency, "client": options} | kept


def parsed() -> argparse.Namespace:
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
    return parser.parse_args()


def main() -> None:
    args = parsed()
    for start, backend in enumerate(args.backends):
        log = args.logs / f"{args.model.name}_{start}_{backend}.log"
        with served(args.model, backend, log, args.serve) as (url, about):
            for repeat in range(args.repeats):
                for point in args.points:
                    report = measure(url, args.model, point, args.lengths)
                    place = {"start": start, "repeat": repeat}
                    record(args.results, about, place, report)
                    shown = [f"{key} {value}" for key, value in report.items()]
                    print(backend, repeat, *shown, flush=True)


if __name__ == "__main__":
    main()
