#include <algorithm>
#include <cmath>
#include <limits>

#include "oracle/evaluate.h"

// How far rounding may move a function's value and its derivatives: each operation's operands'
// errors times its derivatives, and its own rounding (running error analysis).

namespace regard::oracle {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What functions of kernels may lose, in unit roundoffs of their result.
constexpr double kDivideError = 2.0;
constexpr double kExpError = 4.0;
constexpr double kLogError = 4.0;
constexpr double kTanhError = 5.0;
constexpr double kSigmoidError = 6.0;

/// 0 of anything is 0.
double times(double x, double y) { return x == 0.0 || y == 0.0 ? 0.0 : x * y; }

template <class R>
double size(R x) {
  return std::fabs(static_cast<double>(x));
}

template <class R>
R sign_of(R x) {
  return x > 0 ? R{1} : x < 0 ? R{-1} : R{0};
}

}  // namespace

template <class R>
bool Evaluator<R>::is_exact(R value) const {
  if (std::isnan(value)) return true;
  return given_.is_f64 ? static_cast<R>(static_cast<double>(value)) == value
                       : static_cast<R>(static_cast<float>(value)) == value;
}

template <class R>
bool Evaluator<R>::may_exchange(const Node& n, int k) const {
  const Value &x = arg(n, k), &y = arg(n, k + 1);
  const double error = x.error + y.error;
  if (error == 0.0 || !std::isfinite(x.real) || !std::isfinite(y.real)) return false;
  const bool is_near = size(x.real - y.real) <= given_.margin * u() * error;
  return is_near && !is_same(n.args[k], n.args[k + 1]);
}

template <class R>
bool Evaluator<R>::is_same(int a, int b) const {
  const Node &x = node(static_cast<std::size_t>(a)), &y = node(static_cast<std::size_t>(b));
  if (x.op != y.op || x.type != y.type || x.slot != y.slot || x.count != y.count) return false;
  if (x.op == NodeOp::kConstant && x.value != y.value) return false;
  for (int k = 0; k < x.count; ++k) {
    if (!is_same(x.args[k], y.args[k])) return false;
  }
  return true;
}

template <class R>
const FunctionResult<R>& Evaluator<R>::analyse(const FunctionPlace& place, R score,
                                               const ScoreError& given) {
  given_ = given;
  run(place, score);
  for (std::size_t n = 0; n < values_.size(); ++n) {
    Value& v = values_[n];
    if (node(n).type == NodeType::kReal) {
      v.error = error_of(node(n), v);
    } else {
      v.certain = is_certain(node(n));
    }
  }
  const Value& last = values_.back();
  if (function_.type() == NodeType::kReal) {
    result_.error = last.error;
  } else {
    result_.error = !last.certain ? kInfinity : is_exact(result_.value) ? 0.0 : size(result_.value);
  }
  return result_;
}

template <class R>
double Evaluator<R>::error_of(const Node& n, const Value& v) const {
  switch (n.op) {
    case NodeOp::kScore: return given_.error;
    case NodeOp::kWhere:
    case NodeOp::kMin:
    case NodeOp::kMax: return selected_error(n);
    case NodeOp::kToReal:
    case NodeOp::kGather:
      if (!args_are_certain(n)) return kInfinity;
      [[fallthrough]];
    case NodeOp::kConstant: return is_exact(v.real) ? 0.0 : size(v.real);
    default: break;
  }
  if (!std::isinf(v.real)) return propagated(n, v) + own_rounding(n, v);
  // No rounding of its operands changes an infinity.
  const bool is_known = std::isfinite(arg(n, 0).error) && std::isfinite(arg(n, n.count - 1).error);
  return is_known ? 0.0 : kInfinity;
}

template <class R>
double Evaluator<R>::propagated(const Node& n, const Value& v) const {
  const Value& x = arg(n, 0);
  const Value& y = arg(n, n.count - 1);
  switch (n.op) {
    case NodeOp::kAdd:
    case NodeOp::kSubtract: return x.error + y.error;
    case NodeOp::kMultiply: return product_error(x, y);
    case NodeOp::kDivide: return (x.error + times(size(v.real), y.error)) / size(y.real);
    case NodeOp::kExp: return times(size(v.real), x.error);
    case NodeOp::kLog: return x.error == 0.0 ? 0.0 : x.error / size(x.real);
    case NodeOp::kSqrt:
      return x.error == 0.0 ? 0.0
                            : std::min(0.5 * x.error / size(v.real), std::sqrt(x.error / u()));
    case NodeOp::kTanh: return times(1.0 - size(v.real * v.real), x.error);
    case NodeOp::kSigmoid: return times(size(v.real * (R{1} - v.real)), x.error);
    default: return x.error;  // kNegate, kAbs
  }
}

template <class R>
double Evaluator<R>::own_rounding(const Node& n, const Value& v) const {
  double units = 1.0;
  switch (n.op) {
    case NodeOp::kNegate:
    case NodeOp::kAbs: return 0.0;
    case NodeOp::kAdd:
    case NodeOp::kSubtract:
    case NodeOp::kMultiply:
      if (arg(n, 0).error == 0.0 && arg(n, 1).error == 0.0 && is_exact(v.real)) return 0.0;
      break;
    case NodeOp::kDivide: units = kDivideError; break;
    case NodeOp::kExp: units = kExpError; break;
    case NodeOp::kLog: units = kLogError; break;
    case NodeOp::kTanh: units = kTanhError; break;
    case NodeOp::kSigmoid: units = kSigmoidError; break;
    default: break;
  }
  // Results below the smallest normal number may be 0.
  const double flushed = given_.is_f64
                             ? std::numeric_limits<double>::min() / 0x1p-53
                             : static_cast<double>(std::numeric_limits<float>::min()) / 0x1p-24;
  return units * size(v.real) + flushed;
}

/// What both errors make together counts where rounding decides what the factors are.
template <class R>
double Evaluator<R>::product_error(const Value& x, const Value& y) const {
  return times(size(y.real), x.error) + times(size(x.real), y.error) +
         times(u() * x.error, y.error);
}

/// Of one of two values. Where rounding may exchange them, how far they are apart counts as well.
template <class R>
double Evaluator<R>::selected_error(const Node& n) const {
  const bool is_where = n.op == NodeOp::kWhere;
  const Value &x = arg(n, is_where ? 1 : 0), &y = arg(n, is_where ? 2 : 1);
  if (!is_where) {
    const bool first = n.op == NodeOp::kMin ? x.real < y.real : x.real > y.real;
    if (may_exchange(n, 0)) return std::max(x.error, y.error);
    return first ? x.error : y.error;
  }
  const Value& condition = arg(n, 0);
  if (condition.certain) return condition.integer != 0 ? x.error : y.error;
  const double larger = std::max(x.error, y.error);
  if (x.real == y.real) return larger;
  const double apart = size(x.real - y.real);
  return std::isfinite(apart) ? larger + apart / u() : kInfinity;
}

template <class R>
bool Evaluator<R>::args_are_certain(const Node& n) const {
  for (int k = 0; k < n.count; ++k) {
    if (!arg(n, k).certain) return false;
  }
  return true;
}

/// Of an int or a bool.
template <class R>
bool Evaluator<R>::is_certain(const Node& n) const {
  if (n.op == NodeOp::kToInt) {
    const Value& x = arg(n, 0);
    if (x.error == 0.0 || !std::isfinite(x.real)) return true;
    if (!std::isfinite(x.error)) return false;
    const R step = static_cast<R>(given_.margin * u() * x.error);
    // Within 32 bits; what lies beyond is held to them.
    const auto held = [](R value) {
      return std::clamp(std::trunc(value), static_cast<R>(-2147483648.0),
                        static_cast<R>(2147483647.0));
    };
    return held(x.real - step) == held(x.real + step);
  }
  if (n.count == 2 && is_real(n, 0)) return !may_exchange(n, 0);
  if (n.op == NodeOp::kAnd || n.op == NodeOp::kOr) {
    const std::int32_t decides = n.op == NodeOp::kOr ? 1 : 0;
    for (int k = 0; k < 2; ++k) {
      if (arg(n, k).certain && arg(n, k).integer == decides) return true;
    }
  }
  if (n.op == NodeOp::kWhere) {
    const Value &condition = arg(n, 0), &x = arg(n, 1), &y = arg(n, 2);
    if (condition.certain) return condition.integer != 0 ? x.certain : y.certain;
    return x.certain && y.certain && x.integer == y.integer;
  }
  return args_are_certain(n);
}

// ---- derivatives, from the result to what it is made of

template <class R>
const FunctionResult<R>& Evaluator<R>::differentiate() {
  result_.slope = R{0};
  result_.slope_size = 0.0;
  result_.elements.clear();
  values_.back().slope = R{1};
  values_.back().size = 1.0;
  for (std::size_t n = values_.size(); n-- > 0;) {
    const Value& v = values_[n];
    if (node(n).type != NodeType::kReal || (v.size == 0.0 && v.moved == 0.0)) continue;
    switch (node(n).op) {
      case NodeOp::kConstant:
      case NodeOp::kToReal: break;
      case NodeOp::kScore:
      case NodeOp::kGather: add_slope(node(n), v); break;
      case NodeOp::kWhere:
      case NodeOp::kMin:
      case NodeOp::kMax: push_selected(node(n), v); break;
      default: push_all(node(n), v); break;
    }
  }
  return result_;
}

template <class R>
void Evaluator<R>::add_slope(const Node& n, const Value& v) {
  if (n.op == NodeOp::kScore) {
    const bool is_sum = result_.slope_size > 0.0;
    result_.slope += v.slope;
    result_.slope_size += v.size + v.moved + (is_sum ? v.size : 0.0);
    return;
  }
  ElementSlope<R> element;
  element.slot = n.slot;
  std::copy_n(v.index, kMaxRank, element.index);
  element.slope = v.slope;
  element.size = v.size + v.moved;
  result_.elements.push_back(element);
}

/// What an operand's derivative gets from its user's: `slope` times it.
template <class R>
void Evaluator<R>::push(const Node& n, int k, const Value& from, R slope, double slope_error) {
  Value& to = values_[static_cast<std::size_t>(n.args[k])];
  const double step = size(slope);
  const bool is_sign = step == 1.0 && slope_error == 0.0;
  if (to.size > 0.0) to.moved += times(from.size, step);  // the sum is rounded
  to.slope += from.slope * slope;
  to.size += times(from.size, step);
  to.moved += times(from.moved, step + u() * slope_error) +
              times(from.size, slope_error + (is_sign ? 0.0 : step));
}

template <class R>
void Evaluator<R>::push_all(const Node& n, const Value& v) {
  const Value& x = arg(n, 0);
  const Value& y = arg(n, n.count - 1);
  const double inverse = 1.0 / size(y.real);
  switch (n.op) {
    case NodeOp::kAdd:
    case NodeOp::kSubtract:
      push(n, 0, v, R{1}, 0.0);
      push(n, 1, v, n.op == NodeOp::kAdd ? R{1} : R{-1}, 0.0);
      break;
    case NodeOp::kMultiply:
      push(n, 0, v, y.real, y.error);
      push(n, 1, v, x.real, x.error);
      break;
    case NodeOp::kDivide:
      push(n, 0, v, R{1} / y.real, (kDivideError + times(y.error, inverse)) * inverse);
      push(n, 1, v, -v.real / y.real,
           (v.error + times(size(v.real), kDivideError + times(y.error, inverse))) * inverse);
      break;
    case NodeOp::kNegate: push(n, 0, v, R{-1}, 0.0); break;
    case NodeOp::kAbs: {
      const bool either = x.error > 0.0 && size(x.real) <= given_.margin * u() * x.error;
      const R sign = sign_of(x.real);
      push(n, 0, v, sign, either ? (1.0 + size(sign)) / u() : 0.0);
      break;
    }
    case NodeOp::kExp: push(n, 0, v, v.real, v.error); break;
    case NodeOp::kLog:
      push(n, 0, v, R{1} / x.real, (kDivideError + times(x.error, inverse)) * inverse);
      break;
    case NodeOp::kSqrt: {
      const R slope = R{0.5} / v.real;
      push(n, 0, v, slope, times(size(slope), kDivideError + v.error / size(v.real)));
      break;
    }
    // 1 - t^2 and s (1 - s) cancel.
    case NodeOp::kTanh: push(n, 0, v, R{1} - v.real * v.real, 1.0 + 2.0 * v.error); break;
    default: push(n, 0, v, v.real * (R{1} - v.real), 2.0 * size(v.real) + v.error); break;
  }
}

/// Only what was chosen has a derivative; a minimum or maximum of equal numbers half of each.
template <class R>
void Evaluator<R>::push_selected(const Node& n, const Value& v) {
  const bool is_where = n.op == NodeOp::kWhere;
  const int first = is_where ? 1 : 0;
  const Value &x = arg(n, first), &y = arg(n, first + 1);
  const bool either = is_where ? !arg(n, 0).certain : may_exchange(n, 0);
  R of_x = 0, of_y = 0;
  if (is_where) {
    (arg(n, 0).integer != 0 ? of_x : of_y) = R{1};
  } else if (x.real == y.real) {
    of_x = of_y = R{0.5};
  } else {
    const bool takes_x = n.op == NodeOp::kMin ? x.real < y.real : x.real > y.real;
    (takes_x ? of_x : of_y) = R{1};
  }
  const double moved = either ? 1.0 / u() : 0.0;
  if (of_x != 0 || either) push(n, first, v, of_x, moved);
  if (of_y != 0 || either) push(n, first + 1, v, of_y, moved);
}

template class Evaluator<float>;
template class Evaluator<double>;
template class Evaluator<long double>;

}  // namespace regard::oracle
