// sm100_gemm: CUTLASS's FP8 block-scaled grouped GEMM for Blackwell. A build for Blackwell would have this GEMM alone.
//
// Compiled by a test and NEVER RUN: there was no such device. Not part of the build for Hopper.
#include <cutlass/cutlass.h>
#include <cutlass/detail/blockwise_scale_layout.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/gemm/group_array_problem_shape.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include "cutlass_grouped/gemms/grouped_gemm.cuh"
#include "common/cuda/ptx/pdl.cuh"

#if !defined(CUTLASS_ENABLE_GDC_FOR_SM100)
#error "GEMMs overlap the end of the stage before them: compile with -DCUTLASS_ENABLE_GDC_FOR_SM100=1"
#endif

namespace {

using Problem = cutlass::gemm::GroupProblemShape<cute::Shape<int, int, int>>;
using Fp8 = cutlass::float_e4m3_t;
using Bf16 = cutlass::bfloat16_t;
using Tile = cute::Shape<cute::_128, cute::_128, cute::_128>;
using Cluster = cute::Shape<cute::_1, cute::_1, cute::_1>;
// Scales of a row lie together: the other order is copied 16 bytes at a time, which wants rows in multiples of four.
using Scales = cutlass::detail::Sm100BlockwiseScaleConfig<1, 128, 128, cute::UMMA::Major::K, cute::UMMA::Major::K>;
using ScalesA = decltype(Scales::deduce_layoutSFA());
using ScalesB = decltype(Scales::deduce_layoutSFB());

using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm100, cutlass::arch::OpClassTensorOp, Tile, Cluster,
    cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, void*, 0, Bf16, cutlass::layout::RowMajor*, 8,
    cutlass::epilogue::PtrArrayTmaWarpSpecialized1Sm>::CollectiveOp;
using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm100, cutlass::arch::OpClassTensorOp, Fp8, cute::tuple<cutlass::layout::RowMajor*, ScalesA*>, 16,
    Fp8, cute::tuple<cutlass::layout::ColumnMajor*, ScalesB*>, 16, float, Tile, Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
    cutlass::gemm::KernelPtrArrayTmaWarpSpecializedBlockwise1SmSm100>::CollectiveOp;
using Kernel = cutlass::gemm::kernel::GemmUniversal<Problem, Mainloop, Epilogue, void>;
using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

static_assert(sizeof(typename Problem::UnderlyingProblemShape) == sizeof(*GroupTable::problem), "three ints");
static_assert(sizeof(typename Kernel::InternalStrideA) == 8 && sizeof(typename Kernel::InternalStrideB) == 8 &&
                  sizeof(typename Kernel::InternalStrideD) == 8,
              "a stride is one int64");

constexpr int kLayoutThreads = 128;

// The bytes of the scales' layouts, which lie before the kernel's own workspace.
size_t layout_bytes(int groups) { return (groups * (sizeof(ScalesA) + sizeof(ScalesB)) + 127) / 128 * 128; }

// Unlike Hopper's GEMM this one reads the scales' layouts from memory, an array for each operand with an element per
// group.
__global__ void write_scale_layouts(GroupTable table, ScalesA* rows, ScalesB* blocks) {
  pdl_launch_dependents();
  pdl_wait();
  const int group = blockIdx.x * kLayoutThreads + threadIdx.x;
  if (group >= table.groups) return;
  const int* p = table.problem[group];
  const auto shape = cute::make_shape(p[0], p[1], p[2], 1);
  rows[group] = Scales::tile_atom_to_shape_SFA(shape);
  blocks[group] = Scales::tile_atom_to_shape_SFB(shape);
}

// Returns the GEMM's arguments. The table's arrays lie on the device, so nothing in them may be read here.
typename Gemm::Arguments arguments(const GroupTable& t, ScalesA* rows, ScalesB* blocks, int device, int sms) {
  typename Gemm::Arguments a{};
  a.mode = cutlass::gemm::GemmUniversalMode::kGrouped;
  a.problem_shape = {t.groups, reinterpret_cast<typename Problem::UnderlyingProblemShape*>(t.problem), nullptr};
  a.mainloop.ptr_A = reinterpret_cast<const Fp8**>(t.activations);
  a.mainloop.dA = reinterpret_cast<typename Kernel::InternalStrideA*>(t.activations_stride);
  a.mainloop.ptr_B = reinterpret_cast<const Fp8**>(t.weights);
  a.mainloop.dB = reinterpret_cast<typename Kernel::InternalStrideB*>(t.weights_stride);
  a.mainloop.ptr_SFA = t.row_scale;
  a.mainloop.layout_SFA = rows;
  a.mainloop.ptr_SFB = t.block_scale;
  a.mainloop.layout_SFB = blocks;
  a.epilogue.thread.alpha = 1.0f;
  a.epilogue.thread.beta = 0.0f;
  a.epilogue.ptr_D = reinterpret_cast<Bf16**>(t.result);
  a.epilogue.dD = reinterpret_cast<typename Kernel::InternalStrideD*>(t.result_stride);
  a.hw_info.device_id = device;
  a.hw_info.sm_count = sms;
  return a;
}

size_t workspace_bytes(int groups, int sms) {
  GroupTable table = {};
  table.groups = groups;
  return layout_bytes(groups) + Gemm::get_workspace_size(arguments(table, nullptr, nullptr, 0, sms));
}

cudaError_t launch(const GroupTable& table, void* workspace, int device, int sms, cudaStream_t stream) {
  auto* rows = static_cast<ScalesA*>(workspace);
  auto* blocks = reinterpret_cast<ScalesB*>(rows + table.groups);
  cudaLaunchAttribute attribute = pdl_attribute();
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3((table.groups + kLayoutThreads - 1) / kLayoutThreads);
  config.blockDim = dim3(kLayoutThreads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  const cudaError_t e = cudaLaunchKernelEx(&config, write_scale_layouts, table, rows, blocks);
  if (e != cudaSuccess) return e;
  Gemm gemm;
  void* own = static_cast<char*>(workspace) + layout_bytes(table.groups);
  const auto made = gemm.initialize(arguments(table, rows, blocks, device, sms), own, stream);
  if (made != cutlass::Status::kSuccess || gemm.run(stream, nullptr, true) != cutlass::Status::kSuccess)
    return cudaErrorLaunchFailure;
  return cudaSuccess;
}

}  // namespace

const GroupedGemm* const* tiles(int* count) {
  static const GroupedGemm one = {"sm100_128", false, true, &workspace_bytes, &launch};
  static const GroupedGemm* const all[] = {&one};
  *count = 1;
  return all;
}
