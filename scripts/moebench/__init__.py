"""The harness behind the command `moebench`. Its rooms import downwards only:

core <- operators <- models <- packing <- judging <- results <- profiling, served <- reports <-
submission <- commands

Whether Triton interprets kernels has to be decided before Triton is first imported, as
flashinfer_bench does: each room but core imports core/interpreter.py, which decides it, before any
of its modules. So `moebench --help` needs no torch.
"""
