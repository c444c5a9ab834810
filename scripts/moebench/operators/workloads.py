"""The workloads of a definition, read from workloads/: how a user names them, and their bounds.

A workload is a line of workloads/moe/<definition>.jsonl, in FIB's format. Beside those that this
repository has made (workload_files.py) the file may have lines that a user has added. judging/
dataset.py reads what is run with these functions; results/ and reports/ ask for bounds.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import safetensors.torch
from flashinfer_bench import Trace, Workload
from pydantic import ValidationError

from moebench.core import paths
from moebench.core.errors import UserError
from moebench.core.names import unknown
from moebench.core.schema import first_fault
from moebench.operators import catalogue
from moebench.operators.layers import cached, has_all_experts
from moebench.operators.operator import Case, stored_tensors
from moebench.operators.roofline import Bound, Counts


@cached
def cases_by_uuid(layer_key: str) -> dict[str, Case]:
    """Return the workloads that this repository makes for a key, in the order in which they are
    run.
    """
    return {case.uuid: case for case in catalogue.operator(layer_key).cases(layer_key)}


def size(workload: Workload) -> str:
    """Return 'T=7'; of other operators 'M=256, N=8'."""
    parts = []
    for axis, value in workload.axes.items():
        name = "T" if axis == "seq_len" else axis
        parts.append(f"{name}={value}")
    return ", ".join(parts)


def tokens(workload: Workload) -> int:
    """Return T; of an operator without it the greatest axis, which orders its workloads."""
    return workload.axes.get("seq_len", max(workload.axes.values(), default=0))


def label(workload: Workload, layer_key: str) -> str:
    """Return 'one-token T=1 offset=32', 'T=7', or the uuid of a user's workload and T.

    It is for a line of progress or a table. offset: the rank's first expert, where it has not all
    of them.
    """
    shown = size(workload)
    case = cases_by_uuid(layer_key).get(workload.uuid)
    if case is None:
        return f"{workload.uuid} {shown}"

    offset = workload.inputs.get("local_expert_offset")
    if offset is not None and not has_all_experts(catalogue.layer_sizes()[layer_key]):
        shown += f" offset={offset.value}"
    return shown if case.name.startswith("T=") else f"{case.name} {shown}"


class LabelledWorkload(NamedTuple):
    """A workload, and the label by which progress and tables show it."""

    label: str
    workload: Workload

    @property
    def case_name(self) -> str:
        """The first word of the label: "one-token", "T=7"."""
        name, _, _ = self.label.partition(" ")
        return name

    def goes_by(self, name: str) -> bool:
        """Whether a user may mean this workload: by label, case, uuid, "T=7" or "7"."""
        shown_size = size(self.workload)
        if name in (shown_size, shown_size.removeprefix("T=")):
            return True
        return name in (self.label, self.case_name, self.workload.uuid)


def named(
    name: str, workloads: list[LabelledWorkload], others: str = ""
) -> list[LabelledWorkload]:
    """Return the workloads that a user names; a token count may be that of several.

    others: what else the user may name, for the message. Raises UserError where none has the name.
    """
    matching = [labelled for labelled in workloads if labelled.goes_by(name)]
    if not matching:
        by_size = sorted(
            workloads, key=lambda labelled: [*labelled.workload.axes.values()]
        )
        sizes = ordered_set(size(labelled.workload) for labelled in by_size)
        case_names = ordered_set(labelled.case_name for labelled in workloads)
        listed = f"{', '.join(sizes)}; their uuids and names{others}"
        raise UserError(unknown("workload", name, case_names, listed))
    return matching


def ordered_set(texts: Iterable[str]) -> list[str]:
    """Return the texts in their order, each once."""
    return list(dict.fromkeys(texts))


def of_data_set(definition: str, root: Path) -> list[Workload]:
    """Return a FIB data set's workloads of a definition, [] without any.

    Raises UserError for a line that is none.
    """
    workloads = []
    folder = paths.shipped(root) / "workloads"
    for file in sorted(folder.rglob(f"{definition}.jsonl")):
        workloads += [workload for workload, _ in read_lines(file, definition)]
    return workloads


def recorded(layer_key: str, root: Path = paths.ROOT) -> list[Workload]:
    """Return the workloads in a key's file, in the order in which they are run: this repository's
    and the user's own.

    Raises UserError for a missing file and a line that is no workload of the definition.
    """
    definition = catalogue.definition_name(layer_key)
    if not paths.workload_file(definition, root).exists():
        raise UserError(
            f"{layer_key}: its workloads are not written: run `moebench data {layer_key} --write`"
        )
    return of_data_set(definition, root)


def read_lines(path: Path, definition: str) -> list[tuple[Workload, str]]:
    """Return each workload with its line.

    Raises UserError that names the file and the line of what is no workload.
    """
    needs_tokens = definition in catalogue.by_name()
    text = path.read_text(encoding="utf-8")
    lines = []
    # Not splitlines: JSON may hold other line ends.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        place = f"{path.name}:{number}"
        try:
            trace = Trace.model_validate_json(line)
        except ValidationError as error:
            fault = first_fault(error, "line")
            raise UserError(f"{place}: not a FIB trace: {fault}") from error

        lacks_tokens = needs_tokens and "seq_len" not in trace.workload.axes
        if trace.definition != definition or lacks_tokens:
            raise UserError(f"{place}: not a workload of {definition} with its axes")
        lines.append((trace.workload, line))
    return lines


@cached
def recorded_counts(layer_key: str) -> dict[str, Counts]:
    """Return uuid -> counts of a workload of this repository, as `make` writes them: drawing its
    routing takes seconds.
    """
    file = paths.workload_file(catalogue.definition_name(layer_key), suffix="csv")
    rows = pd.read_csv(file, index_col="uuid").to_dict("index")
    return {uuid: Counts(**row) for uuid, row in rows.items()}


def recorded_bound(
    definition: str, workload: Workload, root: Path | None = None
) -> Bound | None:
    """Return the roofline bound of a workload of the data set at root, or None where its routing
    cannot be known.

    This repository's counts are recorded, so no blob is needed; a trace file outside any data set
    (root: None) is taken to be of this repository's workloads. All others have their routing in the
    stored tensors.
    """
    layer_key = catalogue.by_name().get(definition)
    if layer_key is None:
        return None
    root = root or paths.ROOT

    if root == paths.ROOT and workload.uuid in cases_by_uuid(layer_key):
        counts = recorded_counts(layer_key)[workload.uuid]
    else:
        counts = stored_counts(layer_key, workload, root)
    if counts is None:
        return None
    num_tokens = workload.axes["seq_len"]
    return catalogue.operator(layer_key).bound(num_tokens, counts, layer_key)


def stored_counts(layer_key: str, workload: Workload, root: Path) -> Counts | None:
    """Return the counts of a workload from its stored tensors, None where they lack the routing."""
    try:
        tensors = stored_tensors(workload, root)
        return catalogue.operator(layer_key).counts(workload, tensors, layer_key)
    except (ValueError, safetensors.SafetensorError):
        return None  # somebody else's tensors; FIB says what is wrong with them
