#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "regard/dtype.h"
#include "regard/status.h"
#include "tools/llm/model_config.h"

namespace llm {

/// Cosines and sines of rotary embedding, [positions, rotary_dim / 2] each.
class RotaryTables {
 public:
  /// Has at least so many positions afterwards. `scale` divides the frequencies, one a pair; empty:
  /// none does.
  regard::Status reserve(const ModelConfig& config, std::span<const float> scale,
                         std::int64_t positions);
  std::int64_t positions() const noexcept { return positions_; }
  const float* cos() const noexcept { return cos_.data(); }
  const float* sin() const noexcept { return sin_.data(); }

 private:
  std::int64_t positions_ = 0;
  std::vector<float> cos_, sin_;
};

/// Rows of heads beside one another, of f32, bf16 or f16.
struct HeadRows {
  void* data;
  regard::Dtype dtype;
  std::int64_t stride;  // elements between rows
  std::int64_t heads, head_dim;
};
/// Rotates the first 2 * `half` elements of each head in pairs of neighbours, row r by the angles
/// of positions[r].
void rotate_rows(const HeadRows& rows, std::span<const std::int64_t> positions,
                 const RotaryTables& tables, std::int64_t half);

}  // namespace llm
