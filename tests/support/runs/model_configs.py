"""Models' config.json as they are published, and what `moebench model` should make of each."""

import json
from pathlib import Path

FILE = Path(__file__).parents[2] / "samples" / "model_configs.jsonl"
CONFIGS = {
    sample["name"]: sample for sample in map(json.loads, FILE.open(encoding="utf-8"))
}
GOOD = [name for name, sample in CONFIGS.items() if "layers" in sample]
BAD = [name for name, sample in CONFIGS.items() if "named" in sample]


def config_of(name):
    """Return the config.json of a model."""
    return CONFIGS[name]["config"]
