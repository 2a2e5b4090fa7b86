#include "core/describe/overlap.h"

#include <algorithm>
#include <numeric>

#include "base/checked.h"
#include "base/message.h"

// Two elements share bytes iff a bounded linear equation has a solution: the difference of their
// byte offsets, a sum of index * stride, lies within an element's size of the difference of the
// data pointers. NumPy solves the same problem for its arrays (solve_may_share_memory).

namespace regard {
namespace {

__extension__ typedef __int128 Wide;  // sums of two spans pass 63 bits

constexpr int kMaxTerms = 2 * kMaxRank;
constexpr int kSearchBudget = 4096;  // nodes: a microsecond for real layouts, 50 at worst

/// Is there sum of weight_i * x_i in [low, high] with x_i in [min_i, max_i]?
class BoundedSum {
 public:
  void add(std::int64_t weight, std::int64_t min, std::int64_t max) noexcept {
    if (weight == 0 || (min == 0 && max == 0)) return;
    for (int i = 0; i < count_; ++i) {
      if (terms_[i].weight != weight) continue;
      terms_[i].min += min;
      terms_[i].max += max;
      return;
    }
    terms_[count_++] = {weight, min, max};
  }

  /// True when provably no solution exists.
  bool excludes(Wide low, Wide high) noexcept {
    std::sort(terms_, terms_ + count_,
              [](const Term& a, const Term& b) { return a.weight > b.weight; });
    Wide min = 0;
    Wide max = 0;
    std::int64_t divisor = 0;
    for (int i = count_ - 1; i >= 0; --i) {
      rest_[i] = {min, max, divisor};
      min += Wide{terms_[i].weight} * terms_[i].min;
      max += Wide{terms_[i].weight} * terms_[i].max;
      divisor = std::gcd(divisor, terms_[i].weight);
    }
    budget_ = kSearchBudget;
    return !may_reach(0, {min, max, divisor}, low, high);
  }

 private:
  struct Term {
    std::int64_t weight;  // > 0
    Wide min, max;
  };
  // What the terms from some place on can add up to.
  struct Reach {
    Wide min, max;
    std::int64_t divisor;
  };

  static Wide floor_div(Wide a, Wide b) noexcept { return a / b - (a % b < 0 ? 1 : 0); }
  static Wide ceil_div_wide(Wide a, Wide b) noexcept { return -floor_div(-a, b); }

  // Depth first over the terms from the largest weight down; intervals and divisors cut branches.
  bool may_reach(int at, const Reach& reach, Wide low, Wide high) noexcept {
    if (--budget_ < 0) return true;
    if (reach.max < low || reach.min > high) return false;
    if (at == count_) return true;  // the empty sum, 0, lies in [low, high]
    if (floor_div(high, reach.divisor) < ceil_div_wide(low, reach.divisor)) return false;
    const Term& term = terms_[at];
    const Reach& rest = rest_[at];
    const Wide first = std::max(term.min, ceil_div_wide(low - rest.max, term.weight));
    const Wide last = std::min(term.max, floor_div(high - rest.min, term.weight));
    for (Wide x = first; x <= last; ++x) {
      const Wide part = x * term.weight;
      if (may_reach(at + 1, rest, low - part, high - part)) return true;
    }
    return false;
  }

  Term terms_[kMaxTerms];
  Reach rest_[kMaxTerms];
  int count_ = 0;
  int budget_ = 0;
};

bool is_empty(const TensorView& view) noexcept {
  for (int i = 0; i < view.rank; ++i) {
    if (view.shape[i] == 0) return true;
  }
  return false;
}

// Strides that nest: each steps over all that the smaller ones reach. True of every dense, padded
// or permuted tensor, and cheaper than the search.
bool strides_nest(const TensorView& view) noexcept {
  std::int64_t strides[kMaxRank];
  std::int64_t extents[kMaxRank];
  int count = 0;
  for (int i = view.rank - 1; i >= 0; --i) {
    if (view.shape[i] <= 1) continue;
    int at = count++;
    for (; at > 0 && strides[at - 1] > view.strides[i]; --at) {
      strides[at] = strides[at - 1];
      extents[at] = extents[at - 1];
    }
    strides[at] = view.strides[i];
    extents[at] = view.shape[i];
  }
  std::int64_t reach = 1;  // elements from the first to the last of the dimensions so far
  for (int i = 0; i < count; ++i) {
    if (strides[i] < reach) return false;
    reach += (extents[i] - 1) * strides[i];
  }
  return true;
}

}  // namespace

bool byte_span(const TensorView& elements, ByteSpan* span) noexcept {
  const TensorView view = as_bytes(elements);
  const std::int64_t size = size_of(view.dtype);
  std::int64_t count = size;  // bytes of all elements, an extent of 0 counted as 1
  std::int64_t reach = size;  // bytes from the first element's first to the last one's last
  for (int i = 0; i < view.rank; ++i) {
    const std::int64_t extent = std::max<std::int64_t>(view.shape[i], 1);
    std::int64_t stride_bytes = 0;
    std::int64_t steps = 0;
    if (!checked_mul(count, extent, &count) || !checked_mul(view.strides[i], size, &stride_bytes) ||
        !checked_mul(stride_bytes, extent - 1, &steps) || !checked_add(reach, steps, &reach)) {
      return false;
    }
  }
  span->begin = reinterpret_cast<std::uintptr_t>(view.data);
  const bool empty = is_empty(view);
  return !__builtin_add_overflow(span->begin, empty ? 0 : static_cast<std::uintptr_t>(reach),
                                 &span->end);
}

bool proves_injective(const TensorView& elements) noexcept {
  const TensorView view = as_bytes(elements);
  if (is_empty(view) || strides_nest(view)) return true;
  for (int i = 0; i < view.rank; ++i) {
    if (view.shape[i] > 1 && view.strides[i] == 0) return false;
  }
  // Two elements that coincide differ first in some dimension, by a step that is positive for one
  // of their two orders.
  for (int first = 0; first < view.rank; ++first) {
    if (view.shape[first] <= 1) continue;
    BoundedSum difference;
    difference.add(view.strides[first], 1, view.shape[first] - 1);
    for (int i = first + 1; i < view.rank; ++i) {
      difference.add(view.strides[i], 1 - view.shape[i], view.shape[i] - 1);
    }
    // Elements of one view lie a multiple of their size apart, so sharing a byte is being equal.
    if (!difference.excludes(0, 0)) return false;
  }
  return true;
}

bool proves_disjoint(const TensorView& elements_a, const TensorView& elements_b) noexcept {
  const TensorView a = as_bytes(elements_a), b = as_bytes(elements_b);
  ByteSpan span_a;
  ByteSpan span_b;
  if (!byte_span(a, &span_a) || !byte_span(b, &span_b)) return false;
  if (is_empty(a) || is_empty(b) || !intersects(span_a, span_b)) return true;
  const std::int64_t size_a = size_of(a.dtype);
  const std::int64_t size_b = size_of(b.dtype);
  BoundedSum difference;  // of an element's offset in b and one's in a, in bytes; b's signs flipped
  for (int i = 0; i < a.rank; ++i) difference.add(a.strides[i] * size_a, 0, a.shape[i] - 1);
  for (int i = 0; i < b.rank; ++i) difference.add(b.strides[i] * size_b, 1 - b.shape[i], 0);
  // Element x of a and y of b share a byte iff -size_a < address(x) - address(y) < size_b.
  const Wide apart = Wide{span_b.begin} - Wide{span_a.begin};
  return difference.excludes(apart - size_a + 1, apart + size_b - 1);
}

Status check_overlaps(const char* where, std::span<const UsedTensor> tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const UsedTensor& written = tensors[i];
    if (!written.is_written) continue;
    if (!proves_injective(*written.view)) {
      return invalid(where, written.name, " ", to_string(*written.view),
                     " must not overlap itself");
    }
    for (std::size_t j = 0; j < tensors.size(); ++j) {
      const UsedTensor& other = tensors[j];
      // Two that are written are one pair.
      if (j == i || (other.is_written && j < i) || !intersects(written.span, other.span)) continue;
      if (proves_disjoint(*written.view, *other.view)) continue;
      return invalid(where, written.name, " ", to_string(*written.view), " must not overlap ",
                     other.name, " ", to_string(*other.view));
    }
  }
  return {};
}

}  // namespace regard
