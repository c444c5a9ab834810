"""tools/same_code: a changed instruction is found; a kernel's name, comments and places in the source are not."""

import shutil
import sys

import pytest
from harness.core import paths

sys.path.insert(0, str(paths.ROOT / "tools" / "same_code"))

import compiled  # noqa: E402
import same_code  # noqa: E402

CUDA = '#include "size.cuh"\n__global__ void {name}(float* x) {{ x[threadIdx.x] *= kBy; }}'
PTX = ".visible .entry {name}()\n{{\n\t.loc\t1 {by} 0\n$L__tmp{by}:\n\tmul.f32 %f1, %f1, 0f4{by}000000;\n}}"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
@pytest.mark.parametrize(("name", "by", "status"), [("scale", 3, 0), ("product", 3, 0), ("product", 5, 1)])
def test_a_changed_instruction_is_found_and_a_name_is_not(name, by, status, monkeypatch, capsys):
    def packed(folder, names):
        new = folder.name == "after"
        files = {"new/k.cu" if new else "k.cu": CUDA.format(name=name if new else "scale")}
        files["size.cuh"] = f"// why: {folder}\nconstexpr int kBy = {by if new else 3};"
        return {("mine", "full"): compiled.Bundle("mine", "full", ["main.py::run"], ["sm_90"], files)}

    def launches(bundle, *asked):
        return [{"file": next(iter(bundle.files)), "architecture": "9.0", "flags": [], "folders": []}]

    monkeypatch.setattr(compiled, "launches", launches)
    monkeypatch.setattr(same_code, "packed", packed)
    monkeypatch.setattr(sys, "argv", ["same_code.py", "before", "after", "--machines", "sm_90"])
    assert same_code.main() == status
    assert ("DIFFERS" in capsys.readouterr().out) == bool(status)


def test_a_triton_kernel_is_its_instructions():
    one, renamed = (compiled.triton_kernel(name, PTX.format(name=name, by=3)) for name in ("a_kernel", "b_kernel"))
    moved = compiled.triton_kernel("a_kernel", PTX.format(name="a_kernel", by=3).replace("1 3 0", "2 7 0"))
    other = compiled.triton_kernel("c_kernel", PTX.format(name="c_kernel", by=5))
    assert one.code == renamed.code == moved.code != other.code
    assert same_code.pairs([one], [other, renamed]) == [(one, renamed), (None, other)]


def test_a_checkout_is_packed_by_itself():
    found = compiled.packed(paths.ROOT, ["triton_fused_v2"])
    entries = {definition: bundle.entry_points for (_, definition), bundle in found.items()}
    assert entries["small-routed"] == ["main.py::run_routed", "main.py::run_routed_bf16"]
    assert entries["small"][0] == "main.py::run"
