#include "cpu/packed_rows.h"

#include <cstdint>
#include <limits>

#include "problem/element.h"

namespace regard::cpu {
namespace {

using problem::Problem;
using problem::View;

/// Calls f(address) for each row from the end of the last sequence to `total`.
template <class F>
void for_rows_past_end(const Problem& p, const View& view, std::int64_t total, std::int64_t heads,
                       F f) noexcept {
  if (!view.present || view.starts.data == nullptr) return;
  const std::int64_t bytes = problem::element_bytes(view.type);
  for (std::int64_t row = problem::row_start(view.starts, p.batch); row < total; ++row) {
    for (std::int64_t h = 0; h < heads; ++h) {
      f(view.data + (row * view.stride[2] + h * view.stride[1]) * bytes);
    }
  }
}

/// Clears the `size` elements of each of these rows.
void clear_past_end(const Problem& p, const View& view, std::int64_t total, std::int64_t heads,
                    std::int64_t size) noexcept {
  for_rows_past_end(p, view, total, heads,
                    [&](char* row) { problem::clear_row(view.type, row, size); });
}

/// The numbers of rows that see nothing.
void set_minus_infinity_past_end(const Problem& p, const View& view) noexcept {
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  for_rows_past_end(p, view, p.total_q, p.num_heads_q, [&](char* number) {
    problem::store_row(view.type, number, &kMinusInfinity, 0, 1);
  });
}

}  // namespace

void clear_amax(const View& amax, std::int64_t n) noexcept {
  for (std::int64_t x = 0; amax.present && x < n; ++x) {
    *problem::element_at<float>(amax, x * amax.stride[0]) = 0.0f;
  }
}

void clear_outputs_past_end(const Problem& p) noexcept {
  clear_past_end(p, p.out, p.total_q, p.num_heads_q, p.head_dim_v);
  set_minus_infinity_past_end(p, p.lse);
  set_minus_infinity_past_end(p, p.stats);
  View sums = p.stats;
  sums.data += p.stats.stride[3] * problem::element_bytes(p.stats.type);
  clear_past_end(p, sums, p.total_q, p.num_heads_q, 1);
}

void clear_gradients_past_end(const problem::GradProblem& g) noexcept {
  const Problem& p = g.problem;
  clear_past_end(p, g.d_q, p.total_q, p.num_heads_q, p.head_dim_qk);
  clear_past_end(p, g.d_k, p.total_kv, p.num_heads_kv, p.head_dim_qk);
  clear_past_end(p, g.d_v, p.total_kv, p.num_heads_kv, p.head_dim_v);
}

}  // namespace regard::cpu
