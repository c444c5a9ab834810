"""What an operator is, and the workloads of a definition before they are written down."""

import inspect
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors
import torch
from flashinfer_bench import AxisConst, AxisVar, Definition, TensorSpec, Trace, Workload

from moebench.core import paths


@dataclass(frozen=True)
class Case:
    """A workload's name and size. An operator adds what else its tensors are made from.

    uuid: the seed of every tensor, too.
    """

    layer_key: str
    name: str
    uuid: str
    seq_len: int


class Operator:
    """An operator, whose layers each have a definition under a short key.

    A subclass has, by a layer's sizes: definition_name_of, description, tags, axes and outputs, the
    parts of a definition, and hard_cases, the workloads for machines without a GPU: name, tokens,
    and whatever fields a case has behind them. By layer key: layer_sizes, the one with a plain name
    first, and reference_source. By case: tensors, what goes into its safetensors file, and record,
    its FIB trace. By workload: counts, None where its stored tensors lack the routing, and bound.
    """

    op_type = "moe"
    form: str | None = None  # of an FP8 layer, as catalogue.form says it
    case: type[Case] = Case
    tokens: tuple[int, ...]  # of the workloads where a GPU is needed
    constraints: list[str]
    inputs: dict[str, TensorSpec]

    def small(self) -> list[str]:
        """Return the keys of the layers that are for machines without a GPU."""
        return [key for key, sizes in self.layer_sizes().items() if sizes["small"]]

    def usual_case(self, sizes: dict) -> tuple:
        """Return the fields of a case with T tokens, behind its tokens."""
        return ()

    def definition_name(self, key: str) -> str:
        """Return the name of the FIB Definition of a layer key."""
        return self.definition_name_of(self.layer_sizes()[key])

    def definition(self, key: str) -> Definition:
        """Return the FIB Definition of a layer key."""
        sizes = self.layer_sizes()[key]
        return Definition(
            name=self.definition_name_of(sizes),
            op_type=self.op_type,
            description=self.description(sizes),
            tags=[*self.tags(sizes), f"geometry:{key}"],
            axes=self.axes(sizes),
            constraints=self.constraints,
            inputs=self.inputs,
            outputs=self.outputs(sizes),
            reference=self.reference_source(key),
        )

    def cases(self, key: str) -> list[Case]:
        """Return the workloads of a layer key in the order in which they are run."""
        sizes = self.layer_sizes()[key]
        if key in self.small():
            rows = self.hard_cases(sizes)
        else:
            usual = self.usual_case(sizes)
            rows = [(f"T={tokens}", tokens, *usual) for tokens in self.tokens]

        cases = []
        definition = self.definition_name_of(sizes)
        for name, *fields in rows:
            uuid = uuid_of(definition, name)
            cases.append(self.case(key, name, uuid, *fields))
        return cases

    def trace(
        self,
        case: Case,
        random: Iterable[str],
        stored: Iterable[str],
        scalars: Mapping[str, float],
    ) -> Trace:
        """Return a case as a FIB workload trace: inputs that FIB draws, inputs in the case's
        safetensors file, and scalars.
        """
        definition = self.definition_name(case.layer_key)
        file = {"type": "safetensors", "path": paths.blob_file(definition, case.uuid)}

        inputs = dict.fromkeys(random, {"type": "random"})
        for name in stored:
            inputs[name] = file | {"tensor_key": name}
        for name, value in scalars.items():
            inputs[name] = {"type": "scalar", "value": value}

        workload = Workload(axes={"seq_len": case.seq_len}, inputs=inputs, uuid=case.uuid)
        return Trace(definition=definition, workload=workload)


# The parts of a definition: axes and tensors with a description each, and the reference.


def const(value: int, description: str) -> AxisConst:
    """Return an axis of one size."""
    return AxisConst(type="const", value=value, description=description)


def var(description: str) -> AxisVar:
    """Return an axis whose size the workload says."""
    return AxisVar(type="var", description=description)


def tensor(shape: str | None, dtype: str, description: str) -> TensorSpec:
    """Return an input or output. shape: names of axes; None for a scalar."""
    axes = None if shape is None else shape.split()
    return TensorSpec(shape=axes, dtype=dtype, description=description)


def module_source(constants: Mapping[str, object], functions: Iterable[Callable | str]) -> str:
    """Return a self-contained module for the `reference` field: constants, then the functions,
    each itself or its text.
    """
    head = "import torch\n"
    if constants:
        head += "\n"
    for name, value in constants.items():
        head += f"{name} = {value}\n"

    texts = [head]
    for function in functions:
        texts.append(function if isinstance(function, str) else inspect.getsource(function))
    return "\n\n".join(texts)


def uuid_of(definition: str, name: str) -> str:
    """Return the uuid of a case that no public data set has: the same one everywhere."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{definition}/{name}"))


def stored_tensors(workload: Workload, root: Path) -> dict[str, torch.Tensor]:
    """Return the inputs that lie in safetensors files of the data set at root; without those whose
    file is not there.
    """
    tensors = {}
    for name, spec in workload.inputs.items():
        if spec.type != "safetensors":
            continue
        path = root / spec.path
        if not path.is_file():
            continue
        with safetensors.safe_open(path, framework="pt") as file:
            if spec.tensor_key in file.keys():
                tensors[name] = file.get_tensor(spec.tensor_key)
    return tensors
