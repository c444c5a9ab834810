"""cutlass_grouped where there is no GPU: it compiles, refuses bad input, and says why it cannot
run.
"""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from ahead_of_time import cuobjdump, resources
from flashinfer_bench.compile import BuilderRegistry
from layer_inputs import arguments as layer_arguments
from moebench.core import paths
from moebench.operators import catalogue
from moebench.packing import manifest, pack
from moebench.profiling.stages import stage_of
from packed_sources import include_flags, packed_texts, write_texts

NAME = "cutlass_grouped"
STAGES = ("route_kernel", "permute_kernel", "swiglu_quant_kernel", "combine_kernel")
FLAGS = [
    "-std=c++17",
    "-O3",
    "-DNDEBUG",
    "--expt-relaxed-constexpr",
    "-Xcompiler",
    "-fPIC",
]
HOPPER = "-gencode=arch=compute_90a,code=sm_90a"

needs_nvcc = pytest.mark.skipif(
    shutil.which("nvcc") is None, reason="nvcc is not on the PATH"
)
needs_cutlass = pytest.mark.skipif(
    importlib.util.find_spec("flashinfer") is None,
    reason="needs the CUTLASS headers of flashinfer-python",
)


def compiles(architecture):
    """Mark a test that compiles the library for minutes; one worker does it for all tests of an
    architecture.
    """

    def decorate(test):
        one_worker = pytest.mark.xdist_group(f"cutlass_grouped {architecture}")
        return pytest.mark.slow(one_worker(needs_nvcc(needs_cutlass(test))))

    return decorate


@pytest.fixture
def build_module(packed_module):
    """build.py of the packed solution, which is not compiled by that."""
    return packed_module(NAME, "build")


@pytest.fixture(scope="module")
def layer():
    """What FIB builds; compiled for sm_90a once for each content of the sources."""
    packed = pack.pack(NAME)["full"]
    return BuilderRegistry.get_instance().build(catalogue.definition("full"), packed)


def is_gemm(kernel):
    return "device_kernel" in kernel


def assert_stages_without_spills(kernels):
    """Check that all stages are there, and no kernel has a stack or local memory."""
    for stage in STAGES:
        assert any(stage in name for name in kernels), stage
    for name, (_, stack, local) in kernels.items():
        assert stack == 0, name
        assert local == 0, name


# ---- the choice of a tile ----

TILES = [
    ("full", 0, "pingpong_swap_ab_16"),
    ("full", 256, "pingpong_swap_ab_16"),
    ("full", 257, "pingpong_swap_ab_32"),
    ("full", 641, "pingpong_64_rows"),
    ("full", 1537, "cooperative_128_rows"),
    ("kimi-k2-ep1", 384, "pingpong_swap_ab_16"),  # 8 rows of each of 384 experts
    ("qwen3-next", 102, "pingpong_swap_ab_16"),  # ten experts of 128 for a token
    ("qwen3-next", 103, "pingpong_swap_ab_32"),
]


@pytest.mark.parametrize(("layer_key", "num_tokens", "tile"), TILES)
def test_tiles_go_by_the_rows_of_an_expert(layer_key, num_tokens, tile, packed_module):
    """Catches tiles of 128 rows for experts with a few, or the other way round."""
    tiles = packed_module(NAME, "tiles", layer_key)
    assert tiles.choose_tiles(num_tokens) == (tile, tile)


# ---- what is compiled ----


# Renorm routing, 128 and 384 experts; what is built below is of "full".
OTHER_LAYERS = ["kimi-k2-ep1", "minimax-m2", "qwen3-next"]


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize("layer_key", OTHER_LAYERS)
def test_stages_compile_for_hopper_and_do_not_spill(layer_key, tmp_path):
    """Catches a first call that dies in nvcc. The GEMMs take minutes and are tested below."""
    write_texts(tmp_path, packed_texts(NAME, layer_key))
    built = tmp_path / "layer.o"
    flags = [*FLAGS, HOPPER, *include_flags(tmp_path)]

    command = ["nvcc", *flags, "-c", tmp_path / "layer.cu", "-o", built]
    done = subprocess.run(command, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert_stages_without_spills(resources(cuobjdump("-res-usage", built)))


@compiles("sm_90")
def test_hopper_build_has_every_gemm_and_does_not_spill(build_module):
    """Catches a first call that dies in nvcc, or a tile that is not built."""
    sources = (paths.SOLUTIONS / NAME / "gemms").glob("sm90_*_*.cu")
    tile_files = [path for path in sources if "_tiles" not in path.name]

    kernels = {}
    for library in build_module.build("sm_90"):
        kernels |= resources(cuobjdump("-res-usage", library))

    assert_stages_without_spills(kernels)
    gemms = list(filter(is_gemm, kernels))
    assert len(gemms) == len(tile_files) > 0
    # A profile's trace names GEMMs as the library does.
    stages = manifest.read_manifest(NAME).stages
    assert {stage_of(name, stages) for name in gemms} == {"gemm1, gemm2"}


@compiles("sm_90")
def test_hopper_gemms_use_the_tensor_cores_and_wait_for_the_stage_before(build_module):
    """Catches a GEMM several times slower than it can be, or one that reads too early."""
    library, _ = build_module.build("sm_90")
    functions = cuobjdump("-sass", library).split("Function : ")[1:]
    gemms = []
    for function in functions:
        name, *_ = function.split(maxsplit=1)
        if is_gemm(name):
            gemms.append(function)
    assert gemms
    for gemm in gemms:
        assert "QGMMA" in gemm
        assert "UTMALDG" in gemm
        assert "ACQBULK" in gemm


@compiles("sm_100")
def test_blackwell_gemm_compiles_behind_the_same_interface(build_module):
    """Catches a port that stopped compiling. It has never been run."""
    kernels = resources(cuobjdump("-res-usage", build_module.build("sm_100")[0]))
    assert len(list(filter(is_gemm, kernels))) == 1
    assert any("write_scale_layouts" in name for name in kernels)


@compiles("sm_90")
def test_every_chosen_tile_is_compiled(layer):
    """Catches a token count that asks for a tile which is not in the build."""
    main = sys.modules[layer._callable.__module__]
    names = set()
    for _, *tiles in sys.modules[main.choose_tiles.__module__].TABLE:
        names |= set(tiles)

    addresses = {main._gemms.find_tile(name) for name in names}

    assert names
    assert len(addresses) == len(names)
    assert all(addresses)
    with pytest.raises(ValueError, match="nonsense"):
        main._gemms.find_tile("nonsense")


# ---- what is refused ----


@compiles("sm_90")
def test_tensors_that_are_not_on_a_gpu_are_refused(layer):
    """Catches a crash in the GPU, or a trace, instead of a line naming the argument."""
    with pytest.raises(ValueError, match="CUDA"):
        layer(*layer_arguments("full", 2, "cpu").values())


def test_headers_that_are_not_installed_are_named(build_module, monkeypatch):
    monkeypatch.setattr(build_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match="flashinfer-python"):
        build_module.build("sm_90")


def test_a_package_without_headers_is_named(build_module, monkeypatch, tmp_path):
    empty = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(build_module.importlib.util, "find_spec", lambda name: empty)
    with pytest.raises(RuntimeError, match=str(tmp_path)):
        build_module.build("sm_90")


# ---- what decides the libraries ----

ARCHITECTURES = [("sm_90", "9.0a", "gemms/sm90_"), ("sm_100", "10.0a", "gemms/sm100_")]


@needs_cutlass
@pytest.mark.parametrize(("hardware", "architecture", "gemms"), ARCHITECTURES)
def test_what_decides_a_library(
    build_module, monkeypatch, hardware, architecture, gemms
):
    """Catches a library for another GPU, or of CUTLASS headers that were replaced since."""
    texts = {}
    options = {}

    def build_library(name, sources, **keywords):
        texts[name] = sources
        options[name] = keywords

    monkeypatch.setattr(build_module, "build_library", build_library)
    build_module.build(hardware)

    assert texts.keys() == {NAME, f"{NAME}_gemms"}
    for name in texts:
        assert options[name]["architecture"] == architecture
        assert "CUTLASS_MAJOR" in options[name]["headers_version"]
        assert "gemms/grouped_gemm.cuh" in texts[name]
        gpu_sources = {path for path in texts[name] if path.startswith("gemms/sm")}
        assert all(path.startswith(gemms) for path in gpu_sources)


@needs_cutlass
def test_the_gemms_do_not_depend_on_the_definition(build_module):
    """Catches minutes of compiling for each model, of the same GEMMs."""
    sources = build_module.sources("sm_90")
    assert "common/cuda/layer/problem.cuh" in sources[NAME]
    assert "common/cuda/layer/problem.cuh" not in sources[f"{NAME}_gemms"]


def test_a_single_folder_has_the_same_libraries(build_module, monkeypatch):
    """Catches a submission, whose files all lie beside main.py, that does not build."""

    def file_names():
        names = {}
        for library, texts in build_module.sources("sm_90").items():
            names[library] = {Path(path).name for path in texts}
        return names

    expected = file_names()
    texts = build_module.read_sources(Path(build_module.__file__).parent)
    flat = {Path(path).name: "" for path in texts}
    monkeypatch.setattr(build_module, "read_sources", lambda folder: flat)

    assert file_names() == expected
