#pragma once

#include <cstdint>
#include <cstring>
#include <optional>

#include "problem/make_problem.h"
#include "regard/request.h"

namespace regard {

inline bool is_readable(const TensorView& view) noexcept {
  return view.present() && view.device.type == DeviceType::kCpu;
}

inline float read_float(const TensorView& view, std::int64_t offset) noexcept {
  float value = 0.0f;
  std::memcpy(&value, static_cast<const char*>(view.data) + offset * std::int64_t{sizeof value},
              sizeof value);
  return value;
}

/// Who reads what is long, and how many workers at most; null: the calling thread.
struct CheckWorkers {
  Executor* executor = nullptr;
  int count = 1;
};

/// The call whose data is checked.
class CheckedCall {
 public:
  CheckedCall(const Buffers& of_buffers, const AttentionParams& of_params, const char* function,
              const CheckWorkers& checkers = {})
      : buffers(of_buffers), params(of_params), where(function), workers(checkers) {}
  /// Made when the first rule needs it: most calls have none that does.
  const problem::Problem& problem() {
    if (!problem_) problem::make_problem(params, buffers, &problem_.emplace());
    return *problem_;
  }

  const Buffers& buffers;
  const AttentionParams& params;
  const char* const where;
  const CheckWorkers workers;

 private:
  std::optional<problem::Problem> problem_;
};

}  // namespace regard
