// The steps of functions over vectors: each is a loop over the keys of a chunk and the vectors of a
// row block. Included by evaluate.inl.

#pragma once

#include <cstdint>

#include "cpu/simd/product.h"
#include "cpu/simd/vector_math.h"
#include "problem/problem.h"
#include "semantics/function_program.h"

namespace regard::cpu {

using semantics::FunctionOp;
using semantics::FunctionStep;
using semantics::FunctionType;

/// A value of every key and vector. What does not depend on the one or the other has a stride of 0
/// there, so that one loop serves operands of every rank.
template <class V>
struct FunctionOperand {
  const typename V::Scalar* at;
  std::int64_t key_stride;
  std::int64_t vector_stride;
};

/// What a step reads and writes: `keys` times some vectors, which lie beside each other in `to`.
template <class V>
struct StepPlaces {
  FunctionOperand<V> args[4];
  typename V::Scalar* to;
  std::int64_t to_stride;  // from key to key
  std::int64_t keys;
};

// ---- integers: 32 bits in the lanes of V::Int, which wrap

template <class V>
REGARD_KERNEL_FN typename V::Int wrapped(typename V::Unsigned x) {
  if constexpr (sizeof(typename V::Scalar) == sizeof(double)) {
    return __builtin_bit_cast(typename V::Int, x << 32) >> 32;
  } else {
    return __builtin_bit_cast(typename V::Int, x);
  }
}

template <class V>
REGARD_KERNEL_FN typename V::Unsigned as_unsigned(typename V::Int x) {
  return __builtin_bit_cast(typename V::Unsigned, x);
}

/// Vectors of doubles, and of as many integers.
template <class V>
struct DivisionLanes {
  static constexpr int kParts = sizeof(double) / sizeof(typename V::Scalar);
  typedef double Real __attribute__((vector_size(sizeof(typename V::Vec))));
  typedef typename V::IntScalar Int __attribute__((vector_size(sizeof(typename V::Vec) / kParts)));
};

/// x / y towards 0, of which no y is 0 or -1: a quotient of two 32-bit integers lies further from
/// every other integer than a double rounds.
template <class V>
REGARD_KERNEL_FN typename V::Int truncated_quotient(typename V::Int x, typename V::Int y) {
  using Lanes = DivisionLanes<V>;
  typename Lanes::Int a[Lanes::kParts], b[Lanes::kParts];
  __builtin_memcpy(a, &x, sizeof(x));
  __builtin_memcpy(b, &y, sizeof(y));
  REGARD_UNROLL for (int i = 0; i < Lanes::kParts; ++i) {
    const auto quotient = __builtin_convertvector(a[i], typename Lanes::Real) /
                          __builtin_convertvector(b[i], typename Lanes::Real);
    a[i] = __builtin_convertvector(quotient, typename Lanes::Int);
  }
  __builtin_memcpy(&x, a, sizeof(x));
  return x;
}

/// The quotient rounded down and what it leaves, which has y's sign; both 0 where y is 0.
template <class V>
REGARD_KERNEL_FN void divide_down(typename V::Int x, typename V::Int y, typename V::Int* quotient,
                                  typename V::Int* rest) {
  using Int = typename V::Int;
  const Int one = Int{} + 1;
  const Int is_zero = y == 0, is_minus_one = y == -1;
  const Int by = (is_zero | is_minus_one) ? one : y;
  const Int towards_0 = truncated_quotient<V>(x, by);
  const Int left = wrapped<V>(as_unsigned<V>(x) - as_unsigned<V>(towards_0) * as_unsigned<V>(by));
  const Int below = (left != 0) & ((left ^ by) < 0);
  const Int down = towards_0 + below;  // -1 where it is set
  const Int negated = wrapped<V>(-as_unsigned<V>(x));
  *quotient = is_zero ? Int{} : (is_minus_one ? negated : down);
  *rest = is_zero ? Int{} : left + (below & by);
}

/// Towards 0, held to 32 bits; 0 of a NaN.
template <class V>
REGARD_KERNEL_FN typename V::Int to_int(typename V::Vec x) {
  using Int = typename V::Int;
  const auto end = V::set(static_cast<typename V::Scalar>(2147483648.0));
  const auto fits = (x >= -end) & (x < end);
  const Int inside = __builtin_convertvector(V::select(fits, x, V::set(0)), Int);
  const Int below = x < -end ? Int{} + INT32_MIN : inside;
  return x >= end ? Int{} + INT32_MAX : below;
}

// ---- loops

/// to = f(args) for every key and vector; f takes kArgs vectors.
template <class V, int kVectors, int kArgs, class F>
REGARD_KERNEL_FN void for_places(const StepPlaces<V>& places, F f) {
  // In registers: a store may not change them.
  const typename V::Scalar* at[kArgs];
  std::int64_t key_stride[kArgs], vector_stride[kArgs];
  REGARD_UNROLL for (int a = 0; a < kArgs; ++a) {
    at[a] = places.args[a].at;
    key_stride[a] = places.args[a].key_stride;
    vector_stride[a] = places.args[a].vector_stride;
  }
  typename V::Scalar* to = places.to;
  const std::int64_t to_stride = places.to_stride;
  for (std::int64_t left = places.keys; left > 0; --left) {
    typename V::Vec result[kVectors];
    REGARD_UNROLL for (int v = 0; v < kVectors; ++v) {
      const auto arg = [&](int a) __attribute__((always_inline)) {
        return V::load(at[a] + v * vector_stride[a]);
      };
      if constexpr (kArgs == 1) {
        result[v] = f(arg(0));
      } else if constexpr (kArgs == 2) {
        result[v] = f(arg(0), arg(1));
      } else {
        result[v] = f(arg(0), arg(1), arg(2));
      }
    }
    REGARD_UNROLL for (int v = 0; v < kVectors; ++v) V::store(to + v * V::kLanes, result[v]);
    REGARD_UNROLL for (int a = 0; a < kArgs; ++a) at[a] += key_stride[a];
    to += to_stride;
  }
}

/// f over integers or bools, which vectors hold as bits.
template <class V, int kVectors, int kArgs, class F>
REGARD_KERNEL_FN void for_bits(const StepPlaces<V>& places, F f) {
  if constexpr (kArgs == 1) {
    for_places<V, kVectors, 1>(
        places, [&](auto x)
                    __attribute__((always_inline)) { return V::from_bits(f(V::to_bits(x))); });
  } else {
    for_places<V, kVectors, 2>(
        places, [&](auto x, auto y) __attribute__((always_inline)) {
          return V::from_bits(f(V::to_bits(x), V::to_bits(y)));
        });
  }
}

/// Numbers of either type by `reals` or `ints`.
template <class V, int kVectors, class Reals, class Ints>
REGARD_KERNEL_FN void combine(FunctionType on, const StepPlaces<V>& places, Reals reals,
                              Ints ints) {
  if (on == FunctionType::kReal) {
    for_places<V, kVectors, 2>(places, reals);
  } else {
    for_bits<V, kVectors, 2>(places, ints);
  }
}

/// Numbers that become bools.
template <class V, int kVectors, class Compare>
REGARD_KERNEL_FN void compare(FunctionType on, const StepPlaces<V>& places, Compare f) {
  combine<V, kVectors>(
      on,
      places, [&](auto x, auto y) __attribute__((always_inline)) { return V::from_bits(f(x, y)); },
      f);
}

/// A divisor that is known: 2^power.
struct PowerDivisor {
  bool is_power = false;
  int power = 0;
};

template <class V, int kVectors>
static void divide_ints(bool wants_rest, PowerDivisor by, const StepPlaces<V>& places) {
  using Int = typename V::Int;
  const typename V::IntScalar below = (typename V::IntScalar{1} << by.power) - 1;
  if (by.is_power && wants_rest) {
    for_bits<V, kVectors, 1>(
        places, [&](auto x) __attribute__((always_inline)) { return x & (Int{} + below); });
  } else if (by.is_power) {
    for_bits<V, kVectors, 1>(
        places, [&](auto x) __attribute__((always_inline)) { return x >> by.power; });
  } else {
    for_bits<V, kVectors, 2>(
        places, [&](auto x, auto y) __attribute__((always_inline)) {
          Int quotient, rest;
          divide_down<V>(x, y, &quotient, &rest);
          return wants_rest ? rest : quotient;
        });
  }
}

/// Steps with one number that has the type of the result.
template <class V, int kVectors>
static void run_unary(const FunctionStep& step, const StepPlaces<V>& places) {
  const bool is_real = step.on == FunctionType::kReal;
  const auto reals = [&](auto f) __attribute__((always_inline)) {
    for_places<V, kVectors, 1>(places, f);
  };
  switch (step.op) {
    case FunctionOp::kNegate:
      if (is_real) return reals([](auto x) __attribute__((always_inline)) { return -x; });
      return for_bits<V, kVectors, 1>(
          places,
          [](auto x) __attribute__((always_inline)) { return wrapped<V>(-as_unsigned<V>(x)); });
    case FunctionOp::kAbs:
      if (is_real) {
        return reals([](auto x)
                         __attribute__((always_inline)) { return V::select(V::sign(x), -x, x); });
      }
      return for_bits<V, kVectors, 1>(
          places, [](auto x) __attribute__((always_inline)) {
            return x < 0 ? wrapped<V>(-as_unsigned<V>(x)) : x;
          });
    case FunctionOp::kExp:
      return reals([](auto x) __attribute__((always_inline)) { return exp_vector<V>(x); });
    case FunctionOp::kLog:
      return reals([](auto x) __attribute__((always_inline)) { return log_vector<V>(x); });
    case FunctionOp::kSqrt:
      return reals([](auto x) __attribute__((always_inline)) { return sqrt_vector<V>(x); });
    case FunctionOp::kTanh:
      return reals([](auto x) __attribute__((always_inline)) { return tanh_vector<V>(x); });
    case FunctionOp::kSigmoid:
      return reals([](auto x) __attribute__((always_inline)) { return sigmoid_vector<V>(x); });
    case FunctionOp::kToReal:
      return reals([](auto x) __attribute__((always_inline)) {
        return __builtin_convertvector(V::to_bits(x), typename V::Vec);
      });
    case FunctionOp::kToInt:
      return reals([](auto x)
                       __attribute__((always_inline)) { return V::from_bits(to_int<V>(x)); });
    case FunctionOp::kNot:
      return for_bits<V, kVectors, 1>(
          places, [](auto x) __attribute__((always_inline)) { return ~x; });
    default: return;
  }
}

/// Steps with two operands, but for division of integers.
template <class V, int kVectors>
static void run_binary(const FunctionStep& step, const StepPlaces<V>& places) {
  const auto numbers = [&](auto f, auto g) __attribute__((always_inline)) {
    combine<V, kVectors>(
        step.on, places, f, [&](auto x, auto y) __attribute__((always_inline)) {
          return wrapped<V>(g(as_unsigned<V>(x), as_unsigned<V>(y)));
        });
  };
  const auto bools = [&](auto f) __attribute__((always_inline)) {
    compare<V, kVectors>(step.on, places, f);
  };
  switch (step.op) {
    case FunctionOp::kAdd: {
      const auto f = [](auto x, auto y) __attribute__((always_inline)) { return x + y; };
      return numbers(f, f);
    }
    case FunctionOp::kSubtract: {
      const auto f = [](auto x, auto y) __attribute__((always_inline)) { return x - y; };
      return numbers(f, f);
    }
    case FunctionOp::kMultiply: {
      const auto f = [](auto x, auto y) __attribute__((always_inline)) { return x * y; };
      return numbers(f, f);
    }
    case FunctionOp::kMin: {
      const auto f = [](auto x, auto y) __attribute__((always_inline)) { return x < y ? x : y; };
      return combine<V, kVectors>(step.on, places, f, f);
    }
    case FunctionOp::kMax: {
      const auto f = [](auto x, auto y) __attribute__((always_inline)) { return x > y ? x : y; };
      return combine<V, kVectors>(step.on, places, f, f);
    }
    case FunctionOp::kDivide:
      return for_places<V, kVectors, 2>(
          places, [](auto x, auto y) __attribute__((always_inline)) { return x / y; });
    case FunctionOp::kLess:
      return bools([](auto x, auto y) __attribute__((always_inline)) { return x < y; });
    case FunctionOp::kLessEqual:
      return bools([](auto x, auto y) __attribute__((always_inline)) { return x <= y; });
    case FunctionOp::kEqual:
      return bools([](auto x, auto y) __attribute__((always_inline)) { return x == y; });
    case FunctionOp::kNotEqual:
      return bools([](auto x, auto y) __attribute__((always_inline)) { return x != y; });
    case FunctionOp::kAnd:
      return for_bits<V, kVectors, 2>(
          places, [](auto x, auto y) __attribute__((always_inline)) { return x & y; });
    case FunctionOp::kOr:
      return for_bits<V, kVectors, 2>(
          places, [](auto x, auto y) __attribute__((always_inline)) { return x | y; });
    default: return;
  }
}

/// Any step with operands but a gather.
template <class V, int kVectors>
static void run_step(const FunctionStep& step, PowerDivisor by, const StepPlaces<V>& places) {
  switch (step.op) {
    case FunctionOp::kFloorDiv: return divide_ints<V, kVectors>(false, by, places);
    case FunctionOp::kRemainder: return divide_ints<V, kVectors>(true, by, places);
    case FunctionOp::kWhere:
      return for_places<V, kVectors, 3>(
          places, [](auto condition, auto x, auto y) __attribute__((always_inline)) {
            return V::select(V::to_bits(condition), x, y);
          });
    default:
      return step.count == 1 ? run_unary<V, kVectors>(step, places)
                             : run_binary<V, kVectors>(step, places);
  }
}

// ---- gathers

/// Element types of captured tensors, as the lanes of T hold them.
template <class T, class Stored>
struct RealElement {
  using Bits = typename Stored::Bits;
  REGARD_KERNEL_FN T value(Bits x) { return Stored::template value<T>(x); }
};
template <class IntScalar, class B>
struct IntElement {
  using Bits = B;
  REGARD_KERNEL_FN IntScalar value(Bits x) { return static_cast<IntScalar>(x); }
};

/// Calls f(element type) for the one of a captured tensor.
template <class V, class F>
REGARD_KERNEL_FN void with_captured_type(problem::CapturedType type, F f) {
  using T = typename V::Scalar;
  using IntScalar = typename V::IntScalar;
  switch (type) {
    case problem::CapturedType::kF32: return f(RealElement<T, problem::StoredF32>());
    case problem::CapturedType::kF64: return f(RealElement<T, problem::StoredF64>());
    case problem::CapturedType::kBf16: return f(RealElement<T, problem::StoredBf16>());
    case problem::CapturedType::kF16: return f(RealElement<T, problem::StoredF16>());
    case problem::CapturedType::kI32: return f(IntElement<IntScalar, std::int32_t>());
    case problem::CapturedType::kI64: return f(IntElement<IntScalar, std::int64_t>());
    case problem::CapturedType::kBytes: return f(IntElement<IntScalar, std::uint8_t>());
  }
}

/// The indices of a gather in the lanes of one vector: where each dimension's are.
template <class V>
struct GatherIndices {
  const typename V::Scalar* at[4];

  /// The sum of a lane's indices times strides.
  template <int kDims>
  REGARD_KERNEL_FN std::int64_t place(const GatherIndices& self, const std::int64_t* strides,
                                      int lane) {
    std::int64_t sum = 0;
    REGARD_UNROLL for (int d = 0; d < kDims; ++d) {
      typename V::IntScalar index;
      __builtin_memcpy(&index, self.at[d] + lane, sizeof(index));
      sum += index * strides[d];
    }
    return sum;
  }
};

template <class V>
REGARD_KERNEL_FN GatherIndices<V> gather_indices(const StepPlaces<V>& places, int dims,
                                                 std::int64_t j, int v) {
  GatherIndices<V> indices;
  for (int d = 0; d < dims; ++d) {
    const FunctionOperand<V>& arg = places.args[d];
    indices.at[d] = arg.at + j * arg.key_stride + v * arg.vector_stride;
  }
  return indices;
}

/// Calls f(Count<dims>).
template <class F>
REGARD_KERNEL_FN void with_dims(int dims, F f) {
  switch (dims) {
    case 1: return f(Count<1>{});
    case 2: return f(Count<2>{});
    case 3: return f(Count<3>{});
    default: return f(Count<4>{});
  }
}

/// Element by element; `same_lanes`: all lanes of a vector have one index.
template <class V>
static void run_gather(const problem::CapturedView& captured, int dims, int vectors,
                       bool same_lanes, const StepPlaces<V>& places) {
  const problem::CapturedView view = captured;  // or it is read again after every store
  const int lanes = same_lanes ? 1 : V::kLanes;
  with_captured_type<V>(
      view.type, [&](auto element) __attribute__((always_inline)) {
        using Element = decltype(element);
        const auto* const data = reinterpret_cast<const typename Element::Bits*>(view.data);
        with_dims(
            dims, [&](auto count) __attribute__((always_inline)) {
              for (std::int64_t x = 0; x < places.keys * vectors; ++x) {
                const std::int64_t j = x / vectors;
                const int v = static_cast<int>(x % vectors);
                const auto from = gather_indices<V>(places, count.value, j, v);
                auto* const to = places.to + j * places.to_stride + v * V::kLanes;
                for (int lane = 0; lane < lanes; ++lane) {
                  const std::int64_t at =
                      GatherIndices<V>::template place<count.value>(from, view.stride, lane);
                  const auto value = Element::value(data[at]);
                  __builtin_memcpy(to + lane, &value, sizeof(value));
                }
                if (same_lanes) V::store(to, V::set(*to));
              }
            });
      });
}

}  // namespace regard::cpu
