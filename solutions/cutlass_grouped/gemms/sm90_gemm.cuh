// sm90_gemm: CUTLASS's FP8 block-scaled grouped GEMM for Hopper, by tile and schedule.
//
// wgmma's M is 64, 128 or 256 in a tile, its N may be as small as 16. A normal tile (many rows) has M rows of the
// activations and N = 128 weight rows. A swap-AB tile (few rows) has M = 128 weight rows and N = 16, 32 or 64 rows, so
// that few rows waste little; its result is written transposed, which is to say row by row again.
#pragma once
#include <cutlass/cutlass.h>
#include <cutlass/detail/blockwise_scale_layout.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/group_array_problem_shape.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include "cutlass_grouped/gemms/sm90_tiles.cuh"

#if !defined(CUTLASS_ENABLE_GDC_FOR_SM90)
#error "GEMMs overlap the end of the stage before them: compile with -DCUTLASS_ENABLE_GDC_FOR_SM90=1"
#endif

template <bool kSwapAB, class Tile_, class Cluster_, class MainloopSchedule, class EpilogueSchedule>
struct GroupedGemmSm90 {
  using Tile = Tile_;
  using Cluster = Cluster_;
  using Problem = cutlass::gemm::GroupProblemShape<cute::Shape<int, int, int>>;
  using Fp8 = cutlass::float_e4m3_t;
  using Bf16 = cutlass::bfloat16_t;
  static constexpr auto kMn = cute::GMMA::Major::MN;
  static constexpr auto kK = cute::GMMA::Major::K;

  // A scale for each row and 128 of k on the activations' side, for each 128 x 128 block on the weights'.
  using Scales = cute::conditional_t<kSwapAB, cutlass::detail::Sm90BlockwiseScaleConfig<128, 1, 128, kK, kMn>,
                                     cutlass::detail::Sm90BlockwiseScaleConfig<1, 128, 128, kMn, kK>>;
  using ScalesA = decltype(Scales::deduce_layoutSFA());
  using ScalesB = decltype(Scales::deduce_layoutSFB());
  // The result's rows are contiguous either way; with swap-AB they are the columns of D.
  using LayoutD = cute::conditional_t<kSwapAB, cutlass::layout::ColumnMajor, cutlass::layout::RowMajor>;

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

  static_assert(sizeof(typename Problem::UnderlyingProblemShape) == sizeof(*GroupTable::problem), "three ints");
  static_assert(sizeof(typename Kernel::InternalStrideA) == 8 && sizeof(typename Kernel::InternalStrideB) == 8 &&
                    sizeof(typename Kernel::InternalStrideD) == 8,
                "a stride is one int64");
  static_assert(Kernel::SharedStorageSize <= 227 * 1024, "a CTA may have 227 KB of shared memory");

  // The table's arrays lie on the device: nothing of them may be read here.
  static Arguments arguments(const GroupTable& t, int device, int sms) {
    auto fp8 = [](const void** p) { return reinterpret_cast<const Fp8**>(p); };
    auto stride = [](int64_t* p, auto type) { return reinterpret_cast<decltype(type)*>(p); };
    const void **a_of = kSwapAB ? t.weights : t.activations, **b_of = kSwapAB ? t.activations : t.weights;
    int64_t* a_stride = kSwapAB ? t.weights_stride : t.activations_stride;
    int64_t* b_stride = kSwapAB ? t.activations_stride : t.weights_stride;
    const float** a_scale = kSwapAB ? t.block_scale : t.row_scale;
    const float** b_scale = kSwapAB ? t.row_scale : t.block_scale;
    Arguments args{};
    args.mode = cutlass::gemm::GemmUniversalMode::kGrouped;
    args.problem_shape = {t.groups, reinterpret_cast<typename Problem::UnderlyingProblemShape*>(t.problem), nullptr};
    // The kernel derives the scales' layouts from each problem; their pointers are never read.
    args.mainloop = {fp8(a_of), stride(a_stride, typename Kernel::InternalStrideA{}),
                     fp8(b_of), stride(b_stride, typename Kernel::InternalStrideB{}),
                     a_scale, nullptr, b_scale, nullptr};
    args.epilogue.thread.alpha = 1.0f;
    args.epilogue.thread.beta = 0.0f;
    args.epilogue.ptr_C = nullptr;
    args.epilogue.dC = nullptr;
    args.epilogue.ptr_D = reinterpret_cast<Bf16**>(t.result);
    args.epilogue.dD = stride(t.result_stride, typename Kernel::InternalStrideD{});
    args.hw_info.device_id = device;
    args.hw_info.sm_count = sms;
    // neighbouring CTAs share the larger operand: the weights
    using Raster = decltype(args.scheduler.raster_order);
    args.scheduler.raster_order = kSwapAB ? Raster::AlongN : Raster::AlongM;
    return args;
  }

  static size_t workspace_bytes(int groups, int sms) {
    GroupTable table = {};
    table.groups = groups;
    return Kernel::get_workspace_size(arguments(table, 0, sms));
  }

  // Of a call; encoding its TMA descriptors takes microseconds, and scratch often lies where it lay in the call before.
  struct Encoded {
    const void *table = nullptr, *workspace = nullptr;
    int groups = 0, device = -1;
    Params params;
  };

  static cudaError_t launch(const GroupTable& table, void* workspace, int device, int sms, cudaStream_t stream) {
    thread_local int prepared_device = -1;
    thread_local Encoded last[2];  // gemm1 and gemm2 may have the same tile
    thread_local int older = 0;
    if (prepared_device != device) {
      const auto smem = cudaFuncAttributeMaxDynamicSharedMemorySize;
      const cudaError_t e = cudaFuncSetAttribute(cutlass::device_kernel<Kernel>, smem, Kernel::SharedStorageSize);
      if (e != cudaSuccess) return e;
      prepared_device = device;
    }
    auto is_this = [&](const Encoded& e) {
      return e.table == table.problem && e.workspace == workspace && e.groups == table.groups && e.device == device;
    };
    const int at = is_this(last[0]) ? 0 : is_this(last[1]) ? 1 : older;
    Encoded& encoded = last[at];
    if (!is_this(encoded))
      encoded = {table.problem, workspace, table.groups, device,
                 Kernel::to_underlying_arguments(arguments(table, device, sms), workspace)};
    older = 1 - at;
    cudaLaunchAttribute attributes[2] = {pdl_attribute(), {}};
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {cute::size<0>(Cluster{}), cute::size<1>(Cluster{}), 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = Kernel::get_grid_shape(encoded.params);
    config.blockDim = Kernel::get_block_shape();
    config.dynamicSmemBytes = Kernel::SharedStorageSize;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 2;
    return cudaLaunchKernelEx(&config, cutlass::device_kernel<Kernel>, encoded.params);
  }

  static constexpr GroupedGemm described(const char* name) {
    return {name, kSwapAB, false, &workspace_bytes, &launch};
  }
};

// The two schedules: two consumer warpgroups with a tile each, interleaved, or with one tile together.
template <bool kSwapAB, int kM, int kN, int kClusterM = 1, int kClusterN = 1>
using PingpongGemm =
    GroupedGemmSm90<kSwapAB, cute::Shape<cute::Int<kM>, cute::Int<kN>, cute::_128>,
                    cute::Shape<cute::Int<kClusterM>, cute::Int<kClusterN>, cute::_1>,
                    cutlass::gemm::KernelPtrArrayTmaWarpSpecializedPingpongFP8Blockwise,
                    cutlass::epilogue::PtrArrayTmaWarpSpecializedPingpong>;
template <bool kSwapAB, int kM, int kN, int kClusterM = 1, int kClusterN = 1>
using CooperativeGemm =
    GroupedGemmSm90<kSwapAB, cute::Shape<cute::Int<kM>, cute::Int<kN>, cute::_128>,
                    cute::Shape<cute::Int<kClusterM>, cute::Int<kClusterN>, cute::_1>,
                    cutlass::gemm::KernelPtrArrayTmaWarpSpecializedCooperativeFP8Blockwise,
                    cutlass::epilogue::PtrArrayTmaWarpSpecializedCooperative>;
