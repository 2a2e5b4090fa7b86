#pragma once

#include "core/describe/tensor_rules.h"
#include "core/describe/view_checks.h"
#include "regard/params.h"

namespace regard {

/// The extents of scales of `rows`, of blocks or of u4, whose rows have several numbers each: of
/// u4 a scale and a minimum for each group.
void set_scale_extents(const TensorView& rows, ScaleLayout layout, Extent of_rows,
                       Extent of_columns, Extents* extents) noexcept;

/// The rank and the last stride of scales, which may be absent: of u4 a scale and a minimum for
/// each group of a row; of the others one for all of it, or for each block.
Status check_scale_shape(const char* where, ScaleLayout layout, const NamedView& rows,
                         const NamedView& scales);

}  // namespace regard
