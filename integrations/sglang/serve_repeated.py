"""Start SGLang's server with a model of many layers from a checkpoint that has weights for few.

    python serve_repeated.py --model-path CHECKPOINT ...

Arguments are those of sglang.launch_server. Each layer in the checkpoint is loaded into several
layers of the model, which have memory of their own: integrations/vllm/checkpoint.py writes such
checkpoints with --written, whose config has written_layers.
"""

# pyright: reportMissingImports=false
# SGLang is installed where a server runs, not here.

import os
import re
import sys
from collections.abc import Iterable, Iterator

import torch
from sglang.srt.model_loader.loader import DefaultModelLoader

# as in "model.layers.3.mlp.gate.weight"
LAYER_WEIGHT = re.compile(r"(.*\blayers\.)(\d+)(\..*)")
sglang_get_all_weights = DefaultModelLoader._get_all_weights


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
    """Return what SGLang's loader yields, with the weights repeated for all layers."""
    config = model_config.hf_config
    weights = sglang_get_all_weights(loader, model_config, model)
    return repeat_layers(weights, config.written_layers, config.num_hidden_layers)


def main() -> None:
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    load_plugins()
    try:
        run_server(prepare_server_args(sys.argv[1:]))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


# SGLang's processes import this file again, so the loader is replaced in each of them.
DefaultModelLoader._get_all_weights = get_all_weights

if __name__ == "__main__":
    main()
