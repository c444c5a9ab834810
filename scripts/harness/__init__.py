"""The harness behind the commands in scripts/.

Importing it makes definitions/ importable and, on a machine without a CUDA device, chooses Triton's
interpreter: that has to be settled before Triton is imported for the first time.
"""

import os
import sys

import torch

from harness.paths import ROOT

if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    from harness import interpreter_rounding

    interpreter_rounding.install()
