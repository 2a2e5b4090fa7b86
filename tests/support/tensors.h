#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "regard/request.h"

namespace regard::test {

/// `count` indices from `begin` on of one dimension. A dimension of extent 1 is one that
/// broadcasts, and stays.
TensorView slice(TensorView view, int dim, std::int64_t begin, std::int64_t count);

/// "" when both hold the same values (-0 is 0, NaN is NaN); otherwise the first that differs.
std::string unequal(const TensorView& a, const TensorView& b);

/// The largest difference of two tensors' values; infinite where one is NaN or infinite and the
/// other is not the same.
double largest_difference(const TensorView& a, const TensorView& b);

/// The bytes of a dense tensor; none where it is not present.
std::vector<char> bytes_of(const TensorView& view);

/// Memory for tensors that a test makes.
class Tensors {
 public:
  /// Dense, row-major; every byte 0xff.
  TensorView make(Dtype dtype, std::initializer_list<std::int64_t> shape);
  /// The same values with dimensions in memory in `order` (outermost first) and `padding` elements
  /// after each of the innermost but one.
  TensorView copy(const TensorView& from, std::initializer_list<int> order = {0, 1, 2, 3},
                  std::int64_t padding = 0);
  /// Fresh outputs of the request's shapes: out, and lse where it has one.
  void renew_outputs(AttentionRequest* request);

 private:
  unsigned char* memory(std::int64_t elements, Dtype dtype);
  std::vector<std::unique_ptr<unsigned char[]>> blocks_;
};

}  // namespace regard::test
