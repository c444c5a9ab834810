"""Tables of servers and engines with a solution in their MoE layers, beside the engine's kernels.

docs/pages.py puts them into the pages of integrations/, and docs/computed.py takes numbers for
sentences from the same records, which programs there wrote:

records/engines/vllm.jsonl        vllm/measure.py, tensor_parallel.py: a run of vLLM's client at one
                                  concurrency; vllm/logprobs.py: a comparison of logprobs
records/engines/sglang.jsonl      sglang.benchmark.one_batch and sglang/moe_share.py: a run
records/engines/sglang_servers.jsonl
                                  sglang/two_servers.py: a run of SGLang's client at one
                                  concurrency
records/engines/flashinfer.jsonl  tests/support/engines/applied_call.py: a call by Trace Apply
"""

import json
from dataclasses import dataclass

import pandas as pd

from moebench.core import paths
from moebench.reports.table import Cell, Table, decimal

ENGINES = paths.RECORDS / "engines"
EXPERTS_BY = {
    "triton": "Triton",
    "deep_gemm": "DeepGEMM",
    "solution": "ours",
    "solution_sum": "ours, with its sum",
}
PROMPTS = {"many tokens": "long", "few tokens": "short"}


@dataclass(frozen=True)
class Quantity:
    """A quantity in a record of an engine's client. digits: after the decimal point.

    compared: whether its change against the first column's is shown.
    """

    key: str
    name: str
    digits: int
    compared: bool = False


QUANTITIES = (
    Quantity("median_tpot_ms", "TPOT ms", 3, compared=True),
    Quantity("median_ttft_ms", "TTFT ms", 1),
    Quantity("output_throughput", "output tokens/s", 0),
)


def json_lines(name: str) -> list[dict]:
    """Return the objects in a file of records/engines/."""
    text = (ENGINES / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def vllm_runs(layers: int, since: str = "", until: str = "~") -> pd.DataFrame:
    """Return the runs of vLLM's client on servers of so many layers, a row for each run.

    since, until: of the runs' dates, "2026-11-27 07:13"; until is not included.
    """
    runs = server_runs("vllm.jsonl", layers)
    return runs[(runs.date >= since) & (runs.date < until)]


def sglang_server_runs(layers: int) -> pd.DataFrame:
    """Return the runs of SGLang's client on servers of so many layers, a row for each run."""
    return server_runs("sglang_servers.jsonl", layers)


def server_runs(name: str, layers: int) -> pd.DataFrame:
    """Return the runs of a client, in a file of records/engines/, on servers of so many layers."""
    runs = pd.json_normalize(json_lines(name))
    return runs[runs["model.num_hidden_layers"] == layers]


def with_change(value: float, before: float, digits: int) -> str:
    """Return "3.545 (-9.7%)": a value and its change against another one. Either may be NaN."""
    if pd.isna(value) or pd.isna(before):
        return decimal(value, digits)
    return f"{decimal(value, digits)} ({value / before - 1:+.1%})"


def servers_table(runs: pd.DataFrame, backends: list[str]) -> Table:
    """Return the medians over runs of servers, a row for each concurrency.

    backends: keys of EXPERTS_BY; the others' times are compared with the first one's.
    """
    keys = [quantity.key for quantity in QUANTITIES]
    medians = runs.groupby(["concurrency", "backend"])[keys].median()

    head = ["concurrency"]
    for quantity in QUANTITIES:
        head += [f"{quantity.name}, {EXPERTS_BY[backend]}" for backend in backends]

    rows = []
    for concurrency in sorted(runs.concurrency.unique()):
        row = [int(concurrency)]
        for quantity in QUANTITIES:
            values = medians.loc[concurrency, quantity.key]
            row += cells_of_backends(values.reindex(backends), quantity)
        rows.append(row)
    return Table(head, [rows], word_columns=0)


def cells_of_backends(values: pd.Series, quantity: Quantity) -> list[str]:
    """Return the texts of one quantity of each backend."""
    first, *others = values
    texts = [decimal(first, quantity.digits)]
    for value in others:
        if quantity.compared:
            texts.append(with_change(value, first, quantity.digits))
        else:
            texts.append(decimal(value, quantity.digits))
    return texts


def logprobs_table() -> Table:
    """Return how far logprobs are from those with experts in bf16, a row for each kernel."""
    records = [record for record in json_lines("vllm.jsonl") if "logprobs" in record]
    rows = []
    for prompts, length in PROMPTS.items():
        for record in records:
            if record["logprobs"] != prompts:
                continue
            experts_by = EXPERTS_BY[record["backend"]]
            name = f"{experts_by}, {record['positions']} tokens, {length} prompts"
            same_best = f"{record['same_best']:.1%}"
            row = [
                name,
                decimal(record["median"], 4),
                decimal(record["p99"], 3),
                same_best,
            ]
            rows.append(row)
    return Table(["", "median", "99th percentile", "same best token"], [rows])


def sglang_runs() -> pd.DataFrame:
    """Return the medians of SGLang's runs, a row for what computes the experts, Triton first.

    A second start of "triton" is called "triton_2". Times in ms; `experts` and `share` have a
    column for prefill and one for decode.
    """
    runs = pd.json_normalize(json_lines("sglang.jsonl"))
    runs["experts_by"] = runs.run_name.str.replace(r"_\d$", "", regex=True)
    for step in ("prefill", "decode"):
        experts_ms = runs[f"experts_ms.{step}"]
        step_ms = runs[f"step_ms.{step}"]
        runs[f"share.{step}"] = experts_ms / step_ms
    return runs.drop(columns="run_name").groupby("experts_by").median()


def sglang_table(layers: int) -> Table:
    """Return a row for what computes the experts. layers: of the model."""
    runs = sglang_runs()
    theirs = runs.loc["triton"]
    rows = []
    for name in ["triton", *runs.index.drop("triton")]:
        run = runs.loc[name]
        row = [Cell(EXPERTS_BY.get(name, name))]
        for key, digits in (("prefill_latency", 1), ("median_decode_latency", 3)):
            ms = 1e3 * run[key]
            if name == "triton":
                row.append(decimal(ms, digits))
            else:
                row.append(with_change(ms, 1e3 * theirs[key], digits))
        row.append(decimal(run.overall_throughput, 0))
        row.append(decimal(run["experts_ms.prefill"] / layers, 2))
        row.append(decimal(run["experts_ms.decode"] / layers, 4))
        row += [f"{run[f'share.{step}']:.1%}" for step in ("prefill", "decode")]
        rows.append(row)

    head = [
        "experts by",
        "prefill ms",
        "decode ms a token",
        "tokens/s, prompt and output",
    ]
    head += [
        "experts' ms a layer, prefill",
        "decode",
        "share of kernel time, prefill",
        "decode",
    ]
    return Table(head, [rows])
