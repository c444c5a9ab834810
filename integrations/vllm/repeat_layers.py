"""A model of many layers from a checkpoint of few: `vllm serve --worker-extension-cls
repeat_layers.RepeatLayers`.

vLLM imports this in a worker before it builds the model. Each layer of the checkpoint, whose config
has their number as written_layers, is loaded into several of the model's, each with memory of its
own: a large model of random weights is written and read in seconds.
"""

import re
from collections.abc import Iterable, Iterator

import torch
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

NAME = re.compile(r"(.*\blayers\.)(\d+)(\..*)")
get_all_weights = DefaultModelLoader.get_all_weights


class RepeatLayers:
    """Adds nothing to vLLM's worker."""


def repeated(
    weights: Iterable[tuple[str, torch.Tensor]], written: int, layers: int
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each weight of layer n as one of layers n, n + written, n + 2 written ..., too."""
    for name, weight in weights:
        parts = NAME.fullmatch(name)
        if not parts:
            yield name, weight
            continue

        before, number, after = parts.groups()
        for layer in range(int(number), layers, written):
            yield f"{before}{layer}{after}", weight


def get_all_layers(loader, model_config, model) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what vLLM's own yields, for all layers of the model."""
    config = model_config.hf_config
    weights = get_all_weights(loader, model_config, model)
    return repeated(weights, config.written_layers, config.num_hidden_layers)


DefaultModelLoader.get_all_weights = get_all_layers
