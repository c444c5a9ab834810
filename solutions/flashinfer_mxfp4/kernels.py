"""kernels: write C++ sources of the CUTLASS kernels for MXFP4 weights, and of the list of them that
FlashInfer's tuner chooses from.

build.py calls `write_sources`. FlashInfer generates sources with eight kernels each, for 29 tiles
and four cluster shapes. Here each kernel is a source of its own, so that they compile in parallel.
The list has only these kernels, because launching one that is not compiled would end the process.
"""

from dataclasses import dataclass

PINGPONG = "Pingpong"
COOPERATIVE = "Cooperative"
# only with FP8 activations: PREFILL for K up to 384, ROLLING beyond
PREFILL = "SINGLE_WARPGROUP_PREFILL"
ROLLING = "SINGLE_WARPGROUP_ROLLING"

INCLUDE = "tensorrt_llm/kernels/cutlass_kernels/"
LAUNCHER = """#include "{include}moe_gemm/launchers/moe_gemm_tma_ws_mixed_input_launcher.inl"

namespace tensorrt_llm::kernels::cutlass_kernels_oss {{
template void sm90_generic_mixed_moe_{kind}_kernelLauncher<
    {arguments}>(
    GroupedGemmInput<{activations}, SafeFP4, __nv_bfloat16, __nv_bfloat16>,
    TmaWarpSpecializedGroupedGemmInput, int, size_t*);
}}  // namespace tensorrt_llm::kernels::cutlass_kernels_oss
"""
CANDIDATES = """#define get_candidate_configs every_candidate
#include "{include}cutlass_heuristic.cpp"
#undef get_candidate_configs

namespace tensorrt_llm::kernels::cutlass_kernels {{
std::vector<CutlassGemmConfig> get_candidate_configs(
    int sm, int max_split_k, CutlassGemmConfig::CandidateConfigTypeParam kind) {{
  using Tile = CutlassTileConfigSM90;
  static constexpr Tile compiled[] = {{{tiles}}};
  std::vector<CutlassGemmConfig> candidates;
  for (CutlassGemmConfig const& config : every_candidate(sm, max_split_k, kind)) {{
    auto const* tile = std::find(std::begin(compiled), std::end(compiled), config.tile_config_sm90);
    bool const is_alone = config.cluster_shape == ClusterShape::ClusterShape_1x1x1;
    if (is_alone && tile != std::end(compiled)) candidates.push_back(config);
  }}
  return candidates;
}}
}}  // namespace tensorrt_llm::kernels::cutlass_kernels
"""


@dataclass(frozen=True)
class Kernel:
    """A CUTLASS kernel to compile.

    tile: rows of the weights, tokens and K that a CTA multiplies at a time. schedule: PINGPONG,
    COOPERATIVE, PREFILL or ROLLING.
    """

    tile: tuple[int, int, int]
    schedule: str

    @property
    def is_single(self):
        """Whether one warpgroup does everything; FlashInfer launches such kernels differently."""
        return self.schedule in (PREFILL, ROLLING)

    @property
    def name(self):
        """Tile and schedule as text, such as "128x16x256_Cooperative"."""
        tile = "x".join(map(str, self.tile))
        return f"{tile}_{self.schedule}"


def launcher(kernel, activations, scales):
    """Return the source of one kernel.

    activations: C++ type of the activations. scales: CUTLASS's mode of applying the weights'
    scales, "" for the default.
    """
    mainloop = PINGPONG if kernel.is_single else kernel.schedule
    arguments = [
        *(activations, "SafeFP4", "__nv_bfloat16"),
        "tensorrt_llm::cutlass_extensions::EpilogueOpDefault",
        shape(kernel.tile),
        shape((1, 1, 1)),
        f"cutlass::gemm::KernelTmaWarpSpecialized{mainloop}",
        "cutlass::epilogue::TmaWarpSpecializedCooperative",
        "cutlass::WeightOnlyQuantOp::FINEGRAINED_SCALE_ONLY",
    ]
    if scales:
        arguments.append(f"cutlass::gemm::collective::MixedInputScaleMode::{scales}")
    if kernel.is_single:
        schedules = "tensorrt_llm::cutlass_extensions::MainloopScheduleType"
        arguments.append(f"{schedules}::{kernel.schedule}")

    kind = "small_k" if kernel.is_single else "gemm"
    joined = ",\n    ".join(arguments)
    return LAUNCHER.format(
        include=INCLUDE, kind=kind, arguments=joined, activations=activations
    )


def shape(sizes):
    """Return the C++ type cute::Shape of three sizes."""
    numbers = ", ".join(f"cute::Int<{size}>" for size in sizes)
    return f"cute::Shape<{numbers}>"


def candidates(kernels):
    """Return the source of the tuner's list of candidates, reduced to some kernels."""
    tiles = []
    for kernel in kernels:
        if not kernel.is_single:
            rows, tokens, k = kernel.tile
            tiles.append(f"Tile::CtaShape{rows}x{tokens}x{k}B")
    return CANDIDATES.format(include=INCLUDE, tiles=", ".join(tiles))


def write_sources(folder, kernels, activations, scales):
    """Write a source for each kernel and one for the list of them, and return their paths.

    A file that has the right content already is left alone, so that it is not compiled again.
    activations, scales: see `launcher`.
    """
    texts = {"candidates.cpp": candidates(kernels)}
    for kernel in kernels:
        texts[f"{kernel.name}.cu"] = launcher(kernel, activations, scales)

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, text in texts.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths
