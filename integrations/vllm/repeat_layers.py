"""Make vLLM load a model of many layers from a checkpoint that has weights for few of them.

    vllm serve CHECKPOINT --worker-extension-cls repeat_layers.RepeatLayers

The option makes vLLM import this file in its worker before it builds the model. Each layer in the
checkpoint is then loaded into several layers of the model, which have memory of their own. So a
large model of random weights is written and read in seconds.

server.py passes the option for checkpoints whose config has written_layers, the number of layers
with weights.
"""

import re
from collections.abc import Iterable, Iterator

import torch
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

# as in "model.layers.3.mlp.gate.weight"
LAYER_WEIGHT = re.compile(r"(.*\blayers\.)(\d+)(\..*)")
vllm_get_all_weights = DefaultModelLoader.get_all_weights


class RepeatLayers:
    """An empty class, as vLLM's option needs one."""


def repeat_layers(
    weights: Iterable[tuple[str, torch.Tensor]], written: int, layers: int
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each weight of layer n under the names of layers n, n + written, n + 2 written, ...

    weights: (name, weight) in the checkpoint. Weights outside of layers are yielded as they are.
    """
    for name, weight in weights:
        parts = LAYER_WEIGHT.fullmatch(name)
        if not parts:
            yield name, weight
            continue

        before, number, after = parts.groups()
        for layer in range(int(number), layers, written):
            yield f"{before}{layer}{after}", weight


def get_all_weights(loader, model_config, model) -> Iterator[tuple[str, torch.Tensor]]:
    """Return what vLLM's loader yields, with the weights repeated for all layers of the model."""
    config = model_config.hf_config
    weights = vllm_get_all_weights(loader, model_config, model)
    return repeat_layers(weights, config.written_layers, config.num_hidden_layers)


DefaultModelLoader.get_all_weights = get_all_weights
