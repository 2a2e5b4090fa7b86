#include <cmath>
#include <vector>

#include "oracle/number.h"
#include "oracle/rules.h"
#include "regard/dropout.h"
#include "tests/property/property.h"

// What each unit drops is what dropout_mask() says, to the element.

namespace regard {
namespace {

using conformance::Problem;

class Dropout : public test::Property {};

void fill_zero(const TensorView& view) {
  conformance::for_each_element(view, [&](const std::int64_t(&)[4], unsigned char* element) {
    oracle::encode(0.0, element, view.dtype);
  });
}

// Row x of the last two dimensions has a 1 in column x alone.
void fill_identity(const TensorView& view) {
  conformance::for_each_element(view, [&](const std::int64_t(&at)[4], unsigned char* element) {
    oracle::encode(at[2] == at[3] ? 1.0 : 0.0, element, view.dtype);
  });
}

struct MaskMemory {
  explicit MaskMemory(const AttentionRequest& r, const AttentionParams& params)
      : bytes(static_cast<std::size_t>(r.q.shape[0] * r.q.shape[1] * r.q.shape[2] * r.k.shape[2])),
        view(make_view(bytes.data(), Dtype::kBool,
                       {r.q.shape[0], r.q.shape[1], r.q.shape[2], r.k.shape[2]})),
        status(dropout_mask(params, r, view)) {}
  bool at(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    return bytes[static_cast<std::size_t>(b * view.strides[0] + h * view.strides[1] +
                                          i * view.strides[2] + j)] == 1;
  }
  std::vector<unsigned char> bytes;
  TensorView view;
  Status status;
};

// Scores of 0 make all probabilities 1/n, and V = identity shows them: out[i][j] > 0 iff kept.
TEST_P(Dropout, TheForwardDropsWhatTheMaskSays) {
  for (const char* text :
       {"b2 hq4 hkv2 sq37 skv90 d16 dv90 f32 dropout=0.3 seed=3",
        "b3 hq2 sq70 skv130 d16 dv130 bf16 dropout=0.5 lens causal diag=br seed=4",
        "b2 hq2 sq33 skv70 d16 dv70 f16 dropout=0.1 diag=-20 window=30,5 seed=5",
        "b2 hq2 sq33 skv70 d16 dv70 f32 dropout=0.7 diag=seq causal segments seed=6",
        "b1 hq8 hkv2 sq1 skv200 d16 dv200 f32 dropout=0.4 seed=7",
        "b2 hq6 hkv2 sq5 skv200 d16 dv200 bf16 dropout=0.2 causal diag=br seed=8"}) {
    const Case c = parse_case(text).value();
    const Problem problem = problem_of(text);
    const AttentionRequest& r = problem.request();
    fill_zero(r.q);
    fill_identity(r.v);
    run(r);
    const MaskMemory mask(r, c.params);
    ASSERT_TRUE(mask.status.ok()) << mask.status.to_string();
    AttentionRequest whole = r;  // the same without dropout: what else hides a key
    whole.options.dropout_p = 0.0;
    whole = run_anew(whole);
    int kept = 0, dropped = 0;
    conformance::for_each_element(r.out, [&](const std::int64_t(&at)[4], unsigned char* element) {
      const bool visible = oracle::element(whole.out, at[0], at[1], at[2], at[3]) != 0.0;
      const bool shows = oracle::decode(element, r.out.dtype) != 0.0;
      ASSERT_EQ(shows, visible && mask.at(at[0], at[1], at[2], at[3]))
          << text << " " << at[0] << " " << at[1] << " " << at[2] << " " << at[3];
      kept += shows ? 1 : 0;
      dropped += visible && !shows ? 1 : 0;
    });
    EXPECT_GT(kept, 50) << text;
    EXPECT_GT(dropped, 50) << text;
  }
}

// d_out = identity shows the dropped probabilities in d_v: d_v[j][i] > 0 iff kept.
TEST_P(Dropout, TheBackwardDropsWhatTheMaskSays) {
  for (const char* text :
       {"b2 hq2 sq40 skv90 d16 dv40 f32 dropout=0.3 saved grad seed=3",
        "b3 hq2 sq70 skv130 d16 dv70 bf16 dropout=0.5 lens causal diag=br saved grad seed=4",
        "b2 hq2 sq33 skv70 d16 dv33 f16 dropout=0.1 diag=-20 window=30,5 saved grad seed=5"}) {
    const Case c = parse_case(text).value();
    Policy policy;
    policy.only = std::vector<BackendRef>{GetParam().backend};
    Problem problem = problem_of(text);
    const AttentionGradRequest& r = problem.request();
    fill_zero(r.q);
    fill_identity(r.d_out);
    run(r);
    AttentionGradRequest whole = r;
    const auto run_backward = [&](const AttentionGradRequest& request) {
      const ScopedPolicy scope(policy);
      const Status status = attention_backward(*context_, request);
      ASSERT_TRUE(status.ok()) << status.to_string();
    };
    run_backward(r);
    const MaskMemory mask(r, c.params);
    ASSERT_TRUE(mask.status.ok()) << mask.status.to_string();
    test::Tensors memory;
    whole.options.dropout_p = 0.0;
    whole.d_v = memory.copy(r.d_v);
    run_backward(whole);
    int kept = 0, dropped = 0;
    conformance::for_each_element(r.d_v, [&](const std::int64_t(&at)[4], unsigned char* element) {
      const std::int64_t b = at[0], h = at[1], j = at[2], i = at[3];
      const bool visible = oracle::element(whole.d_v, b, h, j, i) != 0.0;
      const bool shows = oracle::decode(element, r.d_v.dtype) != 0.0;
      ASSERT_EQ(shows, visible && mask.at(b, h, i, j)) << text << " " << i << " " << j;
      kept += shows ? 1 : 0;
      dropped += visible && !shows ? 1 : 0;
    });
    EXPECT_GT(kept, 50) << text;
    EXPECT_GT(dropped, 50) << text;
  }
}

REGARD_INSTANTIATE_PROPERTIES(Dropout);

}  // namespace
}  // namespace regard
