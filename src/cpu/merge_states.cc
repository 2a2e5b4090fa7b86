#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "base/checked.h"
#include "base/float_environment.h"
#include "base/message.h"
#include "core/describe/overlap.h"
#include "core/describe/view_checks.h"
#include "core/execute/merge_partials.h"
#include "core/plan/default_mode_executor.h"
#include "core/text/thrown_by.h"
#include "cpu/problem.h"
#include "cpu/threads/run_tasks.h"
#include "regard/context.h"
#include "regard/request.h"

namespace regard {
namespace {

constexpr const char* kWhere = "merge_states";
constexpr std::int64_t kChunk = 128;  // elements of a row that share their weights

bool same_view(const TensorView& a, const TensorView& b) noexcept {
  if (a.data != b.data || a.dtype != b.dtype || a.rank != b.rank) return false;
  for (int i = 0; i < a.rank; ++i) {
    if (a.shape[i] != b.shape[i]) return false;
    if (a.shape[i] > 1 && a.strides[i] != b.strides[i]) return false;
  }
  return true;
}

/// Views of one call, checked.
class Merge {
 public:
  Merge(std::span<const StateView> states, const TensorView& out, const TensorView& lse)
      : states_(states), out_(out), lse_(lse) {}

  Status check() const {
    if (states_.empty()) {
      return invalid(kWhere, "states (none) must be at least 1");
    }
    if (Status status = check_out("out", out_); !status.ok()) return status;
    if (lse_.present()) {
      if (Status status = check_lse("lse", lse_); !status.ok()) return status;
    }
    for (std::size_t n = 0; n < states_.size(); ++n) {
      const std::string name = "states[" + std::to_string(n) + "]";
      if (Status status = check_out((name + ".out").c_str(), states_[n].out); !status.ok()) {
        return status;
      }
      if (Status status = check_lse((name + ".lse").c_str(), states_[n].lse); !status.ok()) {
        return status;
      }
    }
    return check_outputs();
  }

  /// Rows of one task: some 5 microseconds, what it takes to wake a thread, and more.
  std::int64_t rows_per_task() const noexcept {
    constexpr std::int64_t kElements = 1 << 16;
    const auto states = static_cast<std::int64_t>(states_.size());
    const std::int64_t row = saturating_mul(states + 1, std::max<std::int64_t>(out_.shape[3], 1));
    return std::max<std::int64_t>(kElements / row, 1);
  }
  std::int64_t tasks() const noexcept {
    return ceil_div(out_.shape[0] * out_.shape[1] * out_.shape[2], rows_per_task());
  }

  /// The rows of one task.
  static void run_task(const void* opaque, std::int64_t task, char*) {
    const Merge& merge = *static_cast<const Merge*>(opaque);
    const std::int64_t heads = merge.out_.shape[1], length = merge.out_.shape[2];
    const std::int64_t begin = task * merge.rows_per_task();
    const std::int64_t all = merge.out_.shape[0] * heads * length;
    const std::int64_t end = std::min(begin + merge.rows_per_task(), all);
    const bool wide = merge.is_wide();
    for (std::int64_t row = begin; row < end; ++row) {
      const Row at{row / length / heads, row / length % heads, row % length};
      if (wide) {
        merge.merge_row<double>(at);
      } else {
        merge.merge_row<float>(at);
      }
    }
  }

 private:
  struct Row {
    std::int64_t b, h, s;
  };

  Status check_out(const char* name, const TensorView& view) const {
    ByteSpan span;
    if (Status s = check_view(kWhere, {name, view}, out_.device, &span); !s.ok()) return s;
    if (Status s = expect_dtype(kWhere, {name, view},
                                {Dtype::kF64, Dtype::kF32, Dtype::kBf16, Dtype::kF16});
        !s.ok()) {
      return s;
    }
    if (Status s = expect_rank(kWhere, {name, view}, 4, "[B,H,S,D]"); !s.ok()) return s;
    return expect_shape(kWhere, {name, view},
                        {out_.shape[0], out_.shape[1], out_.shape[2], out_.shape[3]}, "[B,H,S,D]");
  }

  Status check_lse(const char* name, const TensorView& view) const {
    ByteSpan span;
    if (Status s = check_view(kWhere, {name, view}, out_.device, &span); !s.ok()) return s;
    if (Status s = expect_dtype(kWhere, {name, view}, {Dtype::kF32, Dtype::kF64}); !s.ok()) {
      return s;
    }
    return expect_shape(kWhere, {name, view}, {out_.shape[0], out_.shape[1], out_.shape[2]},
                        "[B,H,S]");
  }

  /// An output is one of its inputs, element for element, or apart from all of them: a row is read
  /// before it is written, element after element.
  Status check_outputs() const {
    if (out_.device.type != DeviceType::kCpu) {
      return invalid(kWhere, "device of out (", to_string(out_.device.type), ") must be cpu");
    }
    for (const TensorView* output : {&out_, &lse_}) {
      if (!output->present()) continue;
      const bool is_out = output == &out_;
      const char* name = is_out ? "out" : "lse";
      if (Status s = check_writable(kWhere, {name, *output}); !s.ok()) return s;
      if (!proves_injective(*output)) return overlap(name, *output, "itself,", *output);
      for (std::size_t n = 0; n < states_.size(); ++n) {
        const TensorView& same = is_out ? states_[n].out : states_[n].lse;
        const TensorView& other = is_out ? states_[n].lse : states_[n].out;
        if (!same_view(*output, same) && !proves_disjoint(*output, same)) {
          return overlap(name, *output, "an input it is not equal to,", same);
        }
        if (!proves_disjoint(*output, other)) return overlap(name, *output, "an input,", other);
      }
    }
    if (lse_.present() && !proves_disjoint(out_, lse_)) return overlap("out", out_, "lse,", lse_);
    return {};
  }

  static Status overlap(const char* name, const TensorView& view, const char* what,
                        const TensorView& other) {
    return invalid(kWhere, name, " ", to_string(view), " must not overlap ", what, " ",
                   to_string(other));
  }

  /// f64 anywhere makes the arithmetic f64.
  bool is_wide() const noexcept {
    bool wide = out_.dtype == Dtype::kF64;
    for (const StateView& state : states_) wide = wide || state.out.dtype == Dtype::kF64;
    return wide;
  }

  static std::int64_t offset(const TensorView& view, const Row& row) noexcept {
    return row.b * view.strides[0] + row.h * view.strides[1] + row.s * view.strides[2];
  }
  static char* address(const TensorView& view, const Row& row, std::int64_t d) noexcept {
    const std::int64_t at = offset(view, row) + d * view.strides[3];
    return static_cast<char*>(view.data) + at * size_of(view.dtype);
  }

  template <class T>
  T row_lse(std::size_t n, const Row& row) const noexcept {
    const TensorView& lse = states_[n].lse;
    const char* at = static_cast<const char*>(lse.data) + offset(lse, row) * size_of(lse.dtype);
    T value = 0;
    cpu::load_row(static_cast<cpu::Element>(lse.dtype), at, 1, 1, &value);
    return value;
  }

  /// What a state counts for: 1 for the greatest, which may be infinite.
  template <class T>
  static T weight_of(T lse, T from) noexcept {
    return lse == from ? T(1) : std::exp(lse - from);
  }

  template <class T>
  void merge_row(const Row& row) const noexcept {
    const T infinity = static_cast<T>(HUGE_VAL);
    T max = -infinity;
    for (std::size_t n = 0; n < states_.size(); ++n) {
      const T lse = row_lse<T>(n, row);
      max = lse > max ? lse : max;  // NaN is passed over here; its weight below is NaN
    }
    const T from = max == -infinity ? T(0) : max;
    T sum = 0;
    for (std::size_t n = 0; n < states_.size(); ++n) sum += weight_of(row_lse<T>(n, row), from);
    for (std::int64_t d = 0; d < out_.shape[3]; d += kChunk) merge_chunk(row, d, from, sum);
    if (!lse_.present()) return;
    // Last, since lse may be one of the inputs.
    const double lse = static_cast<double>(from) + std::log(static_cast<double>(sum));
    char* at = static_cast<char*>(lse_.data) + offset(lse_, row) * size_of(lse_.dtype);
    cpu::store_row(static_cast<cpu::Element>(lse_.dtype), at, &lse, 1, 1);
  }

  /// Elements [d, d + kChunk) of a row: all of them are read before one is written. Loops over a
  /// whole chunk, of a constant size, are vectors.
  template <class T>
  void merge_chunk(const Row& row, std::int64_t d, T from, T sum) const noexcept {
    const std::int64_t count = std::min(kChunk, out_.shape[3] - d);
    T total[kChunk] = {};
    T split[kChunk] = {};
    for (std::size_t n = 0; n < states_.size(); ++n) {
      const T weight = weight_of(row_lse<T>(n, row), from);
      if (weight == T(0)) continue;  // empty, whatever its out holds
      load(states_[n].out, row, d, count, split);
      for (std::int64_t x = 0; x < kChunk; ++x) total[x] += weight * split[x];
    }
    if (sum == T(0)) {
      std::fill_n(total, kChunk, T(0));
    } else {
      for (std::int64_t x = 0; x < kChunk; ++x) total[x] /= sum;
    }
    const auto type = static_cast<cpu::Element>(out_.dtype);
    if (out_.strides[3] == 1 || count == 1) {
      cpu::store_row(type, address(out_, row, d), total, 1, count);
    } else {
      for (std::int64_t x = 0; x < count; ++x) {
        cpu::store_row(type, address(out_, row, d + x), total + x, 1, 1);
      }
    }
  }

  template <class T>
  static void load(const TensorView& view, const Row& row, std::int64_t d, std::int64_t count,
                   T* to) noexcept {
    const char* const from = address(view, row, d);
    constexpr Dtype kOwn = sizeof(T) == sizeof(double) ? Dtype::kF64 : Dtype::kF32;
    if (view.dtype == kOwn && view.strides[3] == 1) {
      std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(T));
    } else {
      cpu::load_row(static_cast<cpu::Element>(view.dtype), from, view.strides[3], count, to);
    }
  }

  const std::span<const StateView> states_;
  const TensorView& out_;
  const TensorView& lse_;
};

/// workers(): a MergeWorkers, which a small merge does not need.
template <class Workers>
Status merge_by(Workers workers, std::span<const StateView> states, const TensorView& out,
                const TensorView& lse, const Launch& launch) try {
  const Merge merge(states, out, lse);
  if (Status status = merge.check(); !status.ok()) return status;
  const DefaultFloatEnvironment environment;
  const std::int64_t tasks = merge.tasks();
  const cpu::TaskLoop loop{Merge::run_task, &merge, tasks, 0};
  if (tasks <= 1) {
    cpu::run_tasks(loop, 1, launch);
    return {};
  }
  const MergeWorkers given = workers();
  const bool is_own = launch.executor == nullptr;
  DefaultModeExecutor executor(is_own ? given.executor : *launch.executor,
                               is_own ? "the Context's executor" : "the launch's executor");
  Launch complete = launch;
  complete.executor = &executor;
  cpu::run_tasks(loop, std::max(given.count, 1), complete);
  return executor.status(kWhere);
} catch (...) {
  return status_of_exception(kWhere);
}

MergeWorkers workers_of(Context& context) { return {context.executor(), context.concurrency()}; }

}  // namespace

Status merge_partials(const MergeWorkers& workers, std::span<const StateView> states,
                      const TensorView& out, const TensorView& lse, const Launch& launch) {
  return merge_by([&] { return workers; }, states, out, lse, launch);
}

Status merge_states(Context& context, const std::vector<StateView>& states, const TensorView& out,
                    const TensorView& lse, const Launch& launch) {
  return merge_by([&] { return workers_of(context); }, states, out, lse, launch);
}

Status merge_states(const std::vector<StateView>& states, const TensorView& out,
                    const TensorView& lse, const Launch& launch) {
  return merge_by([] { return workers_of(default_context()); }, states, out, lse, launch);
}

}  // namespace regard
