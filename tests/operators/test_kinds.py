"""Workloads that are made at any number of tokens."""

import pytest
from moebench.operators import catalogue
from moebench.operators.routing import kinds

ONE_OF_EACH_FORM = ("small", "qwen3-30b", "small-routed", "small-mxfp4")


@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("layer_key", ONE_OF_EACH_FORM)
def test_routing_is_what_the_definition_takes(layer_key, kind):
    definition = catalogue.definition(layer_key)
    input_shapes = definition.get_input_shapes({"seq_len": 3})
    shapes = dict(zip(definition.inputs, input_shapes, strict=True))
    for name, tensor in kinds.tensors(kind, 3, layer_key).items():
        spec = definition.inputs[name]
        assert list(tensor.shape) == list(shapes[name])
        assert str(tensor.dtype) == f"torch.{spec.dtype.value}"
