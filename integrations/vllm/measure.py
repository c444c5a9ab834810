"""Serve a checkpoint by one backend after another, and measure each by vLLM's own client, `vllm
bench serve`.

    python measure.py FOLDER --backends triton solution triton

server.py has the backends. One that is named twice is started twice. Each point, CONCURRENCY
requests at a time and PROMPTS in all, becomes a line of JSON in --results, which table.py prints.
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


def client_options(concurrency: int, prompts: int, lengths: tuple[int, int]) -> str:
    """Return those of the client's options that are recorded, as text. lengths: input, output."""
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
    """Run vLLM's client in this process, and return the KEPT figures of its report.

    point: CONCURRENCY:PROMPTS. Raises RuntimeError where a request failed.
    """
    concurrency, prompts = map(int, point.split(":"))
    options = client_options(concurrency, prompts, lengths)
    not_recorded = f"--base-url {url} --model moe --dataset-name random --disable-tqdm"
    command = [*not_recorded.split(), "--tokenizer", str(model), *options.split()]

    parser = FlexibleArgumentParser()
    client.add_cli_args(parser)
    args = parser.parse_args(command)
    with contextlib.redirect_stdout(sys.stderr):
        report = client.main(args)
    if report["completed"] != prompts:
        raise RuntimeError(
            f"completed: got {report['completed']} requests, want {prompts}"
        )

    kept = {key: report[key] for key in KEPT}
    return {"concurrency": concurrency, "client": options} | kept


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that tensor_parallel.py has, too: what is served, how it is measured."""
    option = parser.add_argument
    option("model", type=Path, help="folder of a checkpoint")
    points_help = f"CONCURRENCY:PROMPTS; default: {' '.join(POINTS)}"
    option("--points", nargs="+", default=POINTS, help=points_help)
    lengths_help = "of prompt and answer, in tokens"
    option("--lengths", nargs=2, type=int, default=(1024, 128), help=lengths_help)
    option("--repeats", type=int, default=2, help="of all points, on one server")


def measure_all(args: argparse.Namespace) -> None:
    """Serve and measure by one backend after another."""
    for start, backend in enumerate(args.backends):
        log = args.logs / f"{args.model.name}_{start}_{backend}.log"
        with served(args.model, backend, log, args.serve) as (url, about):
            for repeat in range(args.repeats):
                measure_points(args, url, about, {"start": start, "repeat": repeat})


def measure_points(
    args: argparse.Namespace, url: str, about: dict, place: dict
) -> None:
    """Measure all points on one server. about, place: the fields that all records share."""
    for point in args.points:
        report = measure(url, args.model, point, args.lengths)
        record(args.results, about, place, report)
        print(about["backend"], place, report, flush=True)


def main() -> None:
    parser = parser_of(__doc__, ["triton", "solution", "triton"])
    add_arguments(parser)
    measure_all(parser.parse_args())


if __name__ == "__main__":
    main()
