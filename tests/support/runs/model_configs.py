"""Models' config.json as they are published, and what `moebench model` should make of each."""

import json
from pathlib import Path

FILE = Path(__file__).parents[2] / "samples" / "model_configs.jsonl"
SAMPLES = [json.loads(line) for line in FILE.open(encoding="utf-8")]
CONFIGS = {sample["name"]: sample for sample in SAMPLES}
GOOD = [name for name, sample in CONFIGS.items() if "layers" in sample]
BAD = [name for name, sample in CONFIGS.items() if "named" in sample]


def config_of(name):
    """Return the config.json of a model."""
    return CONFIGS[name]["config"]
