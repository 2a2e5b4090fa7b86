#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cpu/functions/function_kernel.h"
#include "function_programs.h"
#include "function_tile.h"
#include "regard/env.h"

// Score and mask functions over a tile, on every instruction set that this machine has: each step
// with operands of every rank, against the same in scalars.

namespace regard::test {
namespace {

using cpu::FunctionKernel;
using problem::Functions;

struct Param {
  Isa isa;
  const FunctionKernel* kernel;
};

std::vector<Param> kernels() {
  std::vector<Param> params = {{Isa::kScalar, &cpu::kScalarFunctionsF32},
                               {Isa::kScalar, &cpu::kScalarFunctionsF64}};
#if defined(__x86_64__)
  const Param compiled[] = {{Isa::kAvx2, &cpu::kAvx2FunctionsF32},
                            {Isa::kAvx2, &cpu::kAvx2FunctionsF64},
                            {Isa::kAvx512, &cpu::kAvx512FunctionsF32},
                            {Isa::kAvx512, &cpu::kAvx512FunctionsF64}};
#elif defined(__aarch64__)
  const Param compiled[] = {{Isa::kNeon, &cpu::kNeonFunctionsF32},
                            {Isa::kNeon, &cpu::kNeonFunctionsF64}};
#endif
#if defined(__x86_64__) || defined(__aarch64__)
  for (const Param& p : compiled) {
    if (read_env().isa_available.includes(p.isa)) params.push_back(p);
  }
#endif
  return params;
}

class FunctionKernelTest : public testing::TestWithParam<Param> {
 protected:
  const FunctionKernel& kernel() const { return *GetParam().kernel; }
  std::int64_t width() const { return kernel().lanes * kernel().vectors; }

  /// Calls f(T()) with the arithmetic's type.
  template <class F>
  void with_type(F f) const {
    if (kernel().scalar_bytes == sizeof(double)) {
      f(double());
    } else {
      f(float());
    }
  }

  /// The score function's results equal the steps in scalars. `tolerance`: relative, f32 only.
  template <class T>
  void expect_score(const TestProgram& program, const CapturedView* captured, std::int64_t rows,
                    std::int64_t size, double tolerance, const std::string& what) const {
    TestTile<T> t(kernel(), rows, size);
    Functions f;
    f.score = program.view;
    for (int slot = 0; captured != nullptr && slot < problem::kMaxCapturedViews; ++slot) {
      f.captured[slot] = captured[slot];
    }
    std::vector<T> edited = t.scores;
    t.with_memory(program.view,
                  [&](char* memory) { kernel().edit(f, t.tile, edited.data(), memory); });
    t.expect_other_lanes(t.scores, edited);
    for (std::int64_t j = 0; j < size; ++j) {
      for (std::int64_t w = 0; w < rows; ++w) {
        const std::size_t at = t.at(j, w);
        const auto values = values_at<T>(program.view, f.captured, t.place(j, w), t.scores[at]);
        const T expected = values[static_cast<std::size_t>(program.view.result)].real;
        const bool is_close =
            sizeof(T) == sizeof(float) && tolerance > 0.0 &&
            std::fabs(edited[at] - expected) <= static_cast<T>(tolerance) * std::fabs(expected);
        ASSERT_TRUE(is_close || same_bits(edited[at], expected))
            << what << ": key " << j << " lane " << w << " of " << size << " x " << rows << " is "
            << edited[at] << ", expected " << expected;
      }
    }
  }
  /// Over row blocks and tiles of several sizes.
  void expect_score(const TestProgram& program, const std::string& what, double tolerance = 0.0,
                    const CapturedView* captured = nullptr) const {
    struct Extents {
      std::int64_t rows, size;
    };
    for (const Extents& extents : {Extents{1, 131}, Extents{width() - kernel().lanes, 7},
                                   Extents{width(), 1}, Extents{width(), 131}}) {
      with_type([&](auto type) {
        expect_score<decltype(type)>(program, captured, extents.rows, extents.size, tolerance,
                                     what);
      });
      if (HasFatalFailure()) return;
    }
  }
};

/// A value of a type and rank that takes many values, small ones and 0 among them.
int function_operand(ProgramBuilder* b, FunctionType type, FunctionRank rank, int which) {
  const auto number = [&](double value) { return b->constant(FunctionType::kInt, value); };
  const auto ints = [&](FunctionOp op, int x, int y) {
    return b->add(op, FunctionType::kInt, {x, y});
  };
  const int scale = number(which == 0 ? 3 : -2);
  const int row = ints(FunctionOp::kSubtract, b->leaf(FunctionOp::kQuery), number(which + 2));
  const int key = ints(FunctionOp::kSubtract, b->leaf(FunctionOp::kKey), number(64 + 3 * which));
  int value = number(which == 0 ? -7 : 5);
  if (rank == FunctionRank::kRow) value = ints(FunctionOp::kMultiply, row, scale);
  if (rank == FunctionRank::kKey) value = ints(FunctionOp::kMultiply, key, scale);
  if (rank == FunctionRank::kFull) value = ints(FunctionOp::kAdd, key, row);
  if (type == FunctionType::kInt) return value;
  if (type == FunctionType::kBool)
    return b->add(FunctionOp::kLess, FunctionType::kInt, {value, number(1)});
  const int real = b->add(FunctionOp::kToReal, FunctionType::kInt, {value});
  const int factor = b->constant(FunctionType::kReal, which == 0 ? 0.37 : 1.25);
  if (rank == FunctionRank::kFull) {
    return b->add(FunctionOp::kMultiply, FunctionType::kReal,
                  {b->leaf(FunctionOp::kScore), factor});
  }
  return b->add(FunctionOp::kMultiply, FunctionType::kReal, {real, factor});
}

struct OpCase {
  FunctionOp op;
  FunctionType on;
  int count;
  double tolerance = 0.0;
};

constexpr OpCase kOps[] = {
    {FunctionOp::kAdd, FunctionType::kReal, 2},
    {FunctionOp::kAdd, FunctionType::kInt, 2},
    {FunctionOp::kSubtract, FunctionType::kReal, 2},
    {FunctionOp::kSubtract, FunctionType::kInt, 2},
    {FunctionOp::kMultiply, FunctionType::kReal, 2},
    {FunctionOp::kMultiply, FunctionType::kInt, 2},
    {FunctionOp::kMin, FunctionType::kReal, 2},
    {FunctionOp::kMin, FunctionType::kInt, 2},
    {FunctionOp::kMax, FunctionType::kReal, 2},
    {FunctionOp::kMax, FunctionType::kInt, 2},
    {FunctionOp::kNegate, FunctionType::kReal, 1},
    {FunctionOp::kNegate, FunctionType::kInt, 1},
    {FunctionOp::kAbs, FunctionType::kReal, 1},
    {FunctionOp::kAbs, FunctionType::kInt, 1},
    {FunctionOp::kFloorDiv, FunctionType::kInt, 2},
    {FunctionOp::kRemainder, FunctionType::kInt, 2},
    {FunctionOp::kDivide, FunctionType::kReal, 2},
    {FunctionOp::kExp, FunctionType::kReal, 1, 4e-7},
    {FunctionOp::kLog, FunctionType::kReal, 1, 4e-7},
    {FunctionOp::kSqrt, FunctionType::kReal, 1},
    {FunctionOp::kTanh, FunctionType::kReal, 1, 4e-7},
    {FunctionOp::kSigmoid, FunctionType::kReal, 1, 4e-7},
    {FunctionOp::kToReal, FunctionType::kInt, 1},
    {FunctionOp::kToInt, FunctionType::kReal, 1},
    {FunctionOp::kLess, FunctionType::kReal, 2},
    {FunctionOp::kLess, FunctionType::kInt, 2},
    {FunctionOp::kLessEqual, FunctionType::kReal, 2},
    {FunctionOp::kLessEqual, FunctionType::kInt, 2},
    {FunctionOp::kEqual, FunctionType::kReal, 2},
    {FunctionOp::kEqual, FunctionType::kInt, 2},
    {FunctionOp::kNotEqual, FunctionType::kReal, 2},
    {FunctionOp::kNotEqual, FunctionType::kInt, 2},
    {FunctionOp::kAnd, FunctionType::kBool, 2},
    {FunctionOp::kOr, FunctionType::kBool, 2},
    {FunctionOp::kNot, FunctionType::kBool, 1},
};

std::string op_name(const OpCase& c) {
  return "op " + std::to_string(static_cast<int>(c.op)) + " on " +
         std::to_string(static_cast<int>(c.on));
}

FunctionRank rank_at(int ranks, int arg) {
  return static_cast<FunctionRank>(ranks >> (2 * arg) & 3);
}

TEST_P(FunctionKernelTest, EveryStepWithOperandsOfEveryRank) {
  for (const OpCase& c : kOps) {
    for (int ranks = 0; ranks < (c.count == 1 ? 4 : 16); ++ranks) {
      ProgramBuilder b;
      const int x = function_operand(&b, c.on, rank_at(ranks, 0), 0);
      const int y = c.count == 2 ? function_operand(&b, c.on, rank_at(ranks, 1), 1) : -1;
      const int result = c.count == 1 ? b.add(c.op, c.on, {x}) : b.add(c.op, c.on, {x, y});
      expect_score(b.finish(b.as_real(result)), op_name(c) + " ranks " + std::to_string(ranks),
                   c.tolerance);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(FunctionKernelTest, WhereOfEveryTypeAndRank) {
  for (const FunctionType type : {FunctionType::kReal, FunctionType::kInt, FunctionType::kBool}) {
    for (int ranks = 0; ranks < 64; ++ranks) {
      ProgramBuilder b;
      const int condition = function_operand(&b, FunctionType::kBool, rank_at(ranks, 0), 1);
      const int x = function_operand(&b, type, rank_at(ranks, 1), 0);
      const int y = function_operand(&b, type, rank_at(ranks, 2), 1);
      const int result = b.add(FunctionOp::kWhere, type, {condition, x, y});
      expect_score(b.finish(b.as_real(result)), "where, ranks " + std::to_string(ranks));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(FunctionKernelTest, LeavesOfEveryRank) {
  for (const FunctionOp op :
       {FunctionOp::kScore, FunctionOp::kBatch, FunctionOp::kHead, FunctionOp::kQuery,
        FunctionOp::kKey, FunctionOp::kPosition, FunctionOp::kLenQ, FunctionOp::kLenKv}) {
    ProgramBuilder b;
    expect_score(b.finish(b.as_real(b.leaf(op))), "leaf " + std::to_string(static_cast<int>(op)));
  }
  for (const double value : {0.1, -0.0, 1e300, std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN()}) {
    ProgramBuilder b;
    const TestProgram program = b.finish(b.constant(FunctionType::kReal, value));
    if (value == 1e300 && kernel().scalar_bytes == sizeof(float)) continue;  // saturates
    expect_score(program, "constant " + std::to_string(value));
  }
}

TEST_P(FunctionKernelTest, DivisionsOfAllKindsOfIntegers) {
  const std::int32_t numbers[] = {
      0,   1,    -1,    2,         -2,        3,          7,
      -7,  128,  -128,  1000003,   INT32_MAX, INT32_MIN,  INT32_MAX - 1,
      -64, 4096, 65535, -16777217, 1 << 30,   -(1 << 30), INT32_MIN + 1};
  for (const std::int32_t y : numbers) {
    for (const FunctionOp op : {FunctionOp::kFloorDiv, FunctionOp::kRemainder}) {
      for (const bool is_constant : {false, true}) {  // by a constant, and by one that hides
        std::vector<std::int32_t> data(numbers, std::end(numbers));
        data.push_back(y);
        CapturedView captured[problem::kMaxCapturedViews];
        captured[0] = {reinterpret_cast<char*>(data.data()), {1}, {}, CapturedType::kI32};
        ProgramBuilder b;
        const int key = b.add(FunctionOp::kSubtract, FunctionType::kInt,
                              {b.leaf(FunctionOp::kKey), b.constant(FunctionType::kInt, 61)});
        const int row = b.add(FunctionOp::kMultiply, FunctionType::kInt,
                              {b.leaf(FunctionOp::kQuery), b.constant(FunctionType::kInt, 0)});
        const int x = b.gather(0, FunctionType::kInt,
                               {b.add(FunctionOp::kAdd, FunctionType::kInt, {key, row})});
        const int last = b.constant(FunctionType::kInt, static_cast<double>(data.size() - 1));
        const int by = is_constant ? b.constant(FunctionType::kInt, y)
                                   : b.gather(0, FunctionType::kInt, {last});
        const TestProgram program = b.finish(b.as_real(b.add(op, FunctionType::kInt, {x, by})));
        with_type([&](auto type) {
          expect_score<decltype(type)>(program, captured, width(), std::ssize(numbers), 0.0,
                                       "by " + std::to_string(y));
        });
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(FunctionKernelTest, RealsOfAllKindsBecomeIntegers) {
  with_type([&](auto type) {
    using T = decltype(type);
    const T infinity = std::numeric_limits<T>::infinity();
    std::vector<T> numbers = {
        0,        T(-0.0),   T(0.99),         T(-0.99),        T(1.5),           T(-1.5),
        infinity, -infinity, T(2147483647.0), T(2147483648.0), T(-2147483648.0), T(-2147483649.0),
        T(4e9),   T(-4e9),   T(1e30),         T(-1e30),        T(16777217.0),    T(NAN)};
    ProgramBuilder b;
    const int score = b.leaf(FunctionOp::kScore);
    const TestProgram program =
        b.finish(b.as_real(b.add(FunctionOp::kToInt, FunctionType::kReal, {score})));
    TestTile<T> t(kernel(), width(), std::ssize(numbers));
    for (std::int64_t j = 0; j < std::ssize(numbers); ++j) {
      for (std::int64_t w = 0; w < width(); ++w) {
        t.scores[t.at(j, w)] = numbers[static_cast<std::size_t>((j + w) % std::ssize(numbers))];
      }
    }
    Functions f;
    f.score = program.view;
    std::vector<T> edited = t.scores;
    t.with_memory(program.view,
                  [&](char* memory) { kernel().edit(f, t.tile, edited.data(), memory); });
    for (std::size_t x = 0; x < edited.size(); ++x) {
      EXPECT_EQ(edited[x], static_cast<T>(saturated(t.scores[x]))) << t.scores[x];
    }
  });
}

/// A dense tensor of small numbers with room around its rows.
class CapturedTensor {
 public:
  CapturedTensor(CapturedType type, const std::vector<std::int64_t>& extents, unsigned seed)
      : bytes_of_{4, 8, 2, 2, 4, 8, 1} {
    std::int64_t size = 1;
    for (std::size_t d = extents.size(); d-- > 0;) {
      view.extent[d] = extents[d];
      view.stride[d] = size;
      size *= extents[d] + (d == 1 ? 2 : 0);  // no dimension but the last is dense
    }
    std::mt19937 rng(seed);
    memory_.resize(static_cast<std::size_t>(size * bytes_of_[static_cast<int>(type)]));
    for (std::int64_t x = 0; x < size; ++x) set(type, x, static_cast<int>(rng() % 200) - 100);
    view.type = type;
    view.data = memory_.data();
  }
  CapturedView view;

 private:
  void set(CapturedType type, std::int64_t at, int value) {
    const auto put = [&](auto element) {
      std::memcpy(memory_.data() + at * static_cast<std::int64_t>(sizeof(element)), &element,
                  sizeof(element));
    };
    const float real = static_cast<float>(value) / 8.0f;
    switch (type) {
      case CapturedType::kF32: return put(real);
      case CapturedType::kF64: return put(static_cast<double>(real));
      case CapturedType::kBf16: return put(problem::to_bf16(real));
      case CapturedType::kF16: return put(problem::to_f16(real));
      case CapturedType::kI32: return put(std::int32_t{value});
      case CapturedType::kI64: return put(std::int64_t{value});
      case CapturedType::kBytes: return put(static_cast<std::uint8_t>(value + 100));
    }
  }
  int bytes_of_[7];
  std::vector<char> memory_;
};

/// An index of a rank within [0, extent).
int index_of(ProgramBuilder* b, FunctionRank rank, int extent) {
  const int value = function_operand(b, FunctionType::kInt, rank, 1);
  return b->add(FunctionOp::kRemainder, FunctionType::kInt,
                {value, b->constant(FunctionType::kInt, extent)});
}

TEST_P(FunctionKernelTest, GathersOfEveryTypeAndRank) {
  const std::vector<std::int64_t> extents = {5, 3, 4, 7};
  for (int type = 0; type < 7; ++type) {
    for (std::size_t dims = 1; dims <= 4; ++dims) {
      for (int first = 0; first < 4; ++first) {
        for (int others = 0; others < 4; ++others) {
          const CapturedTensor tensor(static_cast<CapturedType>(type),
                                      {extents.begin(), extents.begin() + static_cast<long>(dims)},
                                      7);
          CapturedView captured[problem::kMaxCapturedViews];
          captured[5] = tensor.view;
          ProgramBuilder b;
          std::vector<int> indices;
          for (std::size_t d = 0; d < dims; ++d) {
            indices.push_back(index_of(&b, static_cast<FunctionRank>(d == 0 ? first : others),
                                       static_cast<int>(extents[d])));
          }
          const FunctionType of = type < 4 ? FunctionType::kReal : FunctionType::kInt;
          expect_score(b.finish(b.as_real(b.gather(5, of, indices))),
                       "gather of type " + std::to_string(type), 0.0, captured);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

/// A program of random steps with exact results.
TestProgram random_program(unsigned seed, int steps) {
  std::mt19937 rng(seed);
  ProgramBuilder b;
  std::vector<int> of_type[3];
  const auto keep = [&](int step) { of_type[static_cast<int>(b.type(step))].push_back(step); };
  const auto pick = [&](FunctionType type) {
    const std::vector<int>& from = of_type[static_cast<int>(type)];
    return from[rng() % from.size()];
  };
  for (int type = 0; type < 3; ++type) {
    for (int rank = 0; rank < 4; ++rank) {
      keep(function_operand(&b, static_cast<FunctionType>(type), static_cast<FunctionRank>(rank),
                            0));
    }
  }
  while (b.count() < steps) {
    const unsigned kind = rng() % (std::size(kOps) + 6);
    if (kind >= std::size(kOps)) {
      const auto type = static_cast<FunctionType>(kind % 3);
      keep(b.add(FunctionOp::kWhere, type, {pick(FunctionType::kBool), pick(type), pick(type)}));
      continue;
    }
    const OpCase& c = kOps[kind];
    if (c.tolerance > 0.0) continue;
    keep(c.count == 1 ? b.add(c.op, c.on, {pick(c.on)})
                      : b.add(c.op, c.on, {pick(c.on), pick(c.on)}));
  }
  int sum = b.as_real(pick(FunctionType::kReal));
  for (int type = 0; type < 3; ++type) {
    sum = b.add(FunctionOp::kAdd, FunctionType::kReal, {sum, b.as_real(of_type[type].back())});
  }
  return b.finish(sum);
}

TEST_P(FunctionKernelTest, RandomPrograms) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    expect_score(random_program(seed, seed % 2 == 0 ? 60 : 300), "seed " + std::to_string(seed));
    if (HasFatalFailure()) return;
  }
}

TEST_P(FunctionKernelTest, MaskHidesWhereItIsFalse) {
  for (int rank = 0; rank < 4; ++rank) {
    for (const bool inverts : {false, true}) {
      ProgramBuilder b;
      int attends = function_operand(&b, FunctionType::kBool, static_cast<FunctionRank>(rank), 0);
      if (inverts) attends = b.add(FunctionOp::kNot, FunctionType::kBool, {attends});
      const TestProgram program = b.finish(attends);
      with_type([&](auto type) {
        using T = decltype(type);
        TestTile<T> t(kernel(), width() - 1, 70);
        t.scores[t.at(0, 0)] = std::numeric_limits<T>::quiet_NaN();
        Functions f;
        f.mask = program.view;
        std::vector<T> masked = t.scores;
        t.with_memory(program.view,
                      [&](char* memory) { kernel().mask(f, t.tile, masked.data(), memory); });
        t.expect_other_lanes(t.scores, masked);
        for (std::int64_t j = 0; j < t.tile.size; ++j) {
          for (std::int64_t w = 0; w < t.tile.rows; ++w) {
            const std::size_t at = t.at(j, w);
            const auto values = values_at<T>(program.view, nullptr, t.place(j, w), t.scores[at]);
            const bool sees = values[static_cast<std::size_t>(program.view.result)].number != 0;
            const T expected = sees ? t.scores[at] : -std::numeric_limits<T>::infinity();
            ASSERT_TRUE(same_bits(masked[at], expected)) << j << " " << w << " rank " << rank;
          }
        }
      });
    }
  }
}

/// A program of a derivative: factor * where(score < 0.25, score, NaN), of a gathered element
/// factor + score, or of rank kRow.
TestProgram gradient_program(int index_rank, bool is_row) {
  ProgramBuilder b;
  const auto real = FunctionType::kReal;
  const int score = b.leaf(FunctionOp::kScore);
  const int factor = function_operand(&b, real, FunctionRank::kKey, 0);
  const int is_small = b.add(FunctionOp::kLess, real, {score, b.constant(real, 0.25)});
  const int chosen =
      b.add(FunctionOp::kWhere, real, {is_small, score, b.constant(real, std::nan(""))});
  const int slope = b.add(FunctionOp::kMultiply, real, {factor, chosen});
  const int derivative = is_row ? function_operand(&b, real, FunctionRank::kRow, 1)
                                : b.add(FunctionOp::kAdd, real, {factor, score});
  const int gather = b.gather(2, real,
                              {index_of(&b, static_cast<FunctionRank>(index_rank), 6),
                               index_of(&b, FunctionRank::kRow, 5)});
  FunctionScatter scatter;
  scatter.gather = static_cast<std::int16_t>(gather);
  scatter.derivative = static_cast<std::int16_t>(derivative);
  return b.finish(slope, {scatter});
}

TEST_P(FunctionKernelTest, DerivativesLeaveHiddenOnesAlone) {
  const TestProgram program = gradient_program(3, false);
  const CapturedTensor tensor(CapturedType::kF32, {6, 5}, 3);
  with_type([&](auto type) {
    using T = decltype(type);
    TestTile<T> t(kernel(), width() - 1, 70);
    Functions f;
    f.gradient = program.view;
    f.captured[2] = tensor.view;
    std::vector<T> d_scores(t.scores.size());
    for (std::size_t x = 0; x < d_scores.size(); ++x) {
      // Hidden wherever the derivative is NaN.
      d_scores[x] = t.scores[x] < T(0.25) ? (x % 5 == 0 ? T(0) : t.number()) : T(-0.0);
    }
    std::vector<T> result = d_scores;
    t.with_memory(program.view, [&](char* memory) {
      kernel().differentiate(f, t.tile, t.scores.data(), result.data(), memory);
    });
    t.expect_other_lanes(d_scores, result);
    for (std::int64_t j = 0; j < t.tile.size; ++j) {
      for (std::int64_t w = 0; w < t.tile.rows; ++w) {
        const std::size_t at = t.at(j, w);
        const auto values = values_at<T>(program.view, f.captured, t.place(j, w), t.scores[at]);
        const T slope = values[static_cast<std::size_t>(program.view.result)].real;
        const bool is_hidden = d_scores[at] == T(0) && std::signbit(d_scores[at]);
        ASSERT_TRUE(same_bits(result[at], is_hidden ? T(-0.0) : d_scores[at] * slope))
            << j << " " << w << ": " << result[at];
      }
    }
  });
}

TEST_P(FunctionKernelTest, ScattersAddUpVisibleScores) {
  const CapturedTensor tensor(CapturedType::kF32, {6, 5}, 3);
  for (int index_rank = 0; index_rank < 4; ++index_rank) {
    for (const bool is_row : {false, true}) {
      const TestProgram program = gradient_program(index_rank, is_row);
      with_type([&](auto type) {
        using T = decltype(type);
        TestTile<T> t(kernel(), width() - 1, 70);
        Functions f;
        f.gradient = program.view;
        f.captured[2] = tensor.view;
        std::vector<T> d_scores(t.scores.size());
        for (std::size_t x = 0; x < d_scores.size(); ++x) {
          d_scores[x] = x % 3 == 0 ? T(-0.0) : t.number();
        }
        std::vector<double> sums(30, 0.5), expected(30, 0.5);
        cpu::CapturedSums to;
        to.sums = sums.data() + 4;  // elements 4 to 25
        to.size = 22;
        to.first[2] = -4;
        to.is_wanted[2] = true;
        t.with_memory(program.view, [&](char* memory) {
          kernel().scatter(f, t.tile, t.scores.data(), d_scores.data(), to, memory);
        });
        const FunctionScatter& scatter = program.scatters[0];
        const FunctionStep& gather = program.steps[static_cast<std::size_t>(scatter.gather)];
        for (std::int64_t j = 0; j < t.tile.size; ++j) {
          for (std::int64_t w = 0; w < t.tile.rows; ++w) {
            const std::size_t at = t.at(j, w);
            if (d_scores[at] == T(0) && std::signbit(d_scores[at])) continue;
            const auto values = values_at<T>(program.view, f.captured, t.place(j, w), t.scores[at]);
            const auto value = [&](int step) { return values[static_cast<std::size_t>(step)]; };
            const int element = value(gather.args[0]).number * 5 + value(gather.args[1]).number;
            if (element < 4 || element >= 26) continue;
            expected[static_cast<std::size_t>(element)] +=
                static_cast<double>(d_scores[at]) *
                static_cast<double>(value(scatter.derivative).real);
          }
        }
        for (std::size_t x = 0; x < sums.size(); ++x) {
          ASSERT_NEAR(sums[x], expected[x], 1e-9 * std::fabs(expected[x]) + 1e-12) << x;
        }
        // Unwanted: nothing is written.
        to = {};
        t.with_memory(program.view, [&](char* memory) {
          kernel().scatter(f, t.tile, t.scores.data(), d_scores.data(), to, memory);
        });
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, FunctionKernelTest, testing::ValuesIn(kernels()),
                         [](const auto& param) {
                           const bool f64 = param.param.kernel->scalar_bytes == sizeof(double);
                           return std::string(to_string(param.param.isa)) + (f64 ? "_f64" : "_f32");
                         });

}  // namespace
}  // namespace regard::test
