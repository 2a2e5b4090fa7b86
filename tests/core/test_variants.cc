#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mock_backend.h"
#include "regard/benchmark.h"
#include "regard/frozen.h"

// Variants of a backend's forward: which ones there are, which one a tuning table names, and where
// a table does not count.

namespace regard::test {
namespace {

/// A mock with the variants "small" (of less workspace), "large" (of more) and "refused".
class VariantMock final : public MockBackend {
 public:
  VariantMock() : MockBackend(generous_info("mock")) { workspace = 128; }
  std::vector<std::string> variants(const AttentionKey& key, const Env&) const override {
    if (key.params().seqlen_q > 64) return {};
    return {"small", "large", "refused"};
  }
  Expected<KernelPlan> plan_variant(const AttentionKey& key, const Env& env,
                                    std::string_view variant) const override {
    if (variant == "refused") return Status(StatusCode::kInternal, "[mock] no");
    Expected<KernelPlan> kernel = plan(key, env);
    kernel->workspace_bytes = variant == "small" ? 64 : 192;
    return kernel;
  }
};

/// Of this Env, with these lines.
TuningTable table_of(const Env& env, const std::string& lines) {
  return parse_tuning_table("regard-tuning 1\nversion " + env.version + "\nisa " +
                                to_string(env.isa) + "\ncpu " + env.cpu_model + "\nconcurrency " +
                                std::to_string(env.concurrency) + "\n" + lines,
                            "fixture")
      .value();
}

struct WithVariants {
  WithVariants() : context(described_env()) {
    add_backend(context, "mock", std::make_shared<VariantMock>());
  }
  void tune(const std::string& lines) { context.set_tuning(table_of(context.env(), lines)); }
  Expected<Plan> planned(const std::string& words = "sq8 d8 f32", Policy policy = {}) {
    policy.only = {{custom("mock")}};
    return plan(context, case_params(words), policy);
  }
  /// The variant that is planned, or why none is.
  std::string variant_of(const std::string& words = "sq8 d8 f32") {
    const Expected<Plan> made = planned(words);
    return made.ok() ? made->kernel().variant : made.status().message();
  }
  Context context;
};

TEST(Variants, ATableNamesOne) {
  WithVariants fixture;
  EXPECT_EQ(fixture.planned()->kernel().variant, "");
  EXPECT_EQ(fixture.planned()->to_string().find("variant"), std::string::npos);
  fixture.tune("variant sq<=8 f32 : custom:mock/small\n");
  const Plan plan = fixture.planned().value();
  EXPECT_EQ(plan.kernel().variant, "small");
  EXPECT_EQ(plan.kernel().variant_source, "tuning table fixture");
  EXPECT_EQ(plan.workspace_bytes(), 64);
  EXPECT_NE(plan.to_string().find(", variant small of tuning table fixture"), std::string::npos)
      << plan.to_string();
  EXPECT_EQ(fixture.planned("sq9 d8 f32")->kernel().variant, "");
  EXPECT_EQ(fixture.planned("sq8 d8 bf16")->kernel().variant, "");
  fixture.context.set_tuning({});
  EXPECT_EQ(fixture.planned()->kernel().variant, "");
}

TEST(Variants, TheFirstThatTheBackendHasCounts) {
  WithVariants fixture;
  fixture.tune(
      "variant : flash/large\nvariant : custom:mock/another\nvariant : custom:mock/small\n");
  EXPECT_EQ(fixture.variant_of(), "small");
  EXPECT_EQ(fixture.variant_of("sq65 d8 f32"), "");  // the mock has none there
}

TEST(Variants, OnesThatNeedMoreMemoryOrFailAreErrors) {
  WithVariants fixture;
  fixture.tune("variant : custom:mock/large\n");
  const Expected<Plan> large = fixture.planned();
  ASSERT_FALSE(large.ok());
  EXPECT_NE(large.status().message().find("plans 192 workspace bytes"), std::string::npos)
      << large.status().message();
  fixture.tune("variant : custom:mock/refused\n");
  EXPECT_EQ(fixture.planned().status().message(), "[mock] no");
}

TEST(Variants, ATableOfAnotherMachineNamesNone) {
  WithVariants fixture;
  TuningTable table = table_of(fixture.context.env(), "variant : custom:mock/small\n");
  table.concurrency = 7;
  fixture.context.set_tuning(table);
  EXPECT_EQ(fixture.planned()->kernel().variant, "");
}

// Bits are the default's, so that what a policy requires of them does not forbid a variant.
TEST(Variants, CountWhateverAPolicyRequiresOfBits) {
  WithVariants fixture;
  fixture.tune("order : math\nvariant : custom:mock/small\n");
  Policy policy;
  policy.require = Determinism::kBatchInvariant;
  EXPECT_EQ(fixture.planned("sq8 d8 f32", policy)->kernel().variant, "small");
}

TEST(Variants, APlanGivesAnother) {
  WithVariants fixture;
  fixture.tune("variant : custom:mock/small\n");
  const Plan plan = fixture.planned().value();
  EXPECT_EQ(plan.variants(), (std::vector<std::string>{"small", "large", "refused"}));
  const Expected<Plan> usual = plan.with_variant("");
  ASSERT_TRUE(usual.ok());
  EXPECT_EQ(usual->kernel().variant + usual->kernel().variant_source, "");
  EXPECT_EQ(usual->workspace_bytes(), 128);
  EXPECT_EQ(usual->with_variant("small")->kernel().variant, "small");
  EXPECT_EQ(usual->with_variant("small")->kernel().variant_source, "");
  EXPECT_FALSE(plan.with_variant("large").ok());

  Context context(described_env());
  const Plan math = regard::plan(context, case_params("sq8 d8 f32"), only({kMath})).value();
  EXPECT_TRUE(math.variants().empty());
  const Expected<Plan> unknown = math.with_variant("small");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.status().message(), "[plan_variant] math has no variant small");
}

TEST(Variants, AFileGivesThemBack) {
  TuningTable table = table_of(described_env(), "variant sq<=8 f32 : custom:mock/small\n");
  table.variants.push_back({"", kFlash, "row_blocks_2"});
  table.times = {{{BackendId::kFlash, case_params("sq9 d8 bf16"), false, 2e-6}, 1e-6, 3e-6, "a_1"}};
  const Expected<TuningTable> read = parse_tuning_table(to_text(table), "fixture");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, table);
  EXPECT_EQ(read->variants.size(), 2u);
  EXPECT_EQ(read->times[0].variant, "a_1");
}

TEST(Variants, BadLinesOfAFileAreRefused) {
  for (const char* line :
       {"variant", "variant flash/a", "variant : flash", "variant : flash/", "variant : flash/A",
        "variant : flash/a b", "variant : /a", "variant : nothing/a", "variant sq : flash/a",
        "time flash/ forward 1 1 1 : sq8 d8 f32", "time flash/A forward 1 1 1 : sq8 d8 f32"}) {
    const auto read = parse_tuning_table(std::string("regard-tuning 1\n") + line + "\n", "f");
    EXPECT_FALSE(read.ok()) << line;
    if (!read.ok()) {
      EXPECT_NE(read.status().message().find("f:2: "), std::string::npos)
          << read.status().message();
    }
  }
}

TEST(Variants, FrozenDecisionsHoldThem) {
  WithVariants fixture;
  const std::vector<AttentionParams> cases = {case_params("sq8 d8 f32")};
  const FrozenDecisions usual = freeze(fixture.context, cases, only({custom("mock")})).value();
  fixture.tune("variant : custom:mock/small\n");
  const FrozenDecisions tuned = freeze(fixture.context, cases, only({custom("mock")})).value();
  EXPECT_NE(tuned.decisions[0].forward.find(" variant=small"), std::string::npos);
  const std::vector<FrozenDifference> found = diff(usual, tuned);
  EXPECT_TRUE(std::ranges::any_of(found, [](const FrozenDifference& difference) {
    return difference.what.starts_with("forward of");
  }));
}

}  // namespace
}  // namespace regard::test
