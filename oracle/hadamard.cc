#include "oracle/hadamard.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "oracle/number.h"
#include "oracle/rules.h"

namespace regard::oracle {

void mix_row(const TensorView& rows, std::int64_t b, std::int64_t h, std::int64_t i) {
  const std::int64_t dim = rows.shape[3];
  const Dtype of_sums = rows.dtype == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32;
  std::vector<double> x;
  for (std::int64_t d = 0; d < dim; ++d) x.push_back(element(rows, b, h, i, d));
  for (std::size_t step = 1; step < x.size(); step *= 2) {
    for (std::size_t d = 0; d < x.size(); ++d) {
      if ((d & step) != 0) continue;
      const double low = x[d], high = x[d + step];
      x[d] = round_to(low + high, of_sums);
      x[d + step] = round_to(low - high, of_sums);
    }
  }
  const double unit = round_to(1.0 / std::sqrt(static_cast<double>(dim)), of_sums);
  const double max = -lowest(rows.dtype);
  const bool saturates = rows.dtype == Dtype::kF8E4M3 || rows.dtype == Dtype::kF8E5M2;
  for (std::int64_t d = 0; d < dim; ++d) {
    double value = round_to(x[static_cast<std::size_t>(d)] * unit, of_sums);
    if (saturates && !std::isnan(value)) value = std::clamp(value, -max, max);
    set_element(rows, {b, h, i, d}, value);
  }
}

}  // namespace regard::oracle
