// What a user of the library writes first: describe a problem, ask what would run, run it.
#include <cmath>
#include <cstdio>
#include <vector>

#include "regard/attention.h"

int main() {
  constexpr std::int64_t kSeqlen = 3, kHeadDim = 2;
  const std::vector<float> q(kSeqlen * kHeadDim, 0.0f);  // equal scores: the mean of visible values
  const std::vector<float> k(kSeqlen * kHeadDim, 1.0f);
  const std::vector<float> v = {1, 10, 3, 30, 8, 80};
  std::vector<float> out(kSeqlen * kHeadDim);

  regard::AttentionRequest request;
  request.q = regard::make_view(q.data(), {1, 1, kSeqlen, kHeadDim});
  request.k = regard::make_view(k.data(), {1, 1, kSeqlen, kHeadDim});
  request.v = regard::make_view(v.data(), {1, 1, kSeqlen, kHeadDim});
  request.out = regard::make_view(out.data(), {1, 1, kSeqlen, kHeadDim});
  request.options.is_causal = true;

  regard::Context context;
  const auto params = regard::describe(request);
  if (!params.ok()) {
    std::printf("%s\n", params.status().to_string().c_str());
    return 1;
  }
  const regard::Selection selection = regard::explain(context, *params);
  std::printf("regard %s\n%s\n", regard::version(), regard::to_string(selection).c_str());

  const regard::Status status = regard::attention(context, request);
  if (!status.ok()) {
    std::printf("%s\n", status.to_string().c_str());
    return 1;
  }
  const float expected[] = {1, 10, 2, 20, 4, 40};
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!(std::fabs(out[i] - expected[i]) <= 1e-5f * expected[i])) {
      std::printf("out[%zu] is %g, expected %g\n", i, out[i], expected[i]);
      return 1;
    }
  }
  std::puts("ok");
  return 0;
}
