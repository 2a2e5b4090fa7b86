#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "mock_backend.h"

namespace regard::test {
namespace {

// Throws in the function that it is given; a mock otherwise.
class ThrowingBackend : public MockBackend {
 public:
  explicit ThrowingBackend(std::string function, bool standard = true)
      : MockBackend(generous_info("thrower")),
        function_(std::move(function)),
        standard_(standard) {}

  bool supports(const AttentionKey& key, const Env& env,
                std::vector<Refusal>* refusals) const override {
    throw_in("supports");
    return MockBackend::supports(key, env, refusals);
  }
  std::int64_t workspace_bytes(const AttentionKey& key, const Env& env) const override {
    throw_in("workspace_bytes");
    return MockBackend::workspace_bytes(key, env);
  }
  std::int64_t backward_workspace_bytes(const AttentionKey& key, const Env& env) const override {
    throw_in("backward_workspace_bytes");
    return MockBackend::backward_workspace_bytes(key, env);
  }
  Expected<KernelPlan> plan(const AttentionKey& key, const Env& env) const override {
    throw_in("plan");
    return MockBackend::plan(key, env);
  }
  Expected<KernelPlan> plan_backward(const AttentionKey& key, const Env& env) const override {
    throw_in("plan_backward");
    return MockBackend::plan_backward(key, env);
  }

 private:
  void throw_in(const char* function) const {
    if (function != function_) return;
    if (standard_) throw std::runtime_error("out of luck");
    throw 5;
  }
  const std::string function_;
  const bool standard_;
};

const AttentionParams kGrad = case_params("sq8 d8 f32 grad");

TEST(BackendExceptions, OfWhatSelectionReadsAreRefusals) {
  for (const char* function : {"supports", "workspace_bytes", "backward_workspace_bytes"}) {
    SCOPED_TRACE(function);
    Context context(described_env());
    add_backend(context, "thrower", std::make_shared<ThrowingBackend>(function));
    const Selection selection = explain(context, kGrad, prefer({custom("thrower"), kMath}));
    EXPECT_EQ(selection.chosen, kMath);
    const Verdict& verdict = *selection.find(custom("thrower"));
    EXPECT_TRUE(verdict.enabled && !verdict.usable && !verdict.chosen);
    EXPECT_EQ(verdict.workspace_bytes, -1);
    const Refusal expected{
        RefusalCode::kCustom, std::string("throws in ") + function, "out of luck", {}};
    EXPECT_EQ(verdict.refusals, std::vector{expected});

    EXPECT_EQ(plan(context, kGrad, prefer({custom("thrower"), kMath})).value().backend(), kMath);
    const auto alone = plan(context, kGrad, only({custom("thrower")}));
    EXPECT_EQ(alone.status().code(), StatusCode::kNoBackend);
  }
}

TEST(BackendExceptions, OfPlansAreAStatus) {
  for (const char* function : {"plan", "plan_backward"}) {
    for (const bool standard : {true, false}) {
      SCOPED_TRACE(function);
      Context context(described_env());
      add_backend(context, "thrower", std::make_shared<ThrowingBackend>(function, standard));
      const auto made = plan(context, kGrad, only({custom("thrower")}));
      ASSERT_FALSE(made);
      EXPECT_EQ(made.status().code(), StatusCode::kInternal);
      EXPECT_EQ(made.status().message(), std::string("[plan] custom:thrower threw in ") + function +
                                             ": " +
                                             (standard ? "out of luck" : "no std::exception"));
      EXPECT_TRUE(explain(context, kGrad, only({custom("thrower")})).ok());
    }
  }
}

TEST(BackendExceptions, NonStdExceptionsOfSelectionAreRefusals) {
  Context context(described_env());
  add_backend(context, "thrower", std::make_shared<ThrowingBackend>("supports", false));
  const Selection selection = explain(context, kGrad);
  EXPECT_EQ(selection.find(custom("thrower"))->refusals.at(0).actual, "no std::exception");
}

// workspace_bytes is read again when a plan is compared with it.
class ThrowsLater : public MockBackend {
 public:
  ThrowsLater() : MockBackend(generous_info("later")) {}
  std::int64_t workspace_bytes(const AttentionKey&, const Env&) const override {
    if (plans > 0) throw std::runtime_error("out of luck");
    return 0;
  }
};

TEST(BackendExceptions, OfThePlansCheckAreAStatus) {
  Context context(described_env());
  add_backend(context, "later", std::make_shared<ThrowsLater>());
  const auto made = plan(context, kGrad, only({custom("later")}));
  EXPECT_EQ(made.status().code(), StatusCode::kInternal);
}

// A backend that fails to plan and returns an ok Status all the same.
class PlansNothing : public MockBackend {
 public:
  PlansNothing() : MockBackend(generous_info("empty")) {}
  Expected<KernelPlan> plan(const AttentionKey&, const Env&) const override { return Status(); }
};

TEST(BackendExceptions, AnOkStatusForAPlanIsAnError) {
  Context context(described_env());
  add_backend(context, "empty", std::make_shared<PlansNothing>());
  const auto made = plan(context, kGrad, only({custom("empty")}));
  ASSERT_FALSE(made);
  EXPECT_EQ(made.status().code(), StatusCode::kInternal);
  EXPECT_EQ(made.status().message(), "[Expected] made from an ok Status, expected a failure");
  EXPECT_THROW((void)Expected<int>(Status()).value(), Error);
}

}  // namespace
}  // namespace regard::test
