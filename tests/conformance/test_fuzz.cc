#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "conformance/generator.h"
#include "conformance/random.h"
#include "tests/support/all_units.h"
#include "tests/support/backends.h"
#include "tests/support/expected_refusals.h"
#include "tests/support/oracle_backend.h"

// "Supported <=> runs", fuzzed both ways: what a backend claims runs and is right, what it refuses
// has a fix that removes the refusal. REGARD_RANDOM_CASES of every test run are conformance.random;
// here the fuzz itself is under test.

namespace regard {
namespace {

using conformance::RandomOptions;
using conformance::RandomResult;
using test::OracleBackend;

RandomResult fuzz(Context& context, std::vector<BackendRef> backends, std::int64_t count,
                  std::uint64_t seed) {
  RandomOptions options;
  options.count = count;
  options.seed = seed;
  options.backends = std::move(backends);
  options.max_failures = 1;
  return run_random(context, options);
}

std::string first_failure(const RandomResult& result) {
  return result.failures.empty() ? "" : result.failures.front();
}

TEST(RandomCases, PassOnEveryUnit) {
  int passed = 0;
  for (std::uint64_t n = 0; n < 80; ++n) {
    const auto guard = n % 2 == 0 ? conformance::Guard::kCanaries : conformance::Guard::kLowerPage;
    passed += test::AllUnits::instance().run(conformance::random_case(4242, n), {.guard = guard});
    if (HasFailure()) return;
  }
  EXPECT_GT(passed, 110);
}

// Few: each unit computes truths of its own.
TEST(Fuzz, EveryUnitOfEveryBackendPasses) {
  constexpr int kCases = 12;
  for (const test::Forced& forced : test::forced_backends()) {
    const std::unique_ptr<Context> context = test::make_context(forced.isa, 3);
    const RandomResult result = fuzz(*context, {forced.backend}, kCases, 4242);
    EXPECT_EQ(first_failure(result), "") << test::name_of(forced);
    EXPECT_EQ(result.cases, kCases);
  }
}

TEST(Fuzz, BackendsThatAreNotBuiltRefuseProperly) {
  const std::unique_ptr<Context> context = test::make_context(Isa::kScalar);
  std::vector<BackendRef> refs;
  for (const BackendInfo& info : context->backends()) refs.push_back(info.ref);
  EXPECT_EQ(first_failure(fuzz(*context, refs, 20, 5)), "");
}

BackendInfo info_of(const Context& context, BackendId id) {
  for (const BackendInfo& info : context.backends()) {
    // Every device has a MATH.
    if (info.ref.id == id && info.device == DeviceType::kCpu) return info;
  }
  return {};
}

// The draws alone, with what a backend claims of them: 3,000 cases hold each pair of its features 5
// times, 20,000 hold each 20 times.
TEST(Fuzz, CoversEveryPairOfFeaturesThatABackendClaims) {
  const std::unique_ptr<Context> context = test::make_context(Isa::kScalar);
  test::ExpectedRefusals refusals;
  for (const BackendId id : {BackendId::kMath, BackendId::kEfficient, BackendId::kFlash}) {
    const BackendInfo info = info_of(*context, id);
    conformance::Coverage coverage;
    const auto add = [&](const Case& c) {
      conformance::PreparedCase prepared;
      prepared.source = c;
      const Selection selection = explain(*context, c.params, conformance::policy_for(c, info.ref));
      const Verdict& verdict = *selection.find(info.ref);
      const bool usable = verdict.usable;
      if (!usable) {
        EXPECT_EQ(refusals.check(verdict), "") << to_string(c);
      }
      coverage.add_run(prepared, info.ref,
                       usable ? conformance::Outcome::kPassed : conformance::Outcome::kRefused);
    };
    for (std::uint64_t n = 0; n < 20000; ++n) {
      add(conformance::random_case(1, n));
      if (n % 4 == 0) add(conformance::random_grad_case(1, n));  // what a backward is given
      if (n + 1 != 3000 && n + 1 != 20000) continue;
      const std::vector<std::string> missing = coverage.missing_pairs(info, n + 1 == 3000 ? 5 : 20);
      EXPECT_EQ(missing, std::vector<std::string>());
    }
    EXPECT_FALSE(coverage.missing_pairs(info, 20001).empty());
  }
  EXPECT_EQ(refusals.check_all_met(), "");
}

// ---- mocks that the fuzz must catch, and one that it must not

class Mocks : public testing::Test {
 protected:
  Mocks() : context_(test::make_context(Isa::kScalar)) {}

  RandomResult fuzz_mock(std::shared_ptr<OracleBackend> mock, std::int64_t count = 300) {
    const BackendRef ref =
        register_backend(*context_, "mock", std::move(mock), test::NoSuite()).value();
    return fuzz(*context_, {ref}, count, 11);
  }
  std::shared_ptr<OracleBackend> mock() {
    return std::make_shared<OracleBackend>(test::oracle_info());
  }

  std::unique_ptr<Context> context_;
};

TEST_F(Mocks, OneThatDoesWhatItSaysPasses) { EXPECT_EQ(first_failure(fuzz_mock(mock())), ""); }

TEST_F(Mocks, ClaimsTooMuchAndSaysSoTooLate) {
  auto wrong = mock();
  wrong->cannot_run = [](const AttentionParams& p) { return p.head_dim_qk > 100; };
  const std::string failure = first_failure(fuzz_mock(wrong));
  EXPECT_NE(failure.find("planned, but execute() says internal: [mock] cannot run it"),
            std::string::npos)
      << failure;
}

TEST_F(Mocks, ClaimsAFeatureAndDropsItSilently) {
  auto wrong = mock();
  wrong->misread = [](AttentionRequest& r) { r.segment_ids_q = r.segment_ids_kv = {}; };
  const std::string failure = first_failure(fuzz_mock(wrong));
  EXPECT_NE(failure.find("segments"), std::string::npos) << failure;
  EXPECT_NE(failure.find("expected"), std::string::npos) << failure;
}

TEST_F(Mocks, StatesAnotherWorkspaceThanItPlans) {
  class Greedy final : public OracleBackend {
   public:
    using OracleBackend::OracleBackend;
    std::int64_t workspace_bytes(const AttentionKey&, const Env&) const override { return 128; }
  };
  const std::string failure =
      first_failure(fuzz_mock(std::make_shared<Greedy>(test::oracle_info())));
  EXPECT_NE(failure.find("workspace"), std::string::npos) << failure;
}

TEST_F(Mocks, ClaimsTooLittleWithAFixThatDoesNotHelp) {
  auto wrong = mock();
  wrong->own_rule = [](const AttentionParams& p) { return p.head_dim_qk <= 32; };
  wrong->own_refusal = {
      RefusalCode::kCustom, "1..128", "more", {Fix::Op::kAtMost, "head_dim_qk", "128"}};
  const std::string failure = first_failure(fuzz_mock(wrong));
  EXPECT_NE(failure.find("does not remove it"), std::string::npos) << failure;
}

TEST_F(Mocks, ClaimsTooLittleWithoutAReason) {
  auto wrong = mock();
  wrong->own_rule = [](const AttentionParams& p) { return p.batch != 2; };
  const std::string failure = first_failure(fuzz_mock(wrong));
  EXPECT_NE(failure.find("refuses without a reason"), std::string::npos) << failure;
}

TEST_F(Mocks, ClaimsTooLittleWithoutAFix) {
  auto wrong = mock();
  wrong->own_rule = [](const AttentionParams& p) { return p.batch != 2; };
  wrong->own_refusal = {RefusalCode::kCustom, "not two sequences", "2", {}};
  const std::string failure = first_failure(fuzz_mock(wrong));
  EXPECT_NE(failure.find("has no fix"), std::string::npos) << failure;
}

TEST_F(Mocks, ARefusalWithAFixThatHelpsIsFine) {
  auto right = mock();
  right->own_rule = [](const AttentionParams& p) { return p.head_dim_qk <= 32; };
  right->own_refusal = {
      RefusalCode::kCustom, "1..32", "more", {Fix::Op::kAtMost, "head_dim_qk", "32"}};
  EXPECT_EQ(first_failure(fuzz_mock(right)), "");
}

}  // namespace
}  // namespace regard
