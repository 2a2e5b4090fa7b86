#include <cuda_runtime_api.h>

#include "backends/cuda_flash/launch.h"
#include "backends/cuda_flash/wgmma_launch.h"

// After wgmma_block.h, which says which products CuTe declares.
#include <cute/atom/mma_traits_sm90_gmma.hpp>

namespace regard::cuda_flash {
namespace {

/// Where an element of a box lies, as copies write it and tests/cuda reads it.
constexpr int at_in_box(int row, int column) {
  return row * cuda::kBoxColumns + ((column / 8) ^ (row % 8)) * 8 + column % 8;
}

/// CuTe's layouts of operands of wgmma are the same, of both directions.
template <class Atom, bool kColumnFirst>
constexpr bool agrees_with_cute() {
  constexpr auto kPlain = Atom{}.layout_b();
  constexpr auto kSwizzle = Atom{}.layout_a();  // of bytes
  for (int row = 0; row < 8; ++row) {
    for (int column = 0; column < cuda::kBoxColumns; ++column) {
      const int plain = kColumnFirst ? int(kPlain(column, row)) : int(kPlain(row, column));
      const int found = int(kSwizzle(plain * 2)) / 2;
      if (found != at_in_box(row, column)) return false;
    }
  }
  return true;
}
namespace Gmma = cute::SM90::GMMA;
static_assert(agrees_with_cute<Gmma::Layout_K_SW128_Atom<cute::bfloat16_t>, false>());
static_assert(agrees_with_cute<Gmma::Layout_MN_SW128_Atom<cute::bfloat16_t>, true>());

}  // namespace

extern template void run_wgmma_dims<128>(WgmmaRunner&, const ForwardArgs&, Schedule);
extern template void run_wgmma_dims<256>(WgmmaRunner&, const ForwardArgs&, Schedule);

/// By way of the runtime: no program links the driver.
EncodeMap encode_map() {
  static const EncodeMap found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                               12000, cudaEnableDefault, &result);
    if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) function = nullptr;
    return reinterpret_cast<EncodeMap>(function);
  }();
  return found;
}

CUtensorMap WgmmaRunner::map(const cuda::TensorBox& box) {
  CUtensorMap map{};
  cuuint64_t extents[4], strides[3];
  for (int d = 0; d < 4; ++d) extents[d] = static_cast<cuuint64_t>(box.extent[d]);
  for (int d = 1; d < 4; ++d) strides[d - 1] = static_cast<cuuint64_t>(box.stride[d]);
  const cuuint32_t sizes[4] = {cuda::kBoxColumns, static_cast<cuuint32_t>(box.rows), 1, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  // Elements are moved, not computed with: bf16 stands for f16, too.
  const bool is_made =
      encode_ != nullptr && encode_(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, box.base, extents,
                                    strides, sizes, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                    CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
  is_mapped_ = is_mapped_ && is_made;
  return map;
}

Status WgmmaRunner::status() const {
  if (is_mapped_) return run_.status("flash");
  return Status(StatusCode::kInternal, "[execute] flash: the driver made no tensor map");
}

Status wgmma_forward(const ForwardArgs& args, Schedule schedule, void* stream) {
  WgmmaRunner run(stream);
  run_wgmma(run, args, schedule);
  return run.status();
}

}  // namespace regard::cuda_flash
