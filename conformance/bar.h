#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace regard::conformance {

/// One element under judgement.
struct Sample {
  std::int64_t row, column;  // within its (b, h)
  long double expected;
  double ideal;
  double actual;
  double row_floor;  // the part of the bar that is this row's own
};

/// What a group of samples says.
struct Judgement {
  bool ok = true;
  std::string text;
  double max_error = 0.0;
  double margin = 0.0;  // the larger of error / bar for the maximum and the root mean square
};

/// Errors beyond the row's own floor are held, by their maximum and their root mean square, to 1.5
/// times the ideal's error plus `floor`. NaN and infinities must match exactly.
Judgement judge(const std::vector<Sample>& samples, double floor);

/// "3.1400001e+00"
std::string number_text(long double value);

}  // namespace regard::conformance
