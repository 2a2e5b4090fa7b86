// The whole flow on small tensors: describe a problem, ask what would run, compute, look at it.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "regard/attention.h"

namespace {

constexpr std::int64_t kBatch = 1, kHeads = 2, kPositions = 4, kHeadDim = 8;
constexpr std::int64_t kRows = kBatch * kHeads * kPositions;

// Position s looks at itself: its query and its key share one large coordinate.
std::vector<float> one_hot_rows(float value) {
  std::vector<float> data(kRows * kHeadDim, 0.0f);
  for (std::int64_t row = 0; row < kRows; ++row) data[row * kHeadDim + row % kPositions] = value;
  return data;
}

// Every value vector of position s holds s.
std::vector<float> numbered_rows() {
  std::vector<float> data(kRows * kHeadDim);
  for (std::size_t i = 0; i < data.size(); ++i) {
    data[i] = static_cast<float>(i / kHeadDim % kPositions);
  }
  return data;
}

// A view names memory that is yours: element type, shape, strides. Nothing is copied, and a view of
// const memory is refused as an output.
template <class Floats>
regard::TensorView view(Floats& data) {
  return regard::make_view(data.data(), {kBatch, kHeads, kPositions, kHeadDim});
}

}  // namespace

int main() {
  const std::vector<float> q = one_hot_rows(6.0f), k = one_hot_rows(6.0f), v = numbered_rows();
  std::vector<float> out(q.size(), -1.0f), lse(kRows);

  regard::AttentionRequest request;
  request.q = view(q);
  request.k = view(k);
  request.v = view(v);
  request.out = view(out);
  request.lse = regard::make_view(lse.data(), {kBatch, kHeads, kPositions});
  request.options.is_causal = true;

  // The problem without its tensors: a value that prints, compares and can be planned.
  const regard::Expected<regard::AttentionParams> params = regard::describe(request);
  if (!params) {
    std::printf("%s\n", params.status().to_string().c_str());
    return 1;
  }

  // What would run, and why everything else would not.
  regard::Context& context = regard::default_context();
  std::printf("%s\n", to_string(regard::explain(context, *params)).c_str());

  const regard::Status status = regard::attention(context, request);
  if (!status.ok()) {
    std::printf("%s\n", status.to_string().c_str());
    return 1;
  }

  // Each position mostly finds itself, so row s is close to s; the first one sees itself alone.
  bool as_expected = true;
  for (std::int64_t s = 0; s < kPositions; ++s) {
    const double value = out[s * kHeadDim];
    std::printf("head 0, position %d: out %.6f, lse %.6f\n", static_cast<int>(s), value,
                static_cast<double>(lse[s]));
    as_expected = as_expected && std::fabs(value - static_cast<double>(s)) < 1e-3;
  }
  return as_expected ? 0 : 1;
}
