"""The script in integrations/flashinfer/README.md runs as it stands: FlashInfer-Bench calls a
packed solution of the small definition.
"""

import os
import re
import subprocess
import sys

import pytest
import torch
from moebench.core import paths
from moebench.core.atomic_file import write_atomically
from moebench.operators.catalogue import definition_name
from moebench.packing import pack

PAGE = paths.ROOT / "integrations" / "flashinfer" / "README.md"
# Prints the solutions that FIB calls, before the script's own output.
PRINT_CALLS = """
from flashinfer_bench.compile import Runnable

plain = Runnable.call_value_returning
def call_and_print(self, *args):
    print("called", self.metadata.solution_name)
    return plain(self, *args)
Runnable.call_value_returning = call_and_print
"""


@pytest.fixture
def data_set(tmp_path):
    """Both definitions, the recorded traces of the full one, and triton_fused_v2 packed for the
    small one.
    """
    full = definition_name("full")
    small = definition_name("small")
    files = [
        paths.definition_file(full),
        paths.definition_file(small),
        paths.trace_file(full),
    ]
    for file in files:
        write_atomically(tmp_path / file.relative_to(paths.ROOT), file.read_text())
    packed = pack.pack("triton_fused_v2")["small"].model_dump_json()
    write_atomically(tmp_path / "solutions" / "small.json", packed)
    return tmp_path


@pytest.mark.slow
@pytest.mark.skipif(
    torch.cuda.is_available(),
    reason="the script's other half, for machines without a GPU",
)
def test_the_script_calls_a_solution_and_its_result_is_right(data_set):
    (script,) = re.findall(
        r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S
    )
    program = data_set / "serve.py"
    program.write_text(PRINT_CALLS + script, encoding="utf-8")
    environment = os.environ | {"FIB_CACHE_PATH": str(data_set / "cache")}

    command = [sys.executable, program.name]
    done = subprocess.run(
        command,
        cwd=data_set,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    called = re.findall(r"^called (\w+)", done.stdout, re.M)
    assert called[0] == "triton_fused_v2_h512_i256"
    share_of_close = re.search(r"T = 5 on cpu: (\S+)", done.stdout)[1]
    assert float(share_of_close) >= 0.85
