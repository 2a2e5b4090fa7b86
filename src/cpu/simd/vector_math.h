#pragma once

#include <cstdint>

#include "semantics/kernel_fn.h"

// exp2, tanh, exp, log, sqrt and sigmoid over a vocabulary V. f32: polynomials, errors measured
// over every float of the domain (the tests take every 911th); f64: the C library, lane by lane.

namespace regard::cpu {

/// x = n ln2 + r with |r| <= ln2 / 2, and e^r - 1 = expm1, for |x| <= 104.
template <class V>
struct ReducedExp {
  typename V::Unsigned n;  // modulo 2^32
  typename V::Vec expm1;
};

template <class V>
REGARD_KERNEL_FN ReducedExp<V> reduce_exp(typename V::Vec x) {
  using Vec = typename V::Vec;
  // Adding 1.5 * 2^23 rounds to an integer that then stands in the low bits.
  const Vec magic = V::set(12582912.0f);
  const Vec shifted = V::fma(x, V::set(1.44269504f), magic);
  const Vec n = shifted - magic;
  // ln2 = 0.693359375 - 2.12194440e-4; n times the first part is exact (9 bits).
  const Vec r = V::fma(n, V::set(2.12194440e-4f), V::fma(n, V::set(-0.693359375f), x));
  Vec p = V::set(1.9875691500e-4f);  // Cephes expf
  p = V::fma(p, r, V::set(1.3981999507e-3f));
  p = V::fma(p, r, V::set(8.3334519073e-3f));
  p = V::fma(p, r, V::set(4.1665795894e-2f));
  p = V::fma(p, r, V::set(1.6666665459e-1f));
  p = V::fma(p, r, V::set(5.0000001201e-1f));
  return {V::to_unsigned(shifted) - V::to_unsigned(magic), V::fma(p, r * r, r)};
}

/// 2^n for n in [-126, 127].
template <class V>
REGARD_KERNEL_FN typename V::Vec power_of_two(typename V::Unsigned n) {
  return V::from_unsigned((n + 127) << 23);
}

/// Vectors that exp2 takes beside each other: one alone is a chain of 50 cycles, of which a
/// scheduler holds too few (Zen 3: 1.3 times as fast with four).
inline constexpr int kExp2Vectors = 4;

/// 2^f for f in [-1/2, 1/2], exactly 1 at 0; the minimax polynomial's own error is 2.0e-9.
template <class V, int kCount>
REGARD_KERNEL_FN void exp2_fractions(const typename V::Vec (&f)[kCount],
                                     typename V::Vec (&p)[kCount]) {
  constexpr float kCoefficients[] = {0x1.5f3e52p-10f, 0x1.3b2d4cp-7f, 0x1.c6aee8p-5f,
                                     0x1.ebfbdcp-3f,  0x1.62e430p-1f, 1.0f};
  REGARD_UNROLL for (int i = 0; i < kCount; ++i) p[i] = V::set(0x1.41fbbcp-13f);
  REGARD_UNROLL for (const float c : kCoefficients) {
    REGARD_UNROLL for (int i = 0; i < kCount; ++i) p[i] = V::fma(p[i], f[i], V::set(c));
  }
}

/// x = 2^(x * factor) for x <= 0, NaN and -inf, factor > 0: exactly 1 at 0, exactly 0 where the
/// exponent is below -150 (from -125.5 on where denormals would need code), NaN stays NaN. f32: at
/// most 1.5 ulp of an exactly multiplied exponent. 16 instructions a vector with the sum that
/// follows.
template <class V, int kCount>
REGARD_KERNEL_FN void exp2_nonpositive(typename V::Vec (&x)[kCount], typename V::Vec factor) {
  using Vec = typename V::Vec;
  if constexpr (sizeof(typename V::Scalar) == 4 && requires { V::exp2(x, factor); }) {
    V::exp2(x, factor);
  } else if constexpr (sizeof(typename V::Scalar) == 4) {
    // Adding 1.5 * 2^23 rounds to an integer that then stands in the low bits.
    const auto magic = V::set(12582912.0f);
    Vec shifted[kCount], fraction[kCount], p[kCount];
    REGARD_UNROLL for (int i = 0; i < kCount; ++i) shifted[i] = V::fma(x[i], factor, magic);
    REGARD_UNROLL for (int i = 0; i < kCount; ++i) {
      fraction[i] = V::fma(x[i], factor, magic - shifted[i]);
    }
    exp2_fractions<V, kCount>(fraction, p);
    REGARD_UNROLL for (int i = 0; i < kCount; ++i) {
      // A product, not an addition to the exponent's bits: those of a NaN would carry.
      const auto power = V::from_unsigned((V::to_unsigned(shifted[i]) << 23) + 0x3f800000);
      x[i] = V::clear(shifted[i] < V::set(12582912.0f - 125.0f), p[i] * power);
    }
  } else {
    for (Vec& y : x) {
      y = y * factor;
      for (int lane = 0; lane < V::kLanes; ++lane) y[lane] = __builtin_exp2(y[lane]);
    }
  }
}

template <class V>
REGARD_KERNEL_FN typename V::Vec exp2_nonpositive(typename V::Vec x, typename V::Vec factor) {
  typename V::Vec one[1] = {x};
  exp2_nonpositive<V, 1>(one, factor);
  return one[0];
}

/// f32: at most 2.5 ulp, small arguments included.
template <class V>
REGARD_KERNEL_FN typename V::Vec tanh_vector(typename V::Vec x) {
  if constexpr (sizeof(typename V::Scalar) == 4) {
    // tanh(x) = e / (e + 2) with e = expm1(2|x|); from 2|x| = 18.1 on it is 1 in f32.
    const auto negative = V::sign(x);
    auto t = V::select(negative, -x, x) * V::set(2.0f);
    t = V::select(t > V::set(18.1f), V::set(18.1f), t);
    const ReducedExp<V> r = reduce_exp<V>(t);
    const auto power = power_of_two<V>(r.n);
    const auto e = V::fma(power, r.expm1, power - V::set(1.0f));
    const auto y = e / (e + V::set(2.0f));
    return V::select(negative, -y, y);
  } else {
    typename V::Vec y = x;
    for (int lane = 0; lane < V::kLanes; ++lane) y[lane] = __builtin_tanh(x[lane]);
    return y;
  }
}

/// What scaled_tanh multiplies by, and where it ends.
template <class V>
struct TanhScale {
  typename V::Vec exponent;  // of 2, for 1
  typename V::Vec limit;     // from this size on tanh is 1 in f32
  typename V::Vec by;
};

/// Of by * tanh(x * scale / divisor), divisor > 0.
template <class V>
REGARD_KERNEL_FN TanhScale<V> tanh_scale(double scale, double divisor, double by) {
  constexpr double kMax = 0x1.fffffep127;  // of f32
  constexpr double kTwiceLog2e = 2.8853900817779268, kLast = 26.5;
  const auto held = [=](double x) __attribute__((always_inline)) { return x < kMax ? x : kMax; };
  const double size = scale < 0.0 ? -scale : scale;
  const double exponent = held(kTwiceLog2e * size / divisor);
  const double limit = exponent > 0.0 ? held(kLast / exponent) : kMax;
  return {V::set(static_cast<float>(scale < 0.0 ? -exponent : exponent)),
          V::set(static_cast<float>(limit)), V::set(static_cast<float>(by))};
}

/// x = by * tanh of it, scaled; f32 alone, at most 5 ulp of by * tanh(x * scale / divisor). One
/// division, and products that take the scales with them: on a Zen 4 14 cycles a vector of 16 with
/// the pass over the scores, where a scale, a division, tanh_vector and a product took 23.
template <class V, int kCount>
REGARD_KERNEL_FN void scaled_tanh(typename V::Vec (&x)[kCount], const TanhScale<V>& scale) {
  using Vec = typename V::Vec;
  // (2^f - 1) / f for f in [-1/2, 1/2]; the minimax polynomial's own error is 1.1e-8.
  constexpr float kCoefficients[] = {0x1.5f07b4p-10f, 0x1.3b2ba0p-7f, 0x1.c6af6ep-5f,
                                     0x1.ebfbdep-3f, 0x1.62e430p-1f};
  // Rounds to an integer n; n + 127 then stands in the low bits.
  const Vec magic = V::set(12582912.0f + 127.0f), one = V::set(1.0f), two = V::set(2.0f);
  const Vec least = -scale.limit;
  Vec fraction[kCount], power[kCount], p[kCount];
  REGARD_UNROLL for (int i = 0; i < kCount; ++i) {
    Vec t = V::select(scale.limit < x[i], scale.limit, x[i]);
    t = V::max(least, t);
    const Vec shifted = V::fma(t, scale.exponent, magic);
    fraction[i] = V::fma(t, scale.exponent, magic - shifted);
    power[i] = V::from_unsigned(V::to_unsigned(shifted) << 23);
    p[i] = V::set(0x1.4308fap-13f);
  }
  REGARD_UNROLL for (const float c : kCoefficients) {
    REGARD_UNROLL for (int i = 0; i < kCount; ++i) p[i] = V::fma(p[i], fraction[i], V::set(c));
  }
  REGARD_UNROLL for (int i = 0; i < kCount; ++i) {
    // tanh is e / (e + 2) with e = expm1 of twice the argument.
    const Vec e = V::fma(p[i] * fraction[i], power[i], power[i] - one);
    x[i] = e / (e + two) * scale.by;  // no more than by
  }
}

/// e^x of any x. f32: at most 1 ulp, results below 2^-126 included; infinity from
/// 88.722839 on.
template <class V>
REGARD_KERNEL_FN typename V::Vec exp_vector(typename V::Vec x) {
  if constexpr (sizeof(typename V::Scalar) == 4) {
    // Beyond these ends the result stays infinity or 0; NaN is held by neither.
    x = V::select(x > V::set(89.0f), V::set(89.0f), x);
    x = V::select(x < V::set(-104.0f), V::set(-104.0f), x);
    const ReducedExp<V> r = reduce_exp<V>(x);
    // 2^n in two factors: n reaches from -150 to 128.
    const auto n = __builtin_bit_cast(typename V::Int, r.n);
    const auto half = n >> 1;
    const auto power = power_of_two<V>(__builtin_bit_cast(typename V::Unsigned, half));
    const auto rest = power_of_two<V>(__builtin_bit_cast(typename V::Unsigned, n - half));
    return V::fma(power, r.expm1, power) * rest;
  } else {
    typename V::Vec y = x;
    for (int lane = 0; lane < V::kLanes; ++lane) y[lane] = __builtin_exp(x[lane]);
    return y;
  }
}

/// The natural logarithm: -inf of 0, NaN below. f32: at most 0.8 ulp.
template <class V>
REGARD_KERNEL_FN typename V::Vec log_vector(typename V::Vec x) {
  if constexpr (sizeof(typename V::Scalar) == 4) {
    using Vec = typename V::Vec;
    using Int = typename V::Int;
    const auto is_small = x < V::set(0x1p-126f);
    const Int bits = V::to_bits(V::select(is_small, x * V::set(0x1p23f), x));
    // x = 2^n m with m in [sqrt(1/2), sqrt(2)).
    const Int n = (bits - 0x3f3504f3) >> 23;
    const Vec f = V::from_bits(bits - (n << 23)) - V::set(1.0f);
    const Vec exponent = __builtin_convertvector(n + (is_small & -23), Vec);
    constexpr float kCoefficients[] = {-1.1514610310e-1f, 1.1676998740e-1f,  -1.2420140846e-1f,
                                       1.4249322787e-1f,  -1.6668057665e-1f, 2.0000714765e-1f,
                                       -2.4999993993e-1f, 3.3333331174e-1f};  // Cephes logf
    Vec p = V::set(7.0376836292e-2f);
    REGARD_UNROLL for (const float c : kCoefficients) p = V::fma(p, f, V::set(c));
    const Vec square = f * f;
    // n ln2 in two parts, as in reduce_exp: its product with the first is exact.
    Vec y = V::fma(exponent, V::set(-2.12194440e-4f), f * square * p);
    y = V::fma(square, V::set(-0.5f), y);
    y = V::fma(exponent, V::set(0.693359375f), f + y);
    const Vec infinity = V::set(__builtin_inff());
    y = V::select(x == infinity, infinity, y);
    y = V::select(x == V::set(0.0f), -infinity, y);
    return V::select(x >= V::set(0.0f), y, V::set(__builtin_nanf("")));
  } else {
    typename V::Vec y = x;
    for (int lane = 0; lane < V::kLanes; ++lane) y[lane] = __builtin_log(x[lane]);
    return y;
  }
}

/// Rounded to nearest.
template <class V>
REGARD_KERNEL_FN typename V::Vec sqrt_vector(typename V::Vec x) {
  if constexpr (requires { V::sqrt(x); }) {
    return V::sqrt(x);
  } else {
    typename V::Vec y = x;
    for (int lane = 0; lane < V::kLanes; ++lane) {
      if constexpr (sizeof(typename V::Scalar) == 4) {
        y[lane] = __builtin_sqrtf(x[lane]);
      } else {
        y[lane] = __builtin_sqrt(x[lane]);
      }
    }
    return y;
  }
}

/// 1 / (1 + e^-x). f32: at most 2.1 ulp; 0 from -88.722839 down, where it is below 2^-127.
template <class V>
REGARD_KERNEL_FN typename V::Vec sigmoid_vector(typename V::Vec x) {
  const auto one = V::set(static_cast<typename V::Scalar>(1));
  return one / (one + exp_vector<V>(-x));
}

}  // namespace regard::cpu
