#include "oracle/evaluate.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "oracle/rules.h"

namespace regard::oracle {
namespace {

std::int32_t wrap(std::int64_t value) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(value));
}

std::int64_t floor_div(std::int64_t x, std::int64_t y) {
  if (y == 0) return 0;
  const std::int64_t q = x / y;
  return x % y != 0 && (x < 0) != (y < 0) ? q - 1 : q;
}

std::int64_t floor_remainder(std::int64_t x, std::int64_t y) {
  return y == 0 ? 0 : x - floor_div(x, y) * y;
}

/// Towards 0, within 32 bits.
template <class R>
std::int32_t truncated(R x) {
  if (std::isnan(x)) return 0;
  constexpr std::int32_t kMin = std::numeric_limits<std::int32_t>::min();
  constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();
  if (x >= static_cast<R>(2147483648.0)) return kMax;
  if (x <= static_cast<R>(-2147483648.0)) return kMin;
  return static_cast<std::int32_t>(x);
}

}  // namespace

template <class R>
const FunctionResult<R>& Evaluator<R>::value(const FunctionPlace& place, R score) {
  run(place, score);
  return result_;
}

template <class R>
void Evaluator<R>::run(const FunctionPlace& place, R score) {
  for (std::size_t n = 0; n < values_.size(); ++n) {
    values_[n] = Value{};
    compute(node(n), place, score, &values_[n]);
    values_[n].reads_score = reads_score(node(n));
  }
  const Value& last = values_.back();
  result_ = FunctionResult<R>{};
  result_.value = function_.type() == NodeType::kReal ? last.real : static_cast<R>(last.integer);
  result_.reads_score = last.reads_score;
}

template <class R>
void Evaluator<R>::compute(const Node& n, const FunctionPlace& place, R score, Value* v) {
  if (n.op == NodeOp::kGather) return gather(n, v);
  if (n.op == NodeOp::kWhere) {
    const Value& chosen = arg(n, arg(n, 0).integer != 0 ? 1 : 2);
    v->real = chosen.real;
    v->integer = chosen.integer;
  } else if (n.type == NodeType::kReal) {
    v->real = real_of(n, score);
  } else {
    v->integer = integer_of(n, place);
  }
}

template <class R>
std::int32_t Evaluator<R>::integer_of(const Node& n, const FunctionPlace& place) const {
  const std::int64_t x = n.count > 0 ? arg(n, 0).integer : 0;
  const std::int64_t y = n.count > 1 ? arg(n, 1).integer : 0;
  switch (n.op) {
    case NodeOp::kConstant: return wrap(static_cast<std::int64_t>(n.value));
    case NodeOp::kBatch: return place.b;
    case NodeOp::kHead: return place.h;
    case NodeOp::kQuery: return place.q_idx;
    case NodeOp::kKey: return place.kv_idx;
    case NodeOp::kPosition: return place.q_pos;
    case NodeOp::kLenQ: return place.q_len;
    case NodeOp::kLenKv: return place.kv_len;
    case NodeOp::kAdd: return wrap(x + y);
    case NodeOp::kSubtract: return wrap(x - y);
    case NodeOp::kMultiply: return wrap(x * y);
    case NodeOp::kFloorDiv: return wrap(floor_div(x, y));
    case NodeOp::kRemainder: return wrap(floor_remainder(x, y));
    case NodeOp::kMin: return wrap(std::min(x, y));
    case NodeOp::kMax: return wrap(std::max(x, y));
    case NodeOp::kNegate: return wrap(-x);
    case NodeOp::kAbs: return wrap(std::abs(x));
    case NodeOp::kToInt: return truncated(arg(n, 0).real);
    case NodeOp::kAnd: return x != 0 && y != 0;
    case NodeOp::kOr: return x != 0 || y != 0;
    case NodeOp::kNot: return x == 0;
    default: return compare(n) ? 1 : 0;
  }
}

template <class R>
bool Evaluator<R>::compare(const Node& n) const {
  const auto holds = [&](auto x, auto y) {
    switch (n.op) {
      case NodeOp::kLess: return x < y;
      case NodeOp::kLessEqual: return x <= y;
      case NodeOp::kEqual: return x == y;
      default: return x != y;
    }
  };
  const Value &x = arg(n, 0), &y = arg(n, 1);
  return is_real(n, 0) ? holds(x.real, y.real) : holds(x.integer, y.integer);
}

template <class R>
R Evaluator<R>::real_of(const Node& n, R score) const {
  const R x = n.count > 0 ? arg(n, 0).real : R{0};
  const R y = n.count > 1 ? arg(n, 1).real : R{0};
  switch (n.op) {
    case NodeOp::kConstant: return static_cast<R>(n.value);
    case NodeOp::kScore: return score;
    case NodeOp::kToReal: return static_cast<R>(arg(n, 0).integer);
    case NodeOp::kAdd: return x + y;
    case NodeOp::kSubtract: return x - y;
    case NodeOp::kMultiply: return x * y;
    case NodeOp::kDivide: return x / y;
    case NodeOp::kMin: return x < y ? x : y;
    case NodeOp::kMax: return x > y ? x : y;
    case NodeOp::kNegate: return -x;
    case NodeOp::kAbs: return std::fabs(x);
    case NodeOp::kExp: return std::exp(x);
    case NodeOp::kLog: return std::log(x);
    case NodeOp::kSqrt: return std::sqrt(x);
    case NodeOp::kTanh: return std::tanh(x);
    default: return R{1} / (R{1} + std::exp(-x));  // kSigmoid
  }
}

template <class R>
void Evaluator<R>::gather(const Node& n, Value* v) {
  const TensorView& view = captured_[n.slot];
  for (int k = 0; k < n.count; ++k) {
    v->index[k] = arg(n, k).integer;
    if (v->index[k] >= 0 && v->index[k] < view.shape[k]) continue;
    left_a_tensor_ = true;
    v->index[k] = 0;
    if (view.shape[k] == 0) return;
  }
  const double element = oracle::element(view, v->index[0], v->index[1], v->index[2], v->index[3]);
  v->real = static_cast<R>(element);
  v->integer = n.type == NodeType::kInt ? static_cast<std::int32_t>(element) : 0;
}

template <class R>
bool Evaluator<R>::reads_score(const Node& n) const {
  if (n.op == NodeOp::kScore) return true;
  if (n.op == NodeOp::kWhere && !arg(n, 0).reads_score) {
    return arg(n, arg(n, 0).integer != 0 ? 1 : 2).reads_score;
  }
  for (int k = 0; k < n.count; ++k) {
    if (arg(n, k).reads_score) return true;
  }
  return false;
}

template class Evaluator<float>;
template class Evaluator<double>;
template class Evaluator<long double>;

}  // namespace regard::oracle
