#pragma once

#include <cstdint>

#include "problem/problem.h"

// What the steps of a function can be over a box of places: the ends of their values. In doubles,
// which hold 32-bit integers exactly.

namespace regard::problem {

/// Of a bool 0 and 1.
struct Interval {
  double lo;
  double hi;
};

/// The places that are spoken of.
struct FunctionBox {
  Interval b{}, h{}, q{}, kv{}, position{}, len_q{}, len_kv{};
};

inline constexpr double kIntMin = -2147483648.0, kIntMax = 2147483647.0;

REGARD_KERNEL_FN Interval everything(semantics::FunctionType type) {
  if (type == semantics::FunctionType::kBool) return {0.0, 1.0};
  if (type == semantics::FunctionType::kInt) return {kIntMin, kIntMax};
  return {-__builtin_inf(), __builtin_inf()};
}
REGARD_KERNEL_FN bool is_point(const Interval& x) { return x.lo == x.hi; }
REGARD_KERNEL_FN double lesser(double a, double b) { return a < b ? a : b; }
REGARD_KERNEL_FN double greater(double a, double b) { return a > b ? a : b; }
REGARD_KERNEL_FN Interval joined(const Interval& a, const Interval& b) {
  return {lesser(a.lo, b.lo), greater(a.hi, b.hi)};
}

/// Element `at` of a captured tensor.
REGARD_KERNEL_FN double captured_element(const CapturedView& view, std::int64_t at) {
  switch (view.type) {
    case CapturedType::kF32: return reinterpret_cast<const float*>(view.data)[at];
    case CapturedType::kF64: return reinterpret_cast<const double*>(view.data)[at];
    case CapturedType::kBf16:
      return from_bf16(reinterpret_cast<const std::uint16_t*>(view.data)[at]);
    case CapturedType::kF16: return from_f16(reinterpret_cast<const std::uint16_t*>(view.data)[at]);
    case CapturedType::kI32: return reinterpret_cast<const std::int32_t*>(view.data)[at];
    case CapturedType::kI64:
      return static_cast<double>(reinterpret_cast<const std::int64_t*>(view.data)[at]);
    case CapturedType::kBytes: return reinterpret_cast<const std::uint8_t*>(view.data)[at];
  }
  return 0.0;
}

/// `count` ints that lie `stride` apart, joined with what is seen.
template <class T>
REGARD_KERNEL_FN Interval bound_ints(const char* data, std::int64_t at, std::int64_t stride,
                                     std::int64_t count, const Interval& seen) {
  const T* const x = reinterpret_cast<const T*>(data) + at;
  T low = x[0], high = x[0];
  if (stride == 1) {
    for (std::int64_t i = 1; i < count; ++i) {
      low = x[i] < low ? x[i] : low;
      high = x[i] > high ? x[i] : high;
    }
  } else {
    for (std::int64_t i = 1; i < count; ++i) {
      low = x[i * stride] < low ? x[i * stride] : low;
      high = x[i * stride] > high ? x[i * stride] : high;
    }
  }
  return joined(seen, {static_cast<double>(low), static_cast<double>(high)});
}

/// The elements that indices in `index` reach; everything where they are more than `limit`.
REGARD_KERNEL_FN Interval bound_gather(const CapturedView& view, const Interval (&index)[4],
                                       int count, semantics::FunctionType type,
                                       std::int64_t limit) {
  // The last index is that of the innermost loop.
  std::int64_t first[4] = {}, last[4] = {}, stride[4] = {}, elements = 1;
  for (int i = 0; i < count; ++i) {
    if (!(index[i].lo >= 0.0) || !(index[i].hi < static_cast<double>(view.extent[i]))) {
      return everything(type);
    }
    const int at = 4 - count + i;
    first[at] = static_cast<std::int64_t>(index[i].lo);
    last[at] = static_cast<std::int64_t>(index[i].hi);
    stride[at] = view.stride[i];
    elements *= last[at] - first[at] + 1;
    if (elements > limit) return everything(type);
  }
  Interval seen{__builtin_inf(), -__builtin_inf()};
  for (std::int64_t a = first[0]; a <= last[0]; ++a) {
    for (std::int64_t b = first[1]; b <= last[1]; ++b) {
      for (std::int64_t c = first[2]; c <= last[2]; ++c) {
        const std::int64_t row = a * stride[0] + b * stride[1] + c * stride[2];
        const std::int64_t begin = row + first[3] * stride[3], n = last[3] - first[3] + 1;
        if (view.type == CapturedType::kI32) {
          seen = bound_ints<std::int32_t>(view.data, begin, stride[3], n, seen);
          continue;
        }
        if (view.type == CapturedType::kI64) {
          seen = bound_ints<std::int64_t>(view.data, begin, stride[3], n, seen);
          continue;
        }
        for (std::int64_t d = first[3]; d <= last[3]; ++d) {
          const double x = captured_element(view, row + d * stride[3]);
          if (x != x) return everything(type);
          seen = {lesser(seen.lo, x), greater(seen.hi, x)};
        }
      }
    }
  }
  return seen;
}

REGARD_KERNEL_FN double product_end(double a, double b) {
  return a == 0.0 || b == 0.0 ? 0.0 : a * b;
}

REGARD_KERNEL_FN Interval product(const Interval& a, const Interval& b) {
  const double ends[4] = {product_end(a.lo, b.lo), product_end(a.lo, b.hi), product_end(a.hi, b.lo),
                          product_end(a.hi, b.hi)};
  Interval all{ends[0], ends[0]};
  for (const double end : ends) all = joined(all, {end, end});
  return all;
}

/// a // b and a % b of integers; by constants above 0 alone.
REGARD_KERNEL_FN Interval bound_division(const Interval& a, const Interval& by, bool remainder) {
  if (!is_point(by) || by.lo < 1.0) return everything(semantics::FunctionType::kInt);
  const Interval quotient{__builtin_floor(a.lo / by.lo), __builtin_floor(a.hi / by.lo)};
  if (!remainder) return quotient;
  if (!is_point(quotient)) return {0.0, by.lo - 1.0};
  return {a.lo - quotient.lo * by.lo, a.hi - quotient.lo * by.lo};
}

REGARD_KERNEL_FN Interval bound_comparison(semantics::FunctionOp op, const Interval& a,
                                           const Interval& b) {
  constexpr Interval kFalse{0.0, 0.0}, kTrue{1.0, 1.0}, kEither{0.0, 1.0};
  const bool apart = a.hi < b.lo || b.hi < a.lo;
  const bool same = is_point(a) && is_point(b) && a.lo == b.lo;
  switch (op) {
    case semantics::FunctionOp::kLess: return a.hi < b.lo ? kTrue : a.lo >= b.hi ? kFalse : kEither;
    case semantics::FunctionOp::kLessEqual:
      return a.hi <= b.lo ? kTrue : a.lo > b.hi ? kFalse : kEither;
    case semantics::FunctionOp::kEqual: return apart ? kFalse : same ? kTrue : kEither;
    default: return apart ? kTrue : same ? kFalse : kEither;
  }
}

REGARD_KERNEL_FN Interval bound_abs(const Interval& a) {
  const double low = -a.lo, high = greater(low, a.hi);
  return {a.lo > 0.0 ? a.lo : a.hi < 0.0 ? -a.hi : 0.0, high};
}

/// A step that computes, from its operands.
REGARD_KERNEL_FN Interval bound_step(const semantics::FunctionStep& step, const Interval& a,
                                     const Interval& b, const Interval& c) {
  using Op = semantics::FunctionOp;
  switch (step.op) {
    case Op::kAdd: return {a.lo + b.lo, a.hi + b.hi};
    case Op::kSubtract: return {a.lo - b.hi, a.hi - b.lo};
    case Op::kMultiply: return product(a, b);
    case Op::kMin: return {lesser(a.lo, b.lo), lesser(a.hi, b.hi)};
    case Op::kMax: return {greater(a.lo, b.lo), greater(a.hi, b.hi)};
    case Op::kNegate: return {-a.hi, -a.lo};
    case Op::kAbs: return bound_abs(a);
    case Op::kFloorDiv: return bound_division(a, b, false);
    case Op::kRemainder: return bound_division(a, b, true);
    case Op::kToReal: return a;
    case Op::kLess:
    case Op::kLessEqual:
    case Op::kEqual:
    case Op::kNotEqual: return bound_comparison(step.op, a, b);
    case Op::kAnd: return {lesser(a.lo, b.lo), lesser(a.hi, b.hi)};
    case Op::kOr: return {greater(a.lo, b.lo), greater(a.hi, b.hi)};
    case Op::kNot: return {1.0 - a.hi, 1.0 - a.lo};
    case Op::kWhere: return a.lo == 1.0 ? b : a.hi == 0.0 ? c : joined(b, c);
    default: return everything(step.type);
  }
}

REGARD_KERNEL_FN Interval bound_leaf(const semantics::FunctionStep& step, const FunctionBox& box) {
  using Op = semantics::FunctionOp;
  switch (step.op) {
    case Op::kConstant: return {step.value, step.value};
    case Op::kBatch: return box.b;
    case Op::kHead: return box.h;
    case Op::kQuery: return box.q;
    case Op::kKey: return box.kv;
    case Op::kPosition: return box.position;
    case Op::kLenQ: return box.len_q;
    case Op::kLenKv: return box.len_kv;
    default: return everything(step.type);
  }
}

/// A real that no arithmetic has rounded. Ints beyond 2^24 are no floats, but keep their order.
REGARD_KERNEL_FN bool is_exact(const semantics::FunctionStep& step) {
  using Op = semantics::FunctionOp;
  return step.op == Op::kToReal || step.op == Op::kConstant || step.op == Op::kGather;
}

/// Bounds every step. `limit`: elements of a captured tensor that are looked at for one step.
static inline void bound_steps(const semantics::FunctionProgram& program,
                               const CapturedView* captured, const FunctionBox& box,
                               std::int64_t limit, Interval* bounds) {
  for (std::int32_t i = 0; i < program.count; ++i) {
    const semantics::FunctionStep& step = program.steps[i];
    Interval args[4] = {};
    for (int a = 0; a < step.count; ++a) args[a] = bounds[step.args[a]];
    Interval bound{};
    if (step.op == semantics::FunctionOp::kGather) {
      bound = bound_gather(captured[step.slot], args, step.count, step.type, limit);
    } else if (step.count > 0) {
      bound = bound_step(step, args[0], args[1], args[2]);
    } else {
      bound = bound_leaf(step, box);
    }
    // Kernels round what they compute of reals, and may decide otherwise.
    if (step.type == semantics::FunctionType::kBool && step.on == semantics::FunctionType::kReal &&
        !(is_exact(program.steps[step.args[0]]) && is_exact(program.steps[step.args[1]]))) {
      bound = everything(step.type);
    }
    const bool wraps =
        step.type == semantics::FunctionType::kInt && !(bound.lo >= kIntMin && bound.hi <= kIntMax);
    // Infinities that cancel each other are NaN.
    const bool unknown = wraps || !(bound.lo <= bound.hi);
    bounds[i] = unknown ? everything(step.type) : bound;
  }
}

}  // namespace regard::problem
