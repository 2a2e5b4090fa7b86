#include "tests/support/tensors.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

#include "conformance/problem.h"
#include "oracle/number.h"

namespace regard::test {
namespace {

std::vector<double> values(const TensorView& view) {
  std::vector<double> all;
  conformance::for_each_element(view, [&](const auto&, unsigned char* element) {
    all.push_back(oracle::decode(element, view.dtype));
  });
  return all;
}

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

}  // namespace

TensorView slice(TensorView view, int dim, std::int64_t begin, std::int64_t count) {
  if (!view.present() || view.shape[dim] == 1) return view;
  view.data = static_cast<char*>(view.data) + begin * view.strides[dim] * size_of(view.dtype);
  view.shape[dim] = count;
  return view;
}

std::string unequal(const TensorView& a, const TensorView& b) {
  const std::vector<double> left = values(a), right = values(b);
  if (left.size() != right.size()) return to_string(a) + " and " + to_string(b);
  for (std::size_t n = 0; n < left.size(); ++n) {
    if (same(left[n], right[n])) continue;
    return "element " + std::to_string(n) + " of " + to_string(a) + ": " + std::to_string(left[n]) +
           " and " + std::to_string(right[n]);
  }
  return "";
}

double largest_difference(const TensorView& a, const TensorView& b) {
  const std::vector<double> left = values(a), right = values(b);
  if (left.size() != right.size()) return std::numeric_limits<double>::infinity();
  double largest = 0.0;
  for (std::size_t n = 0; n < left.size(); ++n) {
    if (same(left[n], right[n])) continue;
    const double difference = std::fabs(left[n] - right[n]);
    largest = std::max(largest, std::isnan(difference) ? HUGE_VAL : difference);
  }
  return largest;
}

std::vector<char> bytes_of(const TensorView& view) {
  if (!view.present()) return {};
  const auto* const data = static_cast<const char*>(view.data);
  return {data, data + regard::bytes_of(view.dtype, view.num_elements())};
}

unsigned char* Tensors::memory(std::int64_t elements, Dtype dtype) {
  const auto bytes = static_cast<std::size_t>(elements * size_of(dtype));
  blocks_.push_back(std::make_unique<unsigned char[]>(bytes + 1));
  std::memset(blocks_.back().get(), 0xff, bytes);
  return blocks_.back().get();
}

TensorView Tensors::make(Dtype dtype, std::initializer_list<std::int64_t> shape) {
  TensorView view = make_view(static_cast<void*>(nullptr), dtype, shape);
  view.data = memory(view.num_elements(), dtype);
  return view;
}

TensorView Tensors::copy(const TensorView& from, std::initializer_list<int> order,
                         std::int64_t padding) {
  TensorView to = from;
  std::int64_t stride = 1;
  const std::vector<int> dims(order);
  for (int n = from.rank - 1; n >= 0; --n) {
    const int dim = dims[static_cast<std::size_t>(n)];
    to.strides[dim] = stride;
    stride *= std::max<std::int64_t>(from.shape[dim], 1);
    stride += padding;
  }
  to.data = memory(stride, from.dtype);
  const auto size = static_cast<std::size_t>(size_of(from.dtype));
  conformance::for_each_element(
      from, [&](const std::int64_t(&at)[kMaxRank], unsigned char* element) {
        std::int64_t offset = 0;
        for (int dim = 0; dim < to.rank; ++dim) offset += at[dim] * to.strides[dim];
        std::memcpy(static_cast<char*>(to.data) + offset * size_of(to.dtype), element, size);
      });
  return to;
}

void Tensors::renew_outputs(AttentionRequest* request) {
  const std::int64_t *q = request->q.shape, *v = request->v.shape;
  request->out = make(request->out.dtype, {q[0], q[1], q[2], v[3]});
  if (!request->lse.present()) return;
  const bool packed = request->lse.rank == 2;  // [Hq,total_q]
  request->lse = packed ? make(request->lse.dtype, {q[1], q[2]})
                        : make(request->lse.dtype, {q[0], q[1], q[2]});
}

}  // namespace regard::test
