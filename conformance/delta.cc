#include "conformance/delta.h"

#include "conformance/problem.h"
#include "oracle/number.h"
#include "oracle/row_gradient.h"
#include "regard/params.h"

namespace regard::conformance {
namespace {

/// The packed sequence that a row is of; past the last one, that one.
std::int64_t sequence_of(const AttentionGradRequest& r, std::int64_t row) {
  const TensorView& starts = r.cu_seqlens_q;
  std::int64_t b = 0;
  while (b + 2 < starts.shape[0] && oracle::element(starts, b + 1) <= static_cast<double>(row)) ++b;
  return b;
}

/// Element (b, h, i, d) of d_out, without its descale.
double number_of(const AttentionGradRequest& r, std::int64_t b, std::int64_t h, std::int64_t i,
                 std::int64_t d) {
  const double code = oracle::element(r.d_out, b, h, i, d);
  const TensorView& scales = r.scales_d_out;
  if (!scales.present()) return code;
  const ScaleBlock block = block_of(r.options.scale_layout);
  if (block.columns == 0) return code * oracle::element(scales, b, h, i);
  return code * oracle::element(scales, b, h, i / block.rows, d / block.columns);
}

}  // namespace

void write_delta(const AttentionGradRequest& r) {
  const bool packed = r.delta.rank == 2;  // [Hq,total_q]
  for_each_element(r.delta, [&](const std::int64_t(&at)[kMaxRank], unsigned char* element) {
    double delta = 0.0;
    const std::int64_t b = packed ? 0 : at[0], h = at[packed ? 0 : 1], i = at[packed ? 1 : 2];
    for (std::int64_t d = 0; d < r.out.shape[3]; ++d) {
      const double out = oracle::element(r.out, b, h, i, d);
      // Rows of zeros: d_out may be poison there.
      if (out != 0.0) delta += out * number_of(r, b, h, i, d);
    }
    // Rows without any sequence have zeros, and no descale.
    const bool has_sequence = !packed || r.cu_seqlens_q.shape[0] > 1;
    if (has_sequence) delta *= oracle::descale_of_d_out(r, packed ? sequence_of(r, i) : b, h);
    oracle::encode(delta, element, r.delta.dtype);
  });
}

}  // namespace regard::conformance
