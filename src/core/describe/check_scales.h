#pragma once

#include "core/describe/checked_call.h"
#include "regard/status.h"

// The data of scales of rows, columns and blocks, and of rows that are quantised with them.

namespace regard {

/// Of k or v. Those of keys that a sequence has before new rows bring theirs. Lengths and pages are
/// checked before; what no row sees may lie in no page.
Status check_row_scales(const TensorView& scales, CheckedCall* call, const char* name);
/// Those of queries that a sequence has. Lengths are checked before.
Status check_query_scales(const TensorView& scales, CheckedCall* call, const char* name);
Status check_channel_scales(const TensorView& scales, const char* name, const char* where);
/// Rows that are quantised: no scale suits an infinity, and integers have no NaN.
Status check_new_rows(const TensorView& rows, const char* name, const char* where);

}  // namespace regard
