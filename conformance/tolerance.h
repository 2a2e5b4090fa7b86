#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "regard/dtype.h"

namespace regard::conformance {

/// One element under judgement.
struct Sample {
  std::int64_t row, column;  // within its (b, h)
  long double expected;
  double ideal;
  double actual;
  double row_floor;  // the part of the tolerance that is this row's own
};

/// The result of a group of samples.
struct Judgement {
  bool ok = true;
  std::string text;
  double max_error = 0.0;
  double margin = 0.0;  // the larger of error / tolerance for the maximum and the root mean square
};

/// Errors beyond the row's own floor are held, by their maximum and their root mean square, to 1.5
/// times the ideal's error plus `floor`. Where `dtype`, the elements' type, has 16 bits, the root
/// mean square of all errors is held to that of the ideal (times 1.5), of rounding to nearest and
/// of the rows' floors, added as independent errors are. NaN and infinities must match exactly.
Judgement judge(const std::vector<Sample>& samples, double floor, Dtype dtype = Dtype::kF32);

/// The mean signed error of a tensor's elements of 16 bits, in units in the last place, by the sign
/// of the element: near 0 for rounding to nearest, -0.5 for truncation.
class MeanSignedError {
 public:
  /// `queries` > 0: rows share the errors of so many queries, as the gradients of keys and values
  /// do; each query's may move all rows of a head the same way. 0: each row has its own.
  MeanSignedError(Dtype dtype, std::int64_t queries) : dtype_(dtype), queries_(queries) {}

  void add(const std::vector<Sample>& samples);
  /// Empty where the mean is within 0.1 of 0, plus 1.5 times the ideal's and what the rows' floors
  /// add (an error of a row may move all its elements the same way), or where there are fewer than
  /// 4,096 values, or too few different ones among them. Values within their own floor of 0, which
  /// cancelling left, do not count.
  std::string check() const;

 private:
  Dtype dtype_;
  std::int64_t queries_;
  double sum_ = 0.0, ideal_sum_ = 0.0, floor_squares_ = 0.0;
  std::vector<double> stored_;
};

bool is_16_bit(Dtype dtype);

/// "3.1400001e+00"
std::string number_text(long double value);

}  // namespace regard::conformance
