// sm90_gemm: CUTLASS's FP8 block-scaled grouped product for Hopper, by tile and schedule.
//
// Either operand may be the first one, whose tile is 64, 128 or 256 wide. With the activations first (many rows) a tile
// has rows x 128 weight columns. With the weights first (few rows) it has 128 weight columns x 16, 32 or 64 rows, so
// that few rows waste little; the result is then written transposed, which is to say row by row again.
#pragma once
#include <cutlass/cutlass.h>
#include <cutlass/detail/blockwise_scale_layout.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/group_array_problem_shape.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include "sm90_tiles.cuh"

#if !defined(CUTLASS_ENABLE_GDC_FOR_SM90)
#error "products overlap the end of the stage before them: compile with -DCUTLASS_ENABLE_GDC_FOR_SM90=1"
#endif

template <bool kWeightsFirst, class Tile_, class Cluster_, class MainloopSchedule, class EpilogueSchedule>
struct GroupedGemmSm90 {
  using Tile = Tile_;
  using Cluster = Cluster_;
  using Problem = cutlass::gemm::GroupProblemShape<cute::Shape<int, int, int>>;
  using Fp8 = cutlass::float_e4m3_t;
  using Bf16 = cutlass::bfloat16_t;
  static constexpr auto kMn = cute::GMMA::Major::MN;
  static constexpr auto kK = cute::GMMA::Major::K;

  // A scale for each row and 128 of k on the activations' side, for each 128 x 128 block on the weights'.
  using Scales = cute::conditional_t<kWeightsFirst, cutlass::detail::Sm90BlockwiseScaleConfig<128, 1, 128, kK, kMn>,
                                     cutlass::detail::Sm90BlockwiseScaleConfig<1, 128, 128, kMn, kK>>;
  using ScalesA = decltype(Scales::deduce_layoutSFA());
  using ScalesB = decltype(Scales::deduce_layoutSFB());
  // The result's rows are contiguous either way; with the weights first they are the columns of D.
  using LayoutD = cute::conditional_t<kWeightsFirst, cutlass::layout::ColumnMajor, cutlass::layout::RowMajor>;

  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, LayoutD*, 8, Bf16, LayoutD*, 8,
      EpilogueSchedule>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Fp8, cute::tuple<cutlass::layout::RowMajor*, ScalesA*>, 16,
      Fp8, cute::tuple<cutlass::layout::ColumnMajor*, ScalesB*>, 16, float, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      MainloopSchedule>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<Problem, Mainloop, Epilogue>;
  using Arguments = typename Kernel::Arguments;
  using Params = typename Kernel::Params;

  static_assert(sizeof(typename Problem::UnderlyingProblemShape) == sizeof(GroupTable::problem[0]), "three ints");
  static_assert(sizeof(typename Kernel::InternalStrideA) == 8 && sizeof(typename Kernel::InternalStrideB) == 8 &&
                    sizeof(typename Kernel::InternalStrideD) == 8,
                "a stride is one int64");
  static_assert(Kernel::SharedStorageSize <= 227 * 1024, "a block may have 227 KB of shared memory");

  static Arguments arguments(const GroupTable* table, int device, int multiprocessors) {
    // The table lies on the device: nothing of it may be read here.
    auto* t = const_cast<GroupTable*>(table);
    auto fp8 = [](const void** p) { return reinterpret_cast<const Fp8**>(p); };
    auto stride = [](int64_t* p, auto type) { return reinterpret_cast<decltype(type)*>(p); };
    const void **first = kWeightsFirst ? t->weights : t->activations, **second = kWeightsFirst ? t->activations : t->weights;
    int64_t* first_stride = kWeightsFirst ? t->weights_stride : t->activations_stride;
    int64_t* second_stride = kWeightsFirst ? t->activations_stride : t->weights_stride;
    const float **first_scale = kWeightsFirst ? t->block_scale : t->row_scale;
    const float **second_scale = kWeightsFirst ? t->row_scale : t->block_scale;
    Arguments a{};
    a.mode = cutlass::gemm::GemmUniversalMode::kGrouped;
    a.problem_shape = {kGroups, reinterpret_cast<typename Problem::UnderlyingProblemShape*>(t->problem), nullptr};
    // The kernel derives the scales' layouts from each problem; their pointers are never read.
    a.mainloop = {fp8(first), stride(first_stride, typename Kernel::InternalStrideA{}),
                  fp8(second), stride(second_stride, typename Kernel::InternalStrideB{}),
                  first_scale, nullptr, second_scale, nullptr};
    a.epilogue.thread.alpha = 1.0f;
    a.epilogue.thread.beta = 0.0f;
    a.epilogue.ptr_C = nullptr;
    a.epilogue.dC = nullptr;
    a.epilogue.ptr_D = reinterpret_cast<Bf16**>(t->result);
    a.epilogue.dD = stride(t->result_stride, typename Kernel::InternalStrideD{});
    a.hw_info.device_id = device;
    a.hw_info.sm_count = multiprocessors;
    // neighbouring blocks share the larger operand: the weights
    using Raster = decltype(a.scheduler.raster_order);
    a.scheduler.raster_order = kWeightsFirst ? Raster::AlongN : Raster::AlongM;
    return a;
  }

  static size_t workspace_bytes(int multiprocessors) {
    return Kernel::get_workspace_size(arguments(nullptr, 0, multiprocessors));
  }

  static cudaError_t launch(
      const GroupTable* table, void* workspace, int device, int multiprocessors, cudaStream_t stream) {
    // Encoding the copies' descriptors takes microseconds, and scratch often lies where it lay in the call before.
    struct Kept {
      const GroupTable* table = nullptr;
      void* workspace = nullptr;
      int device = -1;
      Params params;
    };
    thread_local Kept kept;
    if (kept.device != device) {
      const cudaError_t e = cudaFuncSetAttribute(cutlass::device_kernel<Kernel>,
                                                 cudaFuncAttributeMaxDynamicSharedMemorySize, Kernel::SharedStorageSize);
      if (e != cudaSuccess) return e;
    }
    if (kept.device != device || kept.table != table || kept.workspace != workspace) {
      kept.params = Kernel::to_underlying_arguments(arguments(table, device, multiprocessors), workspace);
      kept.table = table, kept.workspace = workspace, kept.device = device;
    }
    cudaLaunchAttribute attributes[2] = {overlapped_launch(), {}};
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {cute::size<0>(Cluster{}), cute::size<1>(Cluster{}), 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = Kernel::get_grid_shape(kept.params);
    config.blockDim = Kernel::get_block_shape();
    config.dynamicSmemBytes = Kernel::SharedStorageSize;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 2;
    return cudaLaunchKernelEx(&config, cutlass::device_kernel<Kernel>, kept.params);
  }

  static constexpr GroupedGemm described(const char* name) {
    return {name, kWeightsFirst, false, &workspace_bytes, &launch};
  }
};

// The two schedules: two consumer warpgroups with a tile each, taking turns, or with one tile together.
template <bool kWeightsFirst, int kM, int kN, int kClusterM = 1, int kClusterN = 1>
using PingpongGemm =
    GroupedGemmSm90<kWeightsFirst, cute::Shape<cute::Int<kM>, cute::Int<kN>, cute::_128>,
                    cute::Shape<cute::Int<kClusterM>, cute::Int<kClusterN>, cute::_1>,
                    cutlass::gemm::KernelPtrArrayTmaWarpSpecializedPingpongFP8Blockwise,
                    cutlass::epilogue::PtrArrayTmaWarpSpecializedPingpong>;
template <bool kWeightsFirst, int kM, int kN, int kClusterM = 1, int kClusterN = 1>
using CooperativeGemm =
    GroupedGemmSm90<kWeightsFirst, cute::Shape<cute::Int<kM>, cute::Int<kN>, cute::_128>,
                    cute::Shape<cute::Int<kClusterM>, cute::Int<kClusterN>, cute::_1>,
                    cutlass::gemm::KernelPtrArrayTmaWarpSpecializedCooperativeFP8Blockwise,
                    cutlass::epilogue::PtrArrayTmaWarpSpecializedCooperative>;
