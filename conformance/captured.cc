#include "conformance/captured.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "conformance/rng.h"
#include "oracle/expression.h"

namespace regard::conformance {
namespace {

using oracle::Function;
using oracle::Node;
using oracle::NodeOp;
using oracle::NodeType;

constexpr std::uint64_t kExtentStream = 0x65787465;

struct Interval {
  std::int64_t low, high;
};
constexpr Interval kAny{std::numeric_limits<std::int32_t>::min(),
                        std::numeric_limits<std::int32_t>::max()};

/// Of an int that wraps at 32 bits.
Interval wrapped(Interval x) { return x.low < kAny.low || x.high > kAny.high ? kAny : x; }

template <class F>
Interval of_corners(const Interval& x, const Interval& y, F f) {
  const std::int64_t all[] = {f(x.low, y.low), f(x.low, y.high), f(x.high, y.low),
                              f(x.high, y.high)};
  return {*std::min_element(all, all + 4), *std::max_element(all, all + 4)};
}

std::int64_t largest(const Interval& x) { return std::max(std::abs(x.low), std::abs(x.high)); }

Interval quotient(const Interval& x, const Interval& y) {
  const std::int64_t bound = largest(x);
  if (y.low <= 0) return {-bound, bound};
  const auto divide = [](std::int64_t a, std::int64_t b) {
    return a >= 0 ? a / b : -((-a + b - 1) / b);
  };
  return of_corners(x, y, divide);
}

Interval remainder(const Interval& y) {
  const std::int64_t bound = std::max<std::int64_t>(largest(y) - 1, 0);
  return {y.low >= 0 ? 0 : -bound, y.high <= 0 ? 0 : bound};
}

/// From 0 to one less than `extent`.
Interval below(std::int64_t extent) { return {0, std::max<std::int64_t>(extent - 1, 0)}; }

/// The values that the ints of a function may have at the places of a case.
class Intervals {
 public:
  Intervals(const Case& c, const Function& function) : case_(c) {
    for (const Node& n : function.nodes()) all_.push_back(of(n));
  }
  const Interval& operator[](int n) const { return all_[static_cast<std::size_t>(n)]; }

 private:
  Interval position() const {
    const AttentionParams& p = case_.params;
    switch (p.diagonal) {
      case Diagonal::kBottomRight: return {-p.seqlen_q, p.seqlen_q + p.seqlen_kv};
      case Diagonal::kOffset: {
        const std::int64_t offset = case_.data.diagonal_offset;
        const bool known = !p.features.has(Feature::kDiagonalPerSequence) &&
                           std::abs(offset / 2) < (std::int64_t{1} << 29);
        return known ? wrapped({offset, offset + p.seqlen_q}) : kAny;
      }
      default: return below(p.seqlen_q);
    }
  }

  Interval of(const Node& n) const {
    const AttentionParams& p = case_.params;
    if (n.type != NodeType::kInt) return kAny;
    const Interval x = n.count > 0 ? (*this)[n.args[0]] : kAny;
    const Interval y = n.count > 1 ? (*this)[n.args[1]] : kAny;
    switch (n.op) {
      case NodeOp::kConstant: {
        const auto value = static_cast<std::int64_t>(n.value);
        return wrapped({value, value});
      }
      case NodeOp::kBatch: return below(p.batch);
      case NodeOp::kHead: return below(p.num_heads_q);
      case NodeOp::kQuery: return below(p.seqlen_q);
      case NodeOp::kKey: return below(p.seqlen_kv);
      case NodeOp::kPosition: return position();
      case NodeOp::kLenQ: return {0, p.seqlen_q};
      case NodeOp::kLenKv: return {0, p.seqlen_kv};
      case NodeOp::kAdd: return wrapped({x.low + y.low, x.high + y.high});
      case NodeOp::kSubtract: return wrapped({x.low - y.high, x.high - y.low});
      case NodeOp::kMultiply:
        return wrapped(of_corners(x, y, [](std::int64_t a, std::int64_t b) { return a * b; }));
      case NodeOp::kFloorDiv: return wrapped(quotient(x, y));
      case NodeOp::kRemainder: return remainder(y);
      case NodeOp::kMin: return {std::min(x.low, y.low), std::min(x.high, y.high)};
      case NodeOp::kMax: return {std::max(x.low, y.low), std::max(x.high, y.high)};
      case NodeOp::kNegate: return wrapped({-x.high, -x.low});
      case NodeOp::kAbs:
        return wrapped({x.low <= 0 && x.high >= 0 ? 0 : std::min(std::abs(x.low), std::abs(x.high)),
                        largest(x)});
      case NodeOp::kWhere: {
        const Interval& z = (*this)[n.args[2]];
        return {std::min(y.low, z.low), std::max(y.high, z.high)};
      }
      case NodeOp::kGather: return {0, kMaxCapturedIndex};
      default: return kAny;  // kToInt
    }
  }

  const Case& case_;
  std::vector<Interval> all_;
};

/// The gathers that node `n` is computed from.
void mark_indices(const Function& function, int n,
                  std::array<CapturedSpec, oracle::kCapturedCount>* specs) {
  const Node& node = function.nodes()[static_cast<std::size_t>(n)];
  if (node.op == NodeOp::kGather && node.type == NodeType::kInt) {
    (*specs)[static_cast<std::size_t>(node.slot)].is_index = true;
  }
  for (int k = 0; k < node.count; ++k) mark_indices(function, node.args[k], specs);
}

void add_function(const Case& c, const std::string& text, bool is_score,
                  std::array<CapturedSpec, oracle::kCapturedCount>* specs) {
  const Expected<Function> function = Function::parse(text);
  if (!function) return;  // the oracle will say so
  const Intervals intervals(c, *function);
  for (const Node& n : function->nodes()) {
    if (n.op != NodeOp::kGather) continue;
    CapturedSpec& spec = (*specs)[static_cast<std::size_t>(n.slot)];
    spec.is_read = true;
    spec.is_int = n.type == NodeType::kInt;
    spec.has_gradient = spec.has_gradient || (is_score && !spec.is_int);
    spec.rank = n.count;
    for (int k = 0; k < n.count; ++k) {
      const std::int64_t extent = intervals[n.args[k]].high + 1;
      spec.extent[k] = std::clamp<std::int64_t>(extent, std::max<std::int64_t>(spec.extent[k], 1),
                                                kMaxCapturedExtent);
      mark_indices(*function, n.args[k], specs);
    }
  }
}

}  // namespace

std::array<CapturedSpec, oracle::kCapturedCount> captured_of(const Case& c) {
  std::array<CapturedSpec, oracle::kCapturedCount> specs;
  const AttentionParams& p = c.params;
  if (!p.score_function.empty()) add_function(c, p.score_function.text(), true, &specs);
  if (!p.mask_function.empty()) add_function(c, p.mask_function.text(), false, &specs);
  Rng rng(c.data.seed, kExtentStream);
  for (CapturedSpec& spec : specs) {
    std::int64_t elements = 1;
    for (int k = 0; k < spec.rank; ++k) {
      if (rng.chance(0.25)) spec.extent[k] += rng.between(1, 3);  // more than is read
      spec.extent[k] = std::min(spec.extent[k], kMaxCapturedExtent / elements + 1);
      elements *= spec.extent[k];
    }
  }
  return specs;
}

}  // namespace regard::conformance
