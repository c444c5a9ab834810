"""The FP8 block-scale layer: with each router inside, behind a router, and with MXFP4 weights."""
