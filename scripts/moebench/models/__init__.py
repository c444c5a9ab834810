"""Models and their MoE layers: those of layers.toml, and those of a checkpoint's config.json.

    layer.py            the layers of layers.toml, by model
    checkpoint/         reads a config.json
    add_model.py        adds what it says to layers.toml, with definitions and workloads
    expected_bound.py   the roofline bound of a layer that has no workloads
    mxfp4_to_fp8.py     converts weights; scales.py tells whether that is exact

`moebench model CONFIG.json` uses all of them.
"""

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton
