"""The script in integrations/flashinfer/README.md runs as it stands: FlashInfer-Bench calls a
packed solution of the small definition.
"""

import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
from moebench.core import paths
from moebench.operators.catalogue import definition_name
from moebench.packing import pack

PAGE = paths.ROOT / "integrations" / "flashinfer" / "README.md"
FULL, SMALL = definition_name("full"), definition_name("small")
# Prints the solutions that FIB calls, before the script's own output.
NOTING = """
from flashinfer_bench.compile import Runnable

plain = Runnable.call_value_returning
def noting(self, *args):
    print("called", self.metadata.solution_name)
    return plain(self, *args)
Runnable.call_value_returning = noting
"""


@pytest.fixture
def data_set(tmp_path):
    """Both definitions, the recorded traces of the full one, and triton_fused_v2 packed for the
    small one.
    """
    for file in (paths.definition_file(FULL), paths.definition_file(SMALL), paths.trace_file(FULL)):
        target = tmp_path / file.relative_to(paths.ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    (tmp_path / "solutions").mkdir()
    (tmp_path / "solutions" / "small.json").write_text(
        pack.pack("triton_fused_v2")["small"].model_dump_json()
    )
    return tmp_path


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="the script's other half, for machines without a GPU"
)
def test_the_script_calls_a_solution_and_its_result_is_right(data_set):
    (script,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    (data_set / "serve.py").write_text(NOTING + script, encoding="utf-8")
    known = os.environ | {"FIB_CACHE_PATH": str(data_set / "cache")}
    command = [sys.executable, "serve.py"]
    done = subprocess.run(
        command, cwd=data_set, env=known, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^called (\w+)", done.stdout, re.M)[:1] == ["triton_fused_v2_h512_i256"]
    assert re.search(r"T = 5 on cpu: (0|1)\.\d+", done.stdout)
