#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "conformance/compare.h"
#include "conformance/problem.h"
#include "oracle/padded.h"
#include "tests/support/backends.h"
#include "tests/support/tensors.h"

// Laws that relate two calls to each other, on every unit of every backend. The oracle says what is
// right; these say what stays the same, most of them to the bit.

namespace regard::test {

class Property : public testing::TestWithParam<Forced> {
 protected:
  Property() : context_(make_context(GetParam().isa, 3)) {}

  /// A problem with dense tensors.
  static conformance::Problem problem_of(const std::string& text) {
    return conformance::make_problem(parse_case(text).value(),
                                     {conformance::Guard::kCanaries, /*dense=*/true});
  }
  void run(const AttentionRequest& request) { run_forced(*context_, request, GetParam()); }
  /// The same request into outputs of its own.
  AttentionRequest run_anew(AttentionRequest request) {
    tensors_.renew_outputs(&request);
    run(request);
    return request;
  }
  /// Holds what the unit wrote against the truth of the same request.
  void expect_within_tolerance(const AttentionRequest& request, const oracle::Truth& truth,
                               const std::string& what) {
    const conformance::Comparison comparison =
        conformance::compare(request, truth, claimed_probs(*context_, request, GetParam()));
    EXPECT_TRUE(comparison.ok) << what << ": " << comparison.text;
  }

  /// Whether the unit sums what a row sees of the request's narrow window as one tile, which other
  /// spellings of the window do in tiles of a grid: then both are right, each rounded in its way.
  bool sums_window_at_once(const AttentionRequest& request) const;
  /// Holds two spellings of one call to the same bits, or, where `one` is a narrow window that is
  /// summed at once, each to the tolerance of its own.
  void expect_same_call(const AttentionRequest& one, const AttentionRequest& other,
                        const std::string& what);

  std::unique_ptr<Context> context_;
  Tensors tensors_;
};

/// The request of sequence `b` alone, cut to its lengths: no padding, no lengths.
AttentionRequest single_sequence(const AttentionRequest& request, std::int64_t b);

/// Keys [begin, end) of a request alone. A diagonal must be an offset.
AttentionRequest some_keys(AttentionRequest request, std::int64_t begin, std::int64_t end);

/// Queries [begin, end) of a request alone. A diagonal must be an offset.
AttentionRequest some_queries(AttentionRequest request, std::int64_t begin, std::int64_t end);

/// The request of a cache as one of a batch: the oracle gathered, rotated, quantised and appended
/// the rows, whose memory `twin` owns.
AttentionRequest without_cache(AttentionRequest request, const oracle::Padded& twin);

}  // namespace regard::test

#define REGARD_INSTANTIATE_PROPERTIES(suite)                                               \
  INSTANTIATE_TEST_SUITE_P(All, suite, testing::ValuesIn(regard::test::forced_backends()), \
                           [](const auto& param) { return regard::test::name_of(param.param); })
