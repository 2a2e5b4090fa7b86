#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <vector>

#include "problem/problem.h"
#include "semantics/function_program.h"

// Programs as tests put them together, and what they give at one place, computed step by step in
// scalars.

namespace regard::test {

using problem::CapturedType;
using problem::CapturedView;
using semantics::FunctionOp;
using semantics::FunctionProgram;
using semantics::FunctionRank;
using semantics::FunctionScatter;
using semantics::FunctionStep;
using semantics::FunctionType;

/// A program and its steps.
struct TestProgram {
  std::vector<FunctionStep> steps;
  std::vector<FunctionScatter> scatters;
  FunctionProgram view;
};

/// Steps in any order of ranks, operands first.
class ProgramBuilder {
 public:
  int constant(FunctionType type, double value) {
    FunctionStep step;
    step.type = type;
    step.value = value;
    return push(step);
  }
  int leaf(FunctionOp op) {
    FunctionStep step;
    step.op = op;
    step.type = step.on = op == FunctionOp::kScore ? FunctionType::kReal : FunctionType::kInt;
    return push(step);
  }
  /// The type of the result follows from the operation.
  int add(FunctionOp op, FunctionType on, std::initializer_list<int> args, int slot = 0) {
    FunctionStep step;
    step.op = op;
    step.on = on;
    step.type = result_type(op, on);
    step.slot = static_cast<std::int8_t>(slot);
    for (const int arg : args) step.args[step.count++] = static_cast<std::int16_t>(arg);
    return push(step);
  }
  int gather(int slot, FunctionType type, const std::vector<int>& indices) {
    FunctionStep step;
    step.op = FunctionOp::kGather;
    step.on = FunctionType::kInt;
    step.type = type;
    step.slot = static_cast<std::int8_t>(slot);
    for (const int arg : indices) step.args[step.count++] = static_cast<std::int16_t>(arg);
    return push(step);
  }
  /// A number or bool as a real: bools are 1.5 and -2.
  int as_real(int step) {
    switch (steps_[static_cast<std::size_t>(step)].type) {
      case FunctionType::kReal: return step;
      case FunctionType::kInt: return add(FunctionOp::kToReal, FunctionType::kInt, {step});
      default: break;
    }
    const int yes = constant(FunctionType::kReal, 1.5), no = constant(FunctionType::kReal, -2.0);
    return add(FunctionOp::kWhere, FunctionType::kReal, {step, yes, no});
  }
  FunctionType type(int step) const { return steps_[static_cast<std::size_t>(step)].type; }
  int count() const { return static_cast<int>(steps_.size()); }

  TestProgram finish(int result, const std::vector<FunctionScatter>& scatters = {}) const {
    TestProgram program;
    std::vector<int> place(steps_.size());
    for (int rank = 0; rank < semantics::kFunctionRanks; ++rank) {
      program.view.rank_begin[rank] = static_cast<std::int32_t>(program.steps.size());
      for (std::size_t i = 0; i < steps_.size(); ++i) {
        if (static_cast<int>(steps_[i].rank) != rank) continue;
        place[i] = static_cast<int>(program.steps.size());
        FunctionStep step = steps_[i];
        const bool is_score = step.op == FunctionOp::kScore;
        step.to = static_cast<std::int16_t>(is_score ? -1 : program.view.registers[rank]++);
        program.steps.push_back(step);
      }
    }
    const auto placed = [&](int step) {
      return static_cast<std::int16_t>(place[static_cast<std::size_t>(step)]);
    };
    for (FunctionStep& step : program.steps) {
      for (int a = 0; a < step.count; ++a) step.args[a] = placed(step.args[a]);
    }
    for (const FunctionScatter& s : scatters) {
      program.scatters.push_back({placed(s.gather), placed(s.derivative)});
    }
    program.view.rank_begin[semantics::kFunctionRanks] =
        static_cast<std::int32_t>(program.steps.size());
    program.view.result = placed(result);
    program.view.count = static_cast<std::int32_t>(program.steps.size());
    program.view.steps = program.steps.data();
    program.view.scatters = program.scatters.data();
    program.view.scatter_count = static_cast<std::int32_t>(program.scatters.size());
    return program;
  }

 private:
  static FunctionType result_type(FunctionOp op, FunctionType on) {
    switch (op) {
      case FunctionOp::kLess:
      case FunctionOp::kLessEqual:
      case FunctionOp::kEqual:
      case FunctionOp::kNotEqual: return FunctionType::kBool;
      case FunctionOp::kToReal: return FunctionType::kReal;
      case FunctionOp::kToInt: return FunctionType::kInt;
      default: return on;
    }
  }
  int push(FunctionStep step) {
    step.rank = step.op == FunctionOp::kScore                        ? FunctionRank::kFull
                : step.op == FunctionOp::kKey                        ? FunctionRank::kKey
                : step.op == FunctionOp::kConstant || step.count > 0 ? FunctionRank::kConstant
                                                                     : FunctionRank::kRow;
    for (int a = 0; a < step.count; ++a) {
      const FunctionRank rank = steps_[static_cast<std::size_t>(step.args[a])].rank;
      if (rank == step.rank || rank == FunctionRank::kConstant) continue;
      step.rank = step.rank == FunctionRank::kConstant ? rank : FunctionRank::kFull;
    }
    steps_.push_back(step);
    return count() - 1;
  }
  std::vector<FunctionStep> steps_;
};

/// Where a score stands.
struct TestPlace {
  std::int32_t b, h, query, key, shift, len_q, len_kv;
};

/// What a step gives; bools are 0 or 1 in `number`.
template <class T>
struct TestValue {
  T real = 0;
  std::int32_t number = 0;
};

/// The element of a captured tensor that a gather step reads.
inline std::int64_t gathered_place(const CapturedView& view, const std::vector<std::int32_t>& at) {
  std::int64_t sum = 0;
  for (std::size_t d = 0; d < at.size(); ++d) sum += at[d] * view.stride[d];
  return sum;
}

template <class T>
TestValue<T> captured_value(const CapturedView& view, std::int64_t at) {
  const auto element = [&](auto type) { return reinterpret_cast<decltype(type)*>(view.data)[at]; };
  switch (view.type) {
    case CapturedType::kF32: return {static_cast<T>(element(float()))};
    case CapturedType::kF64: return {static_cast<T>(element(double()))};
    case CapturedType::kBf16: return {static_cast<T>(problem::from_bf16(element(std::uint16_t())))};
    case CapturedType::kF16: return {static_cast<T>(problem::from_f16(element(std::uint16_t())))};
    case CapturedType::kI32: return {0, element(std::int32_t())};
    case CapturedType::kI64: return {0, static_cast<std::int32_t>(element(std::int64_t()))};
    case CapturedType::kBytes: return {0, element(std::uint8_t())};
  }
  return {};
}

inline std::int32_t wrap(std::int64_t x) { return static_cast<std::int32_t>(x); }

inline std::int32_t floor_quotient(std::int64_t x, std::int64_t y) {
  if (y == 0) return 0;
  return wrap(x / y - (x % y != 0 && (x < 0) != (y < 0) ? 1 : 0));
}

template <class T>
std::int32_t saturated(T x) {
  if (std::isnan(x)) return 0;
  if (x >= T(2147483648.0)) return INT32_MAX;
  return x < T(-2147483648.0) ? INT32_MIN : static_cast<std::int32_t>(x);
}

/// A step of reals.
template <class T>
T real_step(FunctionOp op, T x, T y) {
  switch (op) {
    case FunctionOp::kAdd: return x + y;
    case FunctionOp::kSubtract: return x - y;
    case FunctionOp::kMultiply: return x * y;
    case FunctionOp::kDivide: return x / y;
    case FunctionOp::kMin: return x < y ? x : y;
    case FunctionOp::kMax: return x > y ? x : y;
    case FunctionOp::kNegate: return -x;
    case FunctionOp::kAbs: return std::fabs(x);
    case FunctionOp::kExp: return std::exp(x);
    case FunctionOp::kLog: return std::log(x);
    case FunctionOp::kSqrt: return std::sqrt(x);
    case FunctionOp::kTanh: return std::tanh(x);
    default: return T(1) / (T(1) + std::exp(-x));  // sigmoid
  }
}

/// A step of integers.
inline std::int32_t int_step(FunctionOp op, std::int64_t x, std::int64_t y) {
  switch (op) {
    case FunctionOp::kAdd: return wrap(x + y);
    case FunctionOp::kSubtract: return wrap(x - y);
    case FunctionOp::kMultiply: return wrap(x * y);
    case FunctionOp::kMin: return wrap(std::min(x, y));
    case FunctionOp::kMax: return wrap(std::max(x, y));
    case FunctionOp::kNegate: return wrap(-x);
    case FunctionOp::kAbs: return wrap(x < 0 ? -x : x);
    case FunctionOp::kFloorDiv: return floor_quotient(x, y);
    default: return y == 0 ? 0 : wrap(x - std::int64_t{floor_quotient(x, y)} * y);  // remainder
  }
}

template <class X>
bool bool_step(FunctionOp op, X x, X y) {
  switch (op) {
    case FunctionOp::kLess: return x < y;
    case FunctionOp::kLessEqual: return x <= y;
    case FunctionOp::kEqual: return x == y;
    default: return x != y;
  }
}

template <class T>
TestValue<T> leaf_value(const FunctionStep& step, const TestPlace& at, T score) {
  switch (step.op) {
    case FunctionOp::kConstant:
      if (step.type == FunctionType::kReal) return {static_cast<T>(step.value)};
      return {0, static_cast<std::int32_t>(step.value)};
    case FunctionOp::kScore: return {score};
    case FunctionOp::kBatch: return {0, at.b};
    case FunctionOp::kHead: return {0, at.h};
    case FunctionOp::kQuery: return {0, at.query};
    case FunctionOp::kKey: return {0, at.key};
    case FunctionOp::kPosition: return {0, wrap(std::int64_t{at.query} + at.shift)};
    case FunctionOp::kLenQ: return {0, at.len_q};
    default: return {0, at.len_kv};
  }
}

template <class T>
TestValue<T> step_value(const FunctionStep& step, const TestValue<T>& a, const TestValue<T>& b,
                        const TestValue<T>& c) {
  const bool is_real = step.on == FunctionType::kReal;
  switch (step.op) {
    case FunctionOp::kToReal: return {static_cast<T>(a.number)};
    case FunctionOp::kToInt: return {0, saturated(a.real)};
    case FunctionOp::kLess:
    case FunctionOp::kLessEqual:
    case FunctionOp::kEqual:
    case FunctionOp::kNotEqual:
      return {
          0, is_real ? bool_step(step.op, a.real, b.real) : bool_step(step.op, a.number, b.number)};
    case FunctionOp::kAnd: return {0, a.number & b.number};
    case FunctionOp::kOr: return {0, a.number | b.number};
    case FunctionOp::kNot: return {0, 1 - a.number};
    case FunctionOp::kWhere: return a.number != 0 ? b : c;
    default: break;
  }
  if (is_real) return {real_step(step.op, a.real, b.real)};
  return {0, int_step(step.op, a.number, b.number)};
}

/// What every step gives at a place.
template <class T>
std::vector<TestValue<T>> values_at(const FunctionProgram& program, const CapturedView* captured,
                                    const TestPlace& at, T score) {
  std::vector<TestValue<T>> values;
  values.reserve(static_cast<std::size_t>(program.count));
  for (int i = 0; i < program.count; ++i) {
    const FunctionStep& step = program.steps[i];
    const auto arg = [&](int a) {
      return step.count > a ? values[static_cast<std::size_t>(step.args[a])] : TestValue<T>{};
    };
    if (step.op == FunctionOp::kGather) {
      std::vector<std::int32_t> indices;
      for (int a = 0; a < step.count; ++a) indices.push_back(arg(a).number);
      const CapturedView& view = captured[step.slot];
      values.push_back(captured_value<T>(view, gathered_place(view, indices)));
    } else if (step.count == 0) {
      values.push_back(leaf_value(step, at, score));
    } else {
      values.push_back(step_value(step, arg(0), arg(1), arg(2)));
    }
  }
  return values;
}

}  // namespace regard::test
