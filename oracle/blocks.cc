#include "oracle/blocks.h"

#include <cstdint>
#include <utility>

#include "oracle/rules.h"

namespace regard::oracle {
namespace {

/// Row-major and f32, of the shape of `rows`.
TensorView spread(const TensorView& scales, const TensorView& rows, ScaleLayout layout,
                  std::vector<std::vector<char>>* memory) {
  const std::int64_t columns = layout == ScaleLayout::k1x32 ? 32 : 128;
  const std::int64_t height = layout == ScaleLayout::k128x128 ? 128 : 1;
  TensorView each = rows;
  each.dtype = Dtype::kF32;
  std::int64_t stride = 1;
  for (int dim = kMaxRank - 1; dim >= 0; --dim) {
    each.strides[dim] = stride;
    stride *= each.shape[dim];
  }
  std::vector<char> bytes(static_cast<std::size_t>(stride + 1) * sizeof(float));
  each.data = bytes.data();
  for (std::int64_t b = 0; b < rows.shape[0]; ++b) {
    for (std::int64_t h = 0; h < rows.shape[1]; ++h) {
      for (std::int64_t i = 0; i < rows.shape[2]; ++i) {
        for (std::int64_t d = 0; d < rows.shape[3]; ++d) {
          set_element(each, {b, h, i, d}, element(scales, b, h, i / height, d / columns));
        }
      }
    }
  }
  memory->push_back(std::move(bytes));  // which does not move its elements
  return each;
}

}  // namespace

AttentionGradRequest with_spread_scales(AttentionGradRequest request,
                                        std::vector<std::vector<char>>* memory) {
  const ScaleLayout layout = request.options.scale_layout;
  const std::pair<TensorView*, const TensorView*> all[] = {{&request.scales_q, &request.q},
                                                           {&request.scales_k, &request.k},
                                                           {&request.scales_v, &request.v},
                                                           {&request.scales_d_out, &request.d_out}};
  for (const auto& [scales, rows] : all) {
    const bool in_blocks = layout != ScaleLayout::kRows && scales->rank == kMaxRank;
    if (!scales->present() || !in_blocks || rows->rank != kMaxRank) continue;
    if (rows->dtype != Dtype::kU4) *scales = spread(*scales, *rows, layout, memory);
  }
  return request;
}

}  // namespace regard::oracle
