"""The FP8 block-scale MoE layer, in several forms, each an operator.

    sigmoid_bias.py, renorm.py    the router is inside: DeepSeek-V3's, or a softmax over top-k
    shared.py                     DeepSeek-V3's, with shared experts
    routed.py                     top-k is given, as inference engines call it
    mxfp4.py                      likewise, with MXFP4 weights

layer.py has what they share, arguments.py their interface, reference.py and swiglu.py parts of the
references. The text of a reference's functions goes into the definitions.
"""
