#include <cmath>
#include <limits>

#include "conformance/layout.h"
#include "oracle/number.h"
#include "oracle/rules.h"
#include "tests/property/property.h"

// A NaN in one row reaches what sees that row, and no bit of anything else.

namespace regard {
namespace {

using conformance::Problem;
using test::slice;
using test::unequal;

constexpr double kNanValue = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t kRows = 70, kBad = 43;  // inside a block of rows

class Nan : public test::Property {
 protected:
  /// Writes x to element (0, 0, row, 3), or to all of the row's.
  static void write(const TensorView& view, std::int64_t row, double x, bool all = false) {
    conformance::for_each_element(view, [&](const auto& at, unsigned char* element) {
      if (at[2] == row && (all || at[3] == 3)) oracle::encode(x, element, view.dtype);
    });
  }
  static bool has_nan(const TensorView& row) {
    bool found = false;
    conformance::for_each_element(row, [&](const auto&, const unsigned char* element) {
      found = found || std::isnan(oracle::decode(element, row.dtype));
    });
    return found;
  }
  /// Rows [begin, end) of `changed` have NaN, the others the bits of `clean`.
  static void expect_nan_in(const TensorView& clean, const TensorView& changed, std::int64_t begin,
                            std::int64_t end) {
    for (std::int64_t i = 0; i < kRows; ++i) {
      const TensorView row = slice(changed, 2, i, 1);
      EXPECT_EQ(has_nan(row), begin <= i && i < end) << i;
      if (i >= begin && i < end) continue;
      EXPECT_EQ(unequal(slice(clean, 2, i, 1), row), "") << i;
    }
  }
  /// Copies of the inputs and of the outputs, without what may stand in for the output.
  AttentionGradRequest copy(AttentionGradRequest r) {
    r.d_lse = r.delta = {};
    for (TensorView* view : {&r.q, &r.k, &r.v, &r.out, &r.d_out, &r.d_q, &r.d_k, &r.d_v}) {
      if (view->present()) *view = tensors_.copy(*view);
    }
    return r;
  }
  void run_backward(const AttentionGradRequest& request) {
    Policy policy;
    policy.only = std::vector<BackendRef>{GetParam().backend};
    const ScopedPolicy scope(policy, ScopedPolicy::Mode::kReplace);
    check(attention_backward(*context_, request));
  }
};

TEST_P(Nan, OfTheForwardReachesTheRowsThatSeeIt) {
  for (const char* dtype : {"f32", "bf16", "f16"}) {
    const Problem problem = problem_of(std::string("b1 hq1 sq70 d8 causal diag=tl lse ") + dtype);
    const AttentionRequest clean = run_anew(problem.request());
    for (TensorView AttentionRequest::*place :
         {&AttentionRequest::q, &AttentionRequest::k, &AttentionRequest::v}) {
      AttentionRequest changed = clean;
      changed.*place = tensors_.copy(clean.*place);
      write(changed.*place, kBad, kNanValue);
      changed = run_anew(changed);
      const bool is_query = place == &AttentionRequest::q;
      expect_nan_in(clean.out, changed.out, kBad, is_query ? kBad + 1 : kRows);
      if (place != &AttentionRequest::v) continue;
      EXPECT_EQ(unequal(clean.lse, changed.lse), "");
      for (const std::int64_t column : {0, 2, 4, 7}) {
        EXPECT_EQ(unequal(slice(clean.out, 3, column, 1), slice(changed.out, 3, column, 1)), "");
      }
    }
  }
}

TEST_P(Nan, OfTheBackwardReachesTheRowsThatSeeIt) {
  for (const char* dtype : {"f32", "bf16", "f16"}) {
    const Problem problem =
        problem_of(std::string("b1 hq1 sq70 d8 causal diag=tl saved grad ") + dtype);
    const AttentionGradRequest clean = copy(problem.request());
    run(clean);
    run_backward(clean);
    for (const char* place : {"q", "k", "v", "d_out"}) {
      SCOPED_TRACE(std::string(dtype) + ", NaN in " + place);
      const AttentionGradRequest changed = copy(clean);
      const bool is_key = *place == 'k' || *place == 'v';
      write(*place == 'q'   ? changed.q
            : *place == 'k' ? changed.k
            : *place == 'v' ? changed.v
                            : changed.d_out,
            kBad, kNanValue);
      run(changed);
      run_backward(changed);
      // Key kBad is seen by rows from kBad on, each of which makes all keys that it sees NaN.
      expect_nan_in(clean.d_q, changed.d_q, kBad, is_key ? kRows : kBad + 1);
      expect_nan_in(clean.d_k, changed.d_k, 0, is_key ? kRows : kBad + 1);
    }
  }
}

TEST_P(Nan, OfARowThatSeesNothingReachesNothing) {
  for (const char* dtype : {"f32", "bf16", "f16"}) {
    for (const char* more : {"saved", "lse", "sinks saved"}) {
      SCOPED_TRACE(std::string(dtype) + " " + more);
      const Problem problem =
          problem_of("b1 hq1 sq70 d8 mask grad " + std::string(more) + " " + dtype);
      const AttentionGradRequest clean = copy(problem.request());
      conformance::for_each_element(clean.attn_mask, [](const auto& at, unsigned char* element) {
        if (at[2] == kBad) *element = 0;
      });
      run(clean);
      run_backward(clean);
      const AttentionGradRequest changed = copy(clean);
      write(changed.q, kBad, kNanValue, /*all=*/true);
      if (!clean.sinks.present()) write(changed.d_out, kBad, kNanValue, /*all=*/true);
      run(changed);
      run_backward(changed);
      EXPECT_FALSE(has_nan(clean.d_q));
      EXPECT_EQ(unequal(clean.out, changed.out), "");
      EXPECT_EQ(unequal(clean.d_q, changed.d_q), "");
      EXPECT_EQ(unequal(clean.d_k, changed.d_k), "");
      EXPECT_EQ(unequal(clean.d_v, changed.d_v), "");
    }
  }
}

// A caller's delta stands for the output, which is then not read.
TEST_P(Nan, OfAnOutputBesideDeltaReachesNothing) {
  const Problem problem = problem_of("b1 hq1 sq70 d8 f32 saved grad");
  const AttentionGradRequest clean = copy(problem.request());
  run(clean);
  run_backward(clean);
  AttentionGradRequest changed = copy(clean);
  changed.delta = tensors_.make(Dtype::kF32, {1, 1, kRows});
  for (std::int64_t i = 0; i < kRows; ++i) {
    double sum = 0.0;
    for (std::int64_t d = 0; d < 8; ++d) {
      sum += oracle::element(clean.out, 0, 0, i, d) * oracle::element(clean.d_out, 0, 0, i, d);
    }
    static_cast<float*>(changed.delta.data)[i] = static_cast<float>(sum);
    write(changed.out, i, kNanValue, /*all=*/true);
  }
  run_backward(changed);
  EXPECT_LT(test::largest_difference(clean.d_q, changed.d_q), 1e-5);
  EXPECT_LT(test::largest_difference(clean.d_k, changed.d_k), 1e-5);
  EXPECT_EQ(unequal(clean.d_v, changed.d_v), "");
}

REGARD_INSTANTIATE_PROPERTIES(Nan);

}  // namespace
}  // namespace regard
