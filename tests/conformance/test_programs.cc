#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "conformance/problem.h"
#include "conformance/random_function.h"
#include "conformance/rng.h"
#include "function/program.h"
#include "oracle/evaluate.h"
#include "oracle/functions.h"
#include "oracle/rules.h"
#include "regard/case.h"

// The steps that expressions are compiled to, run one by one in double over the registers that they
// name, against the oracle: kernels aside, what is compiled and derived is right.

namespace regard {
namespace {

using conformance::Rng;
using oracle::FunctionPlace;
using semantics::FunctionOp;
using semantics::FunctionProgram;
using semantics::FunctionRank;
using semantics::FunctionStep;
using semantics::FunctionType;

std::int32_t wrapped(std::int64_t x) { return static_cast<std::int32_t>(x); }

/// Ints and bools are doubles, too.
class Interpreter {
 public:
  Interpreter(const FunctionProgram& program, const TensorView* captured)
      : program_(program), captured_(captured) {}

  void run(const FunctionPlace& place, double score) {
    place_ = place;
    score_ = score;
    for (int rank = 0; rank < semantics::kFunctionRanks; ++rank) {
      registers_[rank].assign(static_cast<std::size_t>(program_.registers[rank]), std::nan(""));
      const std::int32_t begin = program_.rank_begin[rank], end = program_.rank_begin[rank + 1];
      for (std::int32_t n = begin; n < end; ++n) {
        const FunctionStep& step = program_.steps[n];
        EXPECT_EQ(static_cast<int>(step.rank), rank);
        const double value = compute(step, n);
        if (step.to >= 0) registers_[rank].at(static_cast<std::size_t>(step.to)) = value;
      }
    }
  }

  /// The value of a step after the run.
  double value(std::int32_t n) const {
    const FunctionStep& step = program_.steps[n];
    if (step.to < 0) return score_;
    return registers_[static_cast<int>(step.rank)].at(static_cast<std::size_t>(step.to));
  }

 private:
  double arg(const FunctionStep& step, int k, std::int32_t n) const {
    EXPECT_LT(step.args[k], n);
    return value(step.args[k]);
  }

  double leaf(const FunctionStep& step) const {
    switch (step.op) {
      case FunctionOp::kConstant: return step.value;
      case FunctionOp::kBatch: return place_.b;
      case FunctionOp::kHead: return place_.h;
      case FunctionOp::kQuery: return place_.q_idx;
      case FunctionOp::kKey: return place_.kv_idx;
      case FunctionOp::kPosition: return place_.q_pos;
      case FunctionOp::kLenQ: return place_.q_len;
      case FunctionOp::kLenKv: return place_.kv_len;
      default: return score_;
    }
  }

  double compute(const FunctionStep& step, std::int32_t n) const {
    if (step.count == 0) return leaf(step);
    double x[4] = {};
    for (int k = 0; k < step.count; ++k) x[k] = arg(step, k, n);
    if (step.op == FunctionOp::kGather) {
      const TensorView& view = captured_[step.slot];
      return oracle::element(view, static_cast<std::int64_t>(x[0]), static_cast<std::int64_t>(x[1]),
                             static_cast<std::int64_t>(x[2]), static_cast<std::int64_t>(x[3]));
    }
    if (step.type == FunctionType::kInt) return of_ints(step, x);
    return of_any(step, x);
  }

  static double of_ints(const FunctionStep& step, const double (&x)[4]) {
    const auto a = static_cast<std::int64_t>(step.on == FunctionType::kReal ? 0.0 : x[0]);
    const auto b = static_cast<std::int64_t>(x[1]);
    const auto floor_div = [&] {
      if (b == 0) return std::int64_t{0};
      return static_cast<std::int64_t>(
          std::floor(static_cast<long double>(a) / static_cast<long double>(b)));
    };
    switch (step.op) {
      case FunctionOp::kAdd: return wrapped(a + b);
      case FunctionOp::kSubtract: return wrapped(a - b);
      case FunctionOp::kMultiply: return wrapped(a * b);
      case FunctionOp::kNegate: return wrapped(-a);
      case FunctionOp::kAbs: return wrapped(std::abs(a));
      case FunctionOp::kFloorDiv: return wrapped(floor_div());
      case FunctionOp::kRemainder: return b == 0 ? 0 : wrapped(a - floor_div() * b);
      case FunctionOp::kToInt:
        return std::isnan(x[0]) ? 0.0 : std::trunc(std::clamp(x[0], -0x1p31, 0x1p31 - 1));
      default: return of_any(step, x);
    }
  }

  static double of_any(const FunctionStep& step, const double (&x)[4]) {
    switch (step.op) {
      case FunctionOp::kAdd: return x[0] + x[1];
      case FunctionOp::kSubtract: return x[0] - x[1];
      case FunctionOp::kMultiply: return x[0] * x[1];
      case FunctionOp::kMin: return x[0] < x[1] ? x[0] : x[1];
      case FunctionOp::kMax: return x[0] > x[1] ? x[0] : x[1];
      case FunctionOp::kNegate: return -x[0];
      case FunctionOp::kAbs: return std::fabs(x[0]);
      case FunctionOp::kDivide: return x[0] / x[1];
      case FunctionOp::kExp: return std::exp(x[0]);
      case FunctionOp::kLog: return std::log(x[0]);
      case FunctionOp::kSqrt: return std::sqrt(x[0]);
      case FunctionOp::kTanh: return std::tanh(x[0]);
      case FunctionOp::kSigmoid: return 1.0 / (1.0 + std::exp(-x[0]));
      case FunctionOp::kToReal: return x[0];
      case FunctionOp::kLess: return x[0] < x[1];
      case FunctionOp::kLessEqual: return x[0] <= x[1];
      case FunctionOp::kEqual: return x[0] == x[1];
      case FunctionOp::kNotEqual: return x[0] != x[1];
      case FunctionOp::kAnd: return x[0] != 0 && x[1] != 0;
      case FunctionOp::kOr: return x[0] != 0 || x[1] != 0;
      case FunctionOp::kNot: return x[0] == 0;
      case FunctionOp::kWhere: return x[0] != 0 ? x[1] : x[2];
      default: ADD_FAILURE() << "op " << static_cast<int>(step.op); return 0.0;
    }
  }

  const FunctionProgram& program_;
  const TensorView* captured_;
  FunctionPlace place_{};
  double score_ = 0.0;
  std::vector<double> registers_[semantics::kFunctionRanks];
};

/// Random functions of a small case, and the tensors that they read.
class RandomPrograms {
 public:
  explicit RandomPrograms(std::uint64_t n)
      : case_(make_case(n, &texts_)), problem_(conformance::make_problem(case_)) {
    for (int k = 0; k < oracle::kCapturedCount; ++k) {
      captured_[k] = problem_.request().*oracle::kCaptured[k];
    }
  }
  const Expression& score() const { return case_.params.score_function; }
  const Expression& mask() const { return case_.params.mask_function; }
  const TensorView* captured() const { return captured_; }
  /// What the oracle reads: the texts before the library printed them.
  oracle::Function read(const Expression& e) const {
    const std::string& text = &e == &score() ? texts_.score : texts_.mask;
    return oracle::Function::parse(text).value();
  }

 private:
  static Case make_case(std::uint64_t n, conformance::RandomFunctions* texts) {
    Case c = parse_case("b3 hq4 sq20 skv33 d8 f32 diag=br lens").value();
    Rng rng(n, 0x70726f6772616d73);
    *texts = conformance::random_functions(c.params, true, true, &rng);
    const conformance::RandomFunctions& made = *texts;
    c.params.score_function = Expression::parse(made.score).value();
    c.params.mask_function = Expression::parse(made.mask).value();
    c.data.seed = n;
    canonicalize(c);
    return c;
  }

  conformance::RandomFunctions texts_;
  Case case_;
  conformance::Problem problem_;
  TensorView captured_[oracle::kCapturedCount];
};

FunctionPlace random_program_place(Rng* rng) {
  const auto draw = [&](std::int64_t below) {
    return static_cast<std::int32_t>(rng->between(0, below - 1));
  };
  FunctionPlace place{draw(3), draw(4), draw(20), draw(33), 0, 0, 0};
  place.q_len = place.q_idx + 1 + draw(20 - place.q_idx);
  place.kv_len = place.kv_idx + 1 + draw(33 - place.kv_idx);
  place.q_pos = place.q_idx + place.kv_len - place.q_len;
  return place;
}

bool is_near(double actual, double expected) {
  if (std::isnan(expected)) return std::isnan(actual);
  return actual == expected || std::fabs(actual - expected) <= 1e-11 * (1.0 + std::fabs(expected));
}

using Element = std::pair<int, std::vector<std::int64_t>>;

/// The derivatives that a program scatters, by element.
std::map<Element, double> scattered(const FunctionProgram& program, const Interpreter& run) {
  std::map<Element, double> sums;
  for (std::int32_t n = 0; n < program.scatter_count; ++n) {
    const FunctionStep& gather = program.steps[program.scatters[n].gather];
    Element element{gather.slot, {}};
    for (int k = 0; k < gather.count; ++k) {
      element.second.push_back(static_cast<std::int64_t>(run.value(gather.args[k])));
    }
    sums[element] += run.value(program.scatters[n].derivative);
  }
  return sums;
}

TEST(Programs, ComputeWhatTheOracleDoes) {
  for (std::uint64_t n = 0; n < 1500; ++n) {
    const RandomPrograms random(n);
    for (const Expression* e : {&random.score(), &random.mask()}) {
      const FunctionProgram& program = function::programs_of(*e).value.view;
      const oracle::Function function = random.read(*e);
      oracle::Evaluator<double> truth(function, random.captured());
      Interpreter interpreter(program, random.captured());
      Rng rng(n, 0x706c61636573);
      for (int k = 0; k < 6; ++k) {
        const FunctionPlace place = random_program_place(&rng);
        const double score = 3.0 * rng.normal_at(rng.bits());
        interpreter.run(place, score);
        const double expected = truth.value(place, score).value;
        ASSERT_PRED2(is_near, interpreter.value(program.result), expected) << e->text();
      }
    }
  }
}

TEST(Programs, DeriveWhatTheOracleDoes) {
  std::int64_t elements = 0;
  for (std::uint64_t n = 0; n < 1500; ++n) {
    const RandomPrograms random(n);
    const Expression& e = random.score();
    const FunctionProgram& program = function::programs_of(e).gradient.view;
    const oracle::Function function = random.read(e);
    oracle::Evaluator<double> truth(function, random.captured());
    Interpreter interpreter(program, random.captured());
    Rng rng(n, 0x706c61636573);
    for (int k = 0; k < 6; ++k) {
      const FunctionPlace place = random_program_place(&rng);
      const double score = 3.0 * rng.normal_at(rng.bits());
      interpreter.run(place, score);
      truth.value(place, score);
      const oracle::FunctionResult<double> expected = truth.differentiate();
      ASSERT_PRED2(is_near, interpreter.value(program.result), expected.slope) << e.text();
      std::map<Element, double> sums = scattered(program, interpreter);
      for (const oracle::ElementSlope<double>& element : expected.elements) {
        const int rank = random.captured()[element.slot].rank;
        sums[{element.slot, {element.index, element.index + rank}}] -= element.slope;
        ++elements;
      }
      for (const auto& [element, left] : sums) ASSERT_PRED2(is_near, left, 0.0) << e.text();
    }
  }
  EXPECT_GT(elements, 2000);
}

}  // namespace
}  // namespace regard
