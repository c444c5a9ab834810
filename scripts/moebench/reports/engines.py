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
from moebench.reports.table import Table, decimal, decimals, frame_rows

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


def server_runs(
    server: str, layers: int, since: str = "", until: str = "~"
) -> pd.DataFrame:
    """Return the runs of an engine's client on servers of so many layers, a row for each run.

    server: of which engine, "vllm" or "sglang_servers", as a file of records/engines/ is called.
    since, until: of the runs' dates, "2026-11-27 07:13"; until is not included.
    """
    runs = pd.json_normalize(json_lines(f"{server}.jsonl"))
    of_model = runs[runs["model.num_hidden_layers"] == layers]
    return of_model[(of_model.date >= since) & (of_model.date < until)]


def texts(values: pd.Series, digits: int, before: pd.Series | None = None) -> pd.Series:
    """Return numbers as texts, with their changes against others: "3.545 (-9.7%)"; without where
    there is no other number.
    """
    numbers = decimals(values, digits)
    if before is None:
        return numbers
    changes = (values / before - 1).map(" ({:+.1%})".format, na_action="ignore")
    return numbers + changes.reindex(values.index).fillna("")


def servers_table(runs: pd.DataFrame, backends: list[str]) -> Table:
    """Return the medians over runs of servers, a row for each concurrency.

    backends: keys of EXPERTS_BY; the others' times are compared with the first one's.
    """
    keys = [quantity.key for quantity in QUANTITIES]
    medians = runs.groupby(["concurrency", "backend"])[keys].median().unstack()
    table = pd.DataFrame(index=medians.index.astype(int))
    for quantity in QUANTITIES:
        first, *others = backends
        values = medians[quantity.key]
        before = values[first] if quantity.compared else None
        name = quantity.name
        table[f"{name}, {EXPERTS_BY[first]}"] = texts(values[first], quantity.digits)
        for backend in others:
            column = texts(values[backend], quantity.digits, before)
            table[f"{name}, {EXPERTS_BY[backend]}"] = column
    return Table.of_frame(table.reset_index(), word_columns=0)


def logprobs_table() -> Table:
    """Return how far logprobs are from those with experts in bf16, a row for each kernel."""
    records = [record for record in json_lines("vllm.jsonl") if "logprobs" in record]
    records.sort(key=lambda record: list(PROMPTS).index(record["logprobs"]))
    rows = []
    for record in records:
        experts_by = EXPERTS_BY[record["backend"]]
        length = PROMPTS[record["logprobs"]]
        row = [
            f"{experts_by}, {record['positions']} tokens, {length} prompts",
            decimal(record["median"], 4),
            decimal(record["p99"], 3),
            f"{record['same_best']:.1%}",
        ]
        rows.append(row)
    return Table(["", "median", "99th percentile", "same best token"], [rows])


def sglang_runs() -> pd.DataFrame:
    """Return the medians of SGLang's runs, a row for what computes the experts.

    A second start of "triton" is called "triton_2". Times in ms; `experts` and `share` have a
    column for prefill and one for decode.
    """
    runs = pd.json_normalize(json_lines("sglang.jsonl"))
    for step in ("prefill", "decode"):
        runs[f"share.{step}"] = runs[f"experts_ms.{step}"] / runs[f"step_ms.{step}"]
    experts_by = runs.run_name.str.replace(r"_\d$", "", regex=True)
    return runs.drop(columns="run_name").groupby(experts_by).median()


def sglang_table(layers: int) -> Table:
    """Return a row for what computes the experts, Triton first. layers: of the model."""
    medians = sglang_runs()
    others = medians.index.drop("triton")
    runs = medians.loc[["triton", *others]]
    before = runs.loc[["triton"] * len(others)].set_axis(others)
    prefill = "prefill_latency"
    decode = "median_decode_latency"
    columns = [
        texts(1e3 * runs[prefill], 1, 1e3 * before[prefill]),
        texts(1e3 * runs[decode], 3, 1e3 * before[decode]),
        texts(runs.overall_throughput, 0),
        texts(runs["experts_ms.prefill"] / layers, 2),
        texts(runs["experts_ms.decode"] / layers, 4),
        decimals(100 * runs["share.prefill"], 1, "%"),
        decimals(100 * runs["share.decode"], 1, "%"),
    ]
    table = pd.concat(columns, axis="columns").rename(index=EXPERTS_BY)
    head = [
        "experts by",
        "prefill ms",
        "decode ms a token",
        "tokens/s, prompt and output",
        "experts' ms a layer, prefill",
        "decode",
        "share of kernel time, prefill",
        "decode",
    ]
    return Table(head, [frame_rows(table.reset_index())])
