"""cutlass_grouped where there is no GPU: it compiles, refuses bad input, and says why it cannot
run.
"""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import layer_inputs
import pytest
import torch
from ahead_of_time import CUOBJDUMP, resources
from flashinfer_bench.compile import BuilderRegistry
from moebench.operators import catalogue
from moebench.operators import moe_fp8_block_scale as moe
from moebench.operators.moe_fp8_block_scale import public_cases
from moebench.packing import manifest, pack
from moebench.profiling.stages import stage_of
from tvm_ffi.libinfo import find_dlpack_include_path, find_include_path

NAME = "cutlass_grouped"
GEOMETRIES = manifest.read_manifest(NAME).definitions
STAGES = ("route_kernel", "permute_kernel", "swiglu_quant_kernel", "combine_kernel")


needs_nvcc = pytest.mark.skipif(
    shutil.which("nvcc") is None or importlib.util.find_spec("flashinfer") is None,
    reason="needs nvcc, and the CUTLASS headers of flashinfer-python",
)


def compiles(architecture):
    """A test that compiles the library for minutes; one worker does it for all tests of an
    architecture.
    """

    def decorate(test):
        return needs_nvcc(
            pytest.mark.slow(pytest.mark.xdist_group(f"cutlass_grouped {architecture}")(test))
        )

    return decorate


def unpack(geometry, folder):
    """Write a packed solution's sources; returns the folder."""
    for source in pack.pack(NAME)[geometry].sources:
        path = folder / source.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source.content)
    return folder


@pytest.fixture
def build_module(packed_module):
    """build.py of the packed solution, which is not compiled by that."""
    return packed_module(NAME, "build")


@pytest.fixture(scope="module")
def layer():
    """What FIB builds; compiled for sm_90a once for each content of the sources."""
    return BuilderRegistry.get_instance().build(moe.definition("full"), pack.pack(NAME)["full"])


def cuobjdump(option, built):
    return subprocess.run(
        [CUOBJDUMP, option, built], capture_output=True, text=True, check=True
    ).stdout


def tile_files(prefix):
    files = (pack.paths.SOLUTIONS / NAME / "gemms").glob(f"{prefix}*_*.cu")
    return [path for path in files if "_tiles" not in path.name]


def test_every_definition_of_the_family_is_served():
    """A model without the comparison, and no word why."""
    assert set(GEOMETRIES) == {name for name in catalogue.FP8_MOE if name in catalogue.FULL}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
@pytest.mark.parametrize(
    "geometry", ["full", "kimi-k2-ep1", "minimax-m2", "qwen3-next"]
)  # both routings, 32 to 384 experts
def test_stages_compile_for_hopper_and_do_not_spill(geometry, tmp_path):
    """The first call dies in the compiler. The GEMMs take minutes and are tested
    below.
    """
    folders = {path.parent for path in unpack(geometry, tmp_path).rglob("*.cuh")}
    folders |= {find_include_path(), find_dlpack_include_path()}
    command = [
        "nvcc",
        "-std=c++17",
        "-O3",
        "-DNDEBUG",
        "--expt-relaxed-constexpr",
        "-Xcompiler",
        "-fPIC",
    ]
    command += ["-gencode=arch=compute_90a,code=sm_90a", *(f"-I{folder}" for folder in folders)]
    built = tmp_path / "layer.o"
    done = subprocess.run(
        [*command, "-c", tmp_path / "layer.cu", "-o", built], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    kernels = resources(cuobjdump("-res-usage", built))
    assert all(any(stage in name for name in kernels) for stage in STAGES), kernels
    assert not {name: use for name, use in kernels.items() if use[1] or use[2]}


def test_tiles_of_the_first_definition_are_the_measured_ones(packed_module):
    """A slower tile at a token count that is in the results."""
    choose = packed_module(NAME, "tiles").choose_tiles
    limits = {256: "pingpong_swap_ab_16", 640: "pingpong_swap_ab_32", 1536: "pingpong_64_rows"}
    for tokens in (0, *(case.seq_len for case in public_cases()), *limits, 257, 641, 1537):
        wanted = next(
            (name for limit, name in limits.items() if tokens <= limit), "cooperative_128_rows"
        )
        assert choose(tokens) == (wanted, wanted), tokens


@pytest.mark.parametrize(
    ("geometry", "tokens", "tile"),
    [
        ("kimi-k2-ep1", 384, "pingpong_swap_ab_16"),  # 8 rows of each of 384 experts
        ("kimi-k2-ep8", 384, "pingpong_swap_ab_16"),  # the same, of 48
        ("qwen3-next", 102, "pingpong_swap_ab_16"),  # ten experts of 128 for a token
        ("qwen3-next", 103, "pingpong_swap_ab_32"),
        ("qwen3-235b", 1024, "cooperative_128_rows"),
    ],
)
def test_tiles_go_by_the_rows_of_an_expert(geometry, tokens, tile, packed_module):
    """Tiles of 128 rows for experts with a few, or the other way round."""
    assert packed_module(NAME, "tiles", geometry).choose_tiles(tokens) == (tile, tile)


@compiles("sm_90")
def test_hopper_build_uses_the_tensor_cores_and_does_not_spill(build_module):
    """The first call dies in the compiler, or a GEMM several times slower than
    it can be.
    """
    libraries = build_module.build("sm_90")
    kernels = {
        name: use
        for library in libraries
        for name, use in resources(cuobjdump("-res-usage", library)).items()
    }
    assert sum("device_kernel" in name for name in kernels) == len(tile_files("sm90_")) > 0
    for stage in STAGES:
        assert any(stage in name for name in kernels), stage
    stages = manifest.read_manifest(
        NAME
    ).stages  # a profile's trace names GEMMs as the library does
    assert {stage_of(name, stages) for name in kernels if "device_kernel" in name} == {
        "gemm1, gemm2"
    }
    spilled = {name: use for name, use in kernels.items() if use[1] or use[2]}
    assert not spilled, spilled
    for function in cuobjdump("-sass", libraries[0]).split("Function : ")[1:]:
        name = function.split(maxsplit=1)[0]
        if "device_kernel" in name:
            assert "QGMMA" in function and "UTMALDG" in function, name
            assert "ACQBULK" in function, f"{name} does not wait for the stage before it"


@compiles("sm_100")
def test_blackwell_gemm_compiles_behind_the_same_interface(build_module):
    """A port that stopped compiling. It has never been run."""
    kernels = resources(cuobjdump("-res-usage", build_module.build("sm_100")[0]))
    assert sum("device_kernel" in name for name in kernels) == 1
    assert any("write_scale_layouts" in name for name in kernels)


@compiles("sm_90")
def test_every_chosen_tile_is_compiled(layer):
    """Some token count asks for a tile that is not in the build."""
    module = sys.modules[layer._callable.__module__]
    names = {
        name for _, *pair in sys.modules[module.choose_tiles.__module__].TABLE for name in pair
    }
    assert names
    addresses = {name: module._gemms.find_tile(name) for name in names}
    assert len(set(addresses.values())) == len(names) and all(addresses.values())
    with pytest.raises(ValueError, match="nonsense"):
        module._gemms.find_tile("nonsense")


@compiles("sm_90")
def test_tensors_that_are_not_on_a_gpu_are_refused(layer):
    """A crash in the GPU, or a trace, instead of a line naming the argument."""
    given = layer_inputs.arguments("full", 2, "cpu")
    with pytest.raises(ValueError, match="CUDA"):
        layer(*given.values())
    faults = {
        "routing_bias": [torch.zeros(256)],
        "hidden_states_scale": [torch.zeros(56, 3)],
        "routing_logits": [None],
    }
    faults |= {"local_expert_offset": [225, True], "routed_scaling_factor": ["2.5", True]}
    faults |= {"gemm1_weights": [given["gemm1_weights"][:, :512].contiguous()]}
    for name, value in ((name, value) for name, values in faults.items() for value in values):
        with pytest.raises(ValueError, match=f"^{name}: "):
            layer(*(given | {name: value}).values())


def test_what_is_missing_to_compile_is_named(build_module, monkeypatch, tmp_path):
    """Which headers to install."""
    monkeypatch.setattr(build_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match="flashinfer-python"):
        build_module.build("sm_90")
    empty = type("Spec", (), {"submodule_search_locations": [str(tmp_path)]})
    monkeypatch.setattr(build_module.importlib.util, "find_spec", lambda name: empty)
    with pytest.raises(RuntimeError, match=re.escape(str(tmp_path))):
        build_module.build("sm_90")


@pytest.mark.skipif(
    importlib.util.find_spec("flashinfer") is None, reason="flashinfer-python is not installed"
)
def test_what_decides_the_library(build_module, monkeypatch):
    """A library for another GPU, or of CUTLASS headers that were replaced since;
    minutes of compiling for each model, of the same GEMMs."""
    asked = []
    monkeypatch.setattr(
        build_module, "build_library", lambda *args, **options: asked.append((*args, options))
    )
    for hardware in ("sm_90", "sm_100"):
        build_module.build(hardware)
    for number, ours, others in (
        ("9.0a", "gemms/sm90_", "gemms/sm100_"),
        ("10.0a", "gemms/sm100_", "gemms/sm90_"),
    ):
        (gemms_name, gemms, _), (layer_name, layer, _) = pair = asked[:2]
        del asked[:2]
        assert (gemms_name, layer_name) == (f"{NAME}_gemms", NAME)
        assert (
            "layer.cu" in layer
            and "common/cuda/problem.cuh" in layer
            and "common/cuda/problem.cuh" not in gemms
        )
        assert (
            any(path.startswith(ours) for path in gemms)
            and "gemms/grouped_gemm.cuh" in gemms.keys() & layer.keys()
        )
        for _, texts, options in pair:
            assert options["architecture"] == number and not any(
                path.startswith(others) for path in texts
            )
            assert "CUTLASS_MAJOR" in options["headers_version"]


def test_a_single_folder_has_the_same_libraries(build_module, monkeypatch):
    """A submission, whose files all lie beside main.py, that does not build."""
    named = {
        name: {Path(path).name for path in texts}
        for name, texts in build_module.sources("sm_90").items()
    }
    flat = {
        Path(path).name: ""
        for path in build_module.read_sources(Path(build_module.__file__).parent)
    }
    monkeypatch.setattr(build_module, "read_sources", lambda folder: flat)
    assert named == {name: {*texts} for name, texts in build_module.sources("sm_90").items()}
