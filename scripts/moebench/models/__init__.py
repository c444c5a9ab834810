"""Models and their MoE layers: those of layers.toml, and those of a checkpoint's config.json.

    layer.py            the layers of layers.toml, by model
    checkpoint/         reads a config.json
    add_model.py        adds a checkpoint's layer to layers.toml, with definitions and workloads
    expected_bound.py   the roofline bound of a layer that has no workloads
    mxfp4_to_fp8.py     converts weights from MXFP4 to FP8
    scales.py           tells whether that conversion is exact for a checkpoint

`moebench model CONFIG.json` uses all of them but mxfp4_to_fp8, which loaders of weights call.
"""

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton
