#include "core/describe/scale_shapes.h"

#include <string_view>

#include "base/checked.h"
#include "base/message.h"

namespace regard {

void set_scale_extents(const TensorView& rows, ScaleLayout layout, Extent of_rows,
                       Extent of_columns, Extents* extents) noexcept {
  const std::int64_t head_dim = rows.shape[3];
  (*extents)[of_rows] = rows.shape[2];
  (*extents)[of_columns] = saturating_mul(ceil_div(head_dim, kGroupSize), 2);
  const ScaleBlock block = block_of(layout);
  if (rows.dtype == Dtype::kU4 || block.columns == 0) return;
  (*extents)[of_rows] = ceil_div(rows.shape[2], block.rows);
  (*extents)[of_columns] = ceil_div(head_dim, block.columns);
}

Status check_scale_shape(const char* where, ScaleLayout layout, const NamedView& rows,
                         const NamedView& scales) {
  const TensorView& view = scales.view;
  const bool of_groups = rows.view.dtype == Dtype::kU4;
  const bool of_blocks = !of_groups && layout != ScaleLayout::kRows;
  if (!view.present()) return {};
  if (view.rank == (of_groups || of_blocks ? 4 : 3)) {
    if (view.rank == 3 || view.strides[3] == 1 || view.shape[3] <= 1) return {};
    return invalid(where, "last stride of ", scales.name, " (", view.strides[3],
                   ") must be 1 where ", of_groups ? rows.name : "scale_layout", " is ",
                   of_groups ? "u4" : to_string(layout));
  }
  if (of_blocks) {
    return invalid(where, "rank of ", scales.name, " (", view.rank,
                   ") must be 4, with a scale for each block, where scale_layout is ",
                   to_string(layout));
  }
  const bool of_keys = std::string_view(scales.name) != "scales_q" &&
                       std::string_view(scales.name) != "scales_d_out";
  const char* const expected = of_groups ? "4, [entries,Hkv,rows,2*groups],"
                               : of_keys ? "3, [entries,Hkv,1|rows],"
                                         : "3, [B,Hq,Sq],";
  return invalid(where, "rank of ", scales.name, " (", view.rank, ") must be ", expected, " where ",
                 rows.name, " is ", to_string(rows.view.dtype));
}

}  // namespace regard
