"""What an operator is: a family of layers, each with a FIB Definition and with workloads.

The FP8 MoE layer with DeepSeek-V3's router inside is one operator (fp8/sigmoid_bias.py). A layer of
it is known by a short key, as "glm-5-ep8", whose sizes are in definitions/layers.toml; its
definition is moe_fp8_block_scale_ds_routing_topk8_ng1_kg1_e32_h6144_i2048. catalogue.py has all
operators.
"""

import inspect
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors
import torch
from flashinfer_bench import AxisConst, AxisVar, Definition, TensorSpec, Trace, Workload

from moebench.core import paths
from moebench.operators.roofline import Bound, Counts

Tensors = dict[str, torch.Tensor]  # name in a definition -> tensor


@dataclass(frozen=True)
class Case:
    """A workload before it is written down: all that its tensors are made from.

    An operator's own class adds fields to these. uuid: the workload's in FIB, and the seed of every
    tensor.
    """

    layer_key: str
    name: str
    uuid: str
    seq_len: int


class Operator(ABC):
    """A family of layers. Subclasses say what its definitions and workloads are.

    In all methods `key` is a layer's key, and `sizes` are what `layer_sizes` has under it.
    """

    op_type = "moe"
    form: str | None = None  # of an FP8 layer, as catalogue.form says it
    case: type[Case] = Case
    # numbers of tokens, each a workload of a layer that needs a GPU
    tokens: tuple[int, ...]
    constraints: list[str]  # of every definition, as are the inputs
    inputs: dict[str, TensorSpec]

    # What differs from operator to operator

    @abstractmethod
    def layer_sizes(self) -> dict[str, dict]:
        """Return layer key -> sizes. The layer whose definition has the plainest name is first."""

    @abstractmethod
    def definition_name_of(self, sizes: dict) -> str:
        """Return the name of the FIB Definition of a layer of these sizes."""

    @abstractmethod
    def description(self, sizes: dict) -> str:
        """Return the text of a definition's `description`."""

    @abstractmethod
    def tags(self, sizes: dict) -> list[str]:
        """Return the definition's tags."""

    @abstractmethod
    def axes(self, sizes: dict) -> dict[str, AxisConst | AxisVar]:
        """Return the definition's axes by name."""

    @abstractmethod
    def outputs(self, sizes: dict) -> dict[str, TensorSpec]:
        """Return the definition's outputs by name."""

    @abstractmethod
    def reference_source(self, key: str) -> str:
        """Return the definition's `reference`: Python source with a function `run`."""

    @abstractmethod
    def hard_cases(self, key: str) -> list[Case]:
        """Return the workloads of a layer for machines without a GPU. Each is there for something
        that implementations get wrong.
        """

    @abstractmethod
    def tensors(self, case: Case) -> Tensors:
        """Return the inputs of a workload that are stored, as its safetensors file has them."""

    @abstractmethod
    def record(self, case: Case) -> Trace:
        """Return the workload as FIB writes it down: a trace without a solution."""

    @abstractmethod
    def counts(self, workload: Workload, stored: Tensors, key: str) -> Counts | None:
        """Return how many rows and experts a workload has, or None where its stored inputs lack the
        routing. Raises ValueError for tensors of another shape.
        """

    @abstractmethod
    def bound(self, seq_len: int, counts: Counts, key: str) -> Bound:
        """Return the roofline bound of a workload."""

    # What all have in the same way

    def small(self) -> list[str]:
        """Return the keys of the layers that are for machines without a GPU."""
        return [key for key, sizes in self.layer_sizes().items() if sizes["small"]]

    def usual_fields(self, sizes: dict) -> dict[str, object]:
        """Return the fields that the operator's class of cases adds, for workloads like "T=16"."""
        return {}

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
        if key in self.small():
            return self.hard_cases(key)
        usual = self.usual_fields(self.layer_sizes()[key])
        cases = []
        for tokens in self.tokens:
            cases.append(self.new_case(key, f"T={tokens}", tokens, **usual))
        return cases

    def new_case(self, key: str, name: str, seq_len: int, **fields: object) -> Case:
        """Return a case of a layer. fields: those that the operator's class of cases adds."""
        case_uuid = uuid_of(self.definition_name(key), name)
        return self.case(key, name, case_uuid, seq_len, **fields)

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

        workload = Workload(
            axes={"seq_len": case.seq_len}, inputs=inputs, uuid=case.uuid
        )
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


def module_source(
    constants: Mapping[str, object], functions: Iterable[Callable | str]
) -> str:
    """Return the text of a module that imports torch alone: constants, then the functions, each
    given as itself or as its text. It becomes a definition's `reference`.
    """
    head = "import torch\n"
    if constants:
        head += "\n"
    for name, value in constants.items():
        head += f"{name} = {value}\n"

    texts = [head]
    for function in functions:
        is_text = isinstance(function, str)
        texts.append(function if is_text else inspect.getsource(function))
    return "\n\n".join(texts)


def uuid_of(definition: str, name: str) -> str:
    """Return the uuid of a case that no public data set has: the same one everywhere."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{definition}/{name}"))


def stored_tensors(workload: Workload, root: Path) -> Tensors:
    """Return a workload's inputs that lie in safetensors files of the data set at root. An input
    whose file is not there is left out.
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
