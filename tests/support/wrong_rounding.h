#pragma once

#include <cmath>
#include <cstddef>
#include <functional>
#include <vector>

#include "conformance/problem.h"
#include "oracle/number.h"

// The truth, stored as a kernel would store it that is right in everything but its rounding.

namespace regard::test {

/// `x` without the bits that do not fit, for normal numbers.
inline double truncated(double x, Dtype dtype) {
  const double nearest = oracle::round_to(x, dtype);
  const double ulp = 2.0 * oracle::unit_roundoff(dtype) * std::exp2(std::ilogb(x));
  return std::fabs(nearest) > std::fabs(x) ? nearest - std::copysign(ulp, x) : nearest;
}

struct Rounding {
  const char* name;
  bool is_right;
  std::function<double(double, Dtype)> store;
};

inline std::vector<Rounding> roundings() {
  return {{"rounded to nearest", true, oracle::round_to},
          {"truncated", false, truncated},
          {"times 1.004", false,
           [](double x, Dtype dtype) { return oracle::round_to(1.004 * x, dtype); }}};
}

/// Stores `numbers`, in logical order, in `view`.
inline void store_all(const TensorView& view, const std::vector<long double>& numbers,
                      const Rounding& rounding) {
  std::size_t n = 0;
  conformance::for_each_element(view, [&](const auto&, unsigned char* element) {
    const double x = static_cast<double>(numbers[n++]);
    oracle::encode(x == 0.0 ? 0.0 : rounding.store(x, view.dtype), element, view.dtype);
  });
}

}  // namespace regard::test
