"""The operators: families of layers, their references, sizes, workloads and roofline bounds.

catalogue.py        all operators, and layers by their keys: the rest asks this one
operator.py         what an operator is
fp8/                the FP8 MoE layer, in four forms; arguments.py states its interface
moe_bf16.py         another operator, and mxfp8_linear.py a third
layers.py           definitions/layers.toml: models, and their layers' sizes
routing/            how tokens choose experts in generated workloads
workloads.py        workloads as they are recorded; workload_files.py writes them
roofline.py         the least time that a workload can take
"""

from moebench.core import interpreter  # noqa: F401  before flashinfer_bench imports Triton
