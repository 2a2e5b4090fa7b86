#include "cpu/backward/captured.h"

#include <algorithm>
#include <iterator>

#include "base/checked.h"
#include "function/uses.h"

namespace regard::cpu {
namespace {

/// Elements that the sums of all slices hold, 8 MB.
constexpr std::int64_t kSums = std::int64_t{1} << 20;
/// Slices for as many workers; more are more to add up. Of tensors too large for so many there are
/// fewer, and the work is done again for each range of their elements that it reaches.
constexpr std::int64_t kMaxSlices = 64, kMinSlices = 8;

constexpr std::int64_t kElementsPerTask = 4096;

std::int64_t count_elements(const CapturedView& view) noexcept {
  std::int64_t elements = 1;
  for (const std::int64_t extent : view.extent) elements *= extent;
  return elements;
}

void store_element(const CapturedView& view, std::int64_t at, double value) noexcept {
  switch (view.type) {
    case CapturedType::kF32:
      reinterpret_cast<float*>(view.data)[at] = static_cast<float>(value);
      break;
    case CapturedType::kF64: reinterpret_cast<double*>(view.data)[at] = value; break;
    case CapturedType::kBf16:
      reinterpret_cast<std::uint16_t*>(view.data)[at] = to_bf16(static_cast<float>(value));
      break;
    case CapturedType::kF16:
      reinterpret_cast<std::uint16_t*>(view.data)[at] = to_f16(static_cast<float>(value));
      break;
    default: break;  // integers have no gradients
  }
}

/// Where element n of a dense tensor of these extents lies in the view.
std::int64_t place_of(const CapturedView& view, std::int64_t n) noexcept {
  std::int64_t at = 0;
  for (int d = 3; d >= 0; --d) {
    at += n % view.extent[d] * view.stride[d];
    n /= view.extent[d];
  }
  return at;
}

}  // namespace

std::int64_t captured_bytes(const AttentionParams& params) noexcept {
  const function::Uses uses = function::uses_of(params.score_function);
  const bool reads_reals =
      std::any_of(std::begin(uses.of_slot), std::end(uses.of_slot),
                  [](const function::CapturedUse& use) { return use.rank > 0 && !use.is_int; });
  return reads_reals ? kSums * std::int64_t{sizeof(double)} : 0;
}

void lay_out_captured(BackwardArgs* args) noexcept {
  if (args->grad.problem.functions == nullptr) return;
  std::int64_t elements = 0;
  for (int slot = 0; slot < kMaxCapturedViews; ++slot) {
    const CapturedView& view = args->grad.problem.functions->d_captured[slot];
    args->captured_at[slot] = elements;
    if (view.data != nullptr) elements += count_elements(view);
  }
  args->captured_elements = elements;
  if (elements == 0) return;
  const Problem& p = args->grad.problem;
  const std::int64_t scores = saturating_mul(saturating_mul(p.batch, p.num_heads_q),
                                             saturating_mul(p.seqlen_q, p.seqlen_kv));
  const std::int64_t fitting = std::clamp(kSums / elements, kMinSlices, kMaxSlices);
  // To clear and to add up a slice is worth no more than to sum its scores.
  const std::int64_t worth = std::max<std::int64_t>(scores / elements, 1);
  args->captured_slices =
      std::max<std::int64_t>(std::min({fitting, worth, captured_blocks(*args)}), 1);
  args->captured_size = std::min(elements, kSums / args->captured_slices);
}

std::int64_t count_captured_sums(const BackwardArgs& args) noexcept {
  return ceil_div(args.captured_size, kElementsPerTask);
}

void sum_captured(const void* opaque, std::int64_t task, char*) {
  const BackwardArgs& a = *static_cast<const BackwardArgs*>(opaque);
  const std::int64_t begin = a.captured_begin + task * kElementsPerTask;
  const std::int64_t end =
      std::min({begin + kElementsPerTask, a.captured_begin + a.captured_size, a.captured_elements});
  for (int slot = 0; slot < kMaxCapturedViews; ++slot) {
    const CapturedView& view = a.grad.problem.functions->d_captured[slot];
    if (view.data == nullptr) continue;
    const std::int64_t first = a.captured_at[slot], last = first + count_elements(view);
    for (std::int64_t x = std::max(begin, first); x < std::min(end, last); ++x) {
      double sum = 0.0;
      for (std::int64_t slice = 0; slice < a.captured_slices; ++slice) {
        sum += a.captured_sums[slice * a.captured_size + x - a.captured_begin];
      }
      store_element(view, place_of(view, x - first), sum);
    }
  }
}

}  // namespace regard::cpu
