#include "tools/llm/rotary.h"

#include <cmath>
#include <new>
#include <string>

#include "tools/llm/rows.h"

namespace llm {

using regard::Dtype;
using regard::Status;

Status RotaryTables::reserve(const ModelConfig& config, std::span<const float> scale,
                             std::int64_t positions) {
  if (positions <= positions_) return Status();
  const std::int64_t half = config.rotary_dim / 2;
  try {
    cos_.resize(static_cast<std::size_t>(positions * half));
    sin_.resize(cos_.size());
  } catch (const std::bad_alloc&) {
    return Status(regard::StatusCode::kOutOfMemory,
                  "[attention] no memory for the rotary tables of " + std::to_string(positions) +
                      " positions; reduce --max-seq-length");
  }
  positions_ = positions;
  for (std::int64_t x = 0; x < half; ++x) {
    const double exponent = -2.0 * static_cast<double>(x) / static_cast<double>(config.rotary_dim);
    const double divisor = scale.empty() ? 1.0 : scale[static_cast<std::size_t>(x)];
    const double frequency =
        std::pow(config.rotary_base, exponent) / (divisor * config.position_scale);
    for (std::int64_t position = 0; position < positions; ++position) {
      const double angle = static_cast<double>(position) * frequency;
      const auto at = static_cast<std::size_t>(position * half + x);
      cos_[at] = static_cast<float>(std::cos(angle));
      sin_[at] = static_cast<float>(std::sin(angle));
    }
  }
  return Status();
}

void rotate_rows(const HeadRows& rows, std::span<const std::int64_t> positions,
                 const RotaryTables& tables, std::int64_t half) {
  const auto width = static_cast<std::size_t>(rows.heads * rows.head_dim);
  std::vector<float> row(width);
  auto* data = static_cast<std::byte*>(rows.data);
  for (const std::int64_t position : positions) {
    const RowsView stored{data, rows.dtype, rows.stride};
    const RowsView exact{row.data(), Dtype::kF32, static_cast<std::int64_t>(width)};
    convert_rows(stored, exact, 1, exact.stride);
    const float* const cos = tables.cos() + position * half;
    const float* const sin = tables.sin() + position * half;
    for (std::int64_t h = 0; h < rows.heads; ++h) {
      float* const head = row.data() + h * rows.head_dim;
      for (std::int64_t x = 0; x < half; ++x) {
        const float even = head[2 * x], odd = head[2 * x + 1];
        head[2 * x] = even * cos[x] - odd * sin[x];
        head[2 * x + 1] = odd * cos[x] + even * sin[x];
      }
    }
    convert_rows(exact, stored, 1, exact.stride);
    data += rows.stride * regard::size_of(rows.dtype);
  }
}

}  // namespace llm
