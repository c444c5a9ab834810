"""Read a checkpoint's config.json: its MoE layer in the terms of layers.toml, or why no definition
can be of that layer. `moebench model` calls `read_file`.

    {"model_type": "glm4_moe", "n_routed_experts": 160, "num_experts_per_tok": 8, ...}
    -> Checkpoint(sizes={"num_experts": 160, "top_k": 8, ..., "routing": "sigmoid-bias"}, layers=89,
                  storage="FP8 e4m3, scales per 128 x 128", ...)

Models call one thing by many names. definitions/config_json.toml lists the names of each field, and
what a model's own code does where config.json is silent.

    fields.py           finds and checks fields
    moe_layers.py       which layers have experts, and their activation
    router.py           how experts are chosen
    storage.py          how weights are stored, as quantisation tools say (schemes.py, modules.py)
    shared.py           shared experts
    not_understood.py   fields about experts that nothing here reads
    read.py             all of it together
"""

from moebench.models.checkpoint.read import Assumptions, Checkpoint, read, read_file

__all__ = ["Assumptions", "Checkpoint", "read", "read_file"]
