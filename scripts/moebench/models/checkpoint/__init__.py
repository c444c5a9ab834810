"""A checkpoint's config.json -> its MoE layer in the words of layers.toml, or why no definition can
be of it.

definitions/config_json.toml has the names of each field, and what a model's own code does where
config.json is silent.
"""

from moebench.models.checkpoint.read import Assumptions, Checkpoint, read, read_file

__all__ = ["Assumptions", "Checkpoint", "read", "read_file"]
