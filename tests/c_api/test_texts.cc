#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "conformance/generator.h"
#include "conformance/problem.h"
#include "regard/attention.h"
#include "small_call.h"

namespace regard::test {
namespace {

TEST(CVersion, IsTheLibrarys) {
  EXPECT_STREQ(regard_version(), version());
  EXPECT_EQ(regard_version_number(), REGARD_VERSION_NUMBER);
  EXPECT_EQ(std::to_string(REGARD_VERSION_NUMBER / 10000) + "." +
                std::to_string(REGARD_VERSION_NUMBER / 100 % 100) + "." +
                std::to_string(REGARD_VERSION_NUMBER % 100),
            version());
}

TEST(CStatus, HasTheCxxNames) {
  for (int code = 0; code <= static_cast<int>(StatusCode::kOutOfMemory); ++code) {
    EXPECT_STREQ(regard_status_name(static_cast<regard_status>(code)),
                 to_string(static_cast<StatusCode>(code)));
  }
  EXPECT_STREQ(regard_status_name(static_cast<regard_status>(-1)), "?");
  EXPECT_STREQ(regard_status_name(static_cast<regard_status>(REGARD_STATUS_OUT_OF_MEMORY + 1)),
               "?");
}

// Every field of a request, through its two tables, for problems with every feature.
TEST(CDescribe, SaysWhatTheCxxDescribeDoes) {
  for (std::uint64_t n = 0; n < 300; ++n) {
    const conformance::Problem problem = conformance::make_problem(conformance::random_case(6, n));
    const AttentionParams params = describe(problem.request()).value();
    CRequest request(problem.request());
    EXPECT_EQ(text_of([&](auto... out) { return regard_describe(request.get(), out...); }),
              to_string(params));
    EXPECT_EQ(text_of([&](auto... out) { return regard_describe_json(request.get(), out...); }),
              to_json(params));
  }
}

TEST(CExplain, WritesTheCxxJson) {
  const ContextHandle context = make_c_context();
  Context cxx_context;
  SmallCall call;
  std::vector<float> out;
  const AttentionParams params = describe(call.cxx(out)).value();
  regard_policy c_policy = regard_policy_default();
  c_policy.deny = "flash";
  Policy policy;
  policy.deny = {{BackendId::kFlash}};
  EXPECT_EQ(text_of([&](auto... text) {
              return regard_explain(context.get(), &call.request, nullptr, text...);
            }),
            to_json(explain(cxx_context, params)));
  EXPECT_EQ(text_of([&](auto... text) {
              return regard_explain(context.get(), &call.request, &c_policy, text...);
            }),
            to_json(explain(cxx_context, params, policy)));
  EXPECT_EQ(text_of([&](auto... text) {
              return regard_explain_case(context.get(), "b2 hq4 sq8 d16 causal", &c_policy,
                                         text...);
            }),
            to_json(explain(cxx_context, parse_case("b2 hq4 sq8 d16 causal")->params, policy)));
}

TEST(CExplain, ACaseMayNameAnotherMachine) {
  const ContextHandle context = make_c_context();
  Context cxx_context;
  const Case c = parse_case("sq8 d16 isa=scalar").value();
  const std::string expected =
      to_json(explain(c.params, {}, apply_overrides(cxx_context.env(), c)));
  EXPECT_EQ(text_of([&](auto... text) {
              return regard_explain_case(context.get(), "sq8 d16 isa=scalar", nullptr, text...);
            }),
            expected);
}

TEST(CExplain, AnotherMachineKeepsTheContextsPolicy) {
  const ContextHandle context = make_c_context();
  regard_policy math = regard_policy_default();
  math.only = "math";
  ASSERT_EQ(regard_context_set_policy(context.get(), &math), REGARD_STATUS_OK);
  for (const char* words : {"sq8 d16", "sq8 d16 isa=scalar", "sq8 d16 device=sm90"}) {
    const std::string json = text_of(
        [&](auto... text) { return regard_explain_case(context.get(), words, nullptr, text...); });
    EXPECT_NE(json.find("\"only\":[\"math\"]"), std::string::npos) << json;
  }
}

// A problem that nothing can run is no failure of explain: the reasons are its answer.
TEST(CExplain, AnswersWhereNothingCanRun) {
  const ContextHandle context = make_c_context();
  const std::string json = text_of([&](auto... text) {
    return regard_explain_case(context.get(), "sq8 d16 i32", nullptr, text...);
  });
  EXPECT_NE(json.find("\"chosen\":\"error\""), std::string::npos) << json;
}

TEST(CPlan, SaysWhatTheCxxPlanDoes) {
  const ContextHandle context = make_c_context();
  Context cxx_context;
  SmallCall call;
  std::vector<float> out;
  const Plan expected = plan(cxx_context, describe(call.cxx(out)).value()).value();
  const PlanHandle made = make_c_plan(context.get(), &call.request);
  ASSERT_NE(made, nullptr) << regard_last_error();
  EXPECT_EQ(regard_plan_backend(made.get()), to_string(expected.backend()));
  std::size_t bytes = 0;
  ASSERT_EQ(regard_plan_workspace_bytes(made.get(), &bytes), REGARD_STATUS_OK);
  EXPECT_EQ(static_cast<std::int64_t>(bytes), expected.workspace_bytes());
  EXPECT_EQ(text_of([&](auto... text) { return regard_plan_text(made.get(), text...); }),
            expected.to_string());
  EXPECT_EQ(text_of([&](auto... text) { return regard_plan_explain(made.get(), text...); }),
            to_json(expected.selection()));
}

TEST(CText, FollowsTheRulesOfItsBuffer) {
  SmallCall call;
  const regard_request* request = &call.request;
  std::size_t needed = 0;
  ASSERT_EQ(regard_describe(request, nullptr, 0, &needed), REGARD_STATUS_OK);
  std::string text(needed, '?');

  // Exactly enough, with and without needed.
  EXPECT_EQ(regard_describe(request, text.data(), needed, nullptr), REGARD_STATUS_OK);
  EXPECT_EQ(text.c_str(), std::string("b2 hq4 hkv4 sq8 skv8 d16 f32 causal"));
  EXPECT_EQ(needed, std::string(text.c_str()).size() + 1);

  // One byte short: refused with both numbers, nothing written.
  std::string short_text(needed, '?');
  std::size_t again = 0;
  EXPECT_EQ(regard_describe(request, short_text.data(), needed - 1, &again),
            REGARD_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(again, needed);
  EXPECT_EQ(short_text, std::string(needed, '?'));
  EXPECT_EQ(regard_last_error(), "[regard_describe] capacity (" + std::to_string(needed - 1) +
                                     ") must be at least " + std::to_string(needed));

  EXPECT_EQ(regard_describe(request, nullptr, 10, &needed), REGARD_STATUS_INVALID_ARGUMENT);
  EXPECT_STREQ(regard_last_error(),
               "[regard_describe] buffer (null) must hold its capacity, 10 bytes");
  EXPECT_EQ(regard_describe(request, nullptr, 0, nullptr), REGARD_STATUS_INVALID_ARGUMENT);
  EXPECT_STREQ(regard_last_error(),
               "[regard_describe] buffer and needed (null) must not both be null");
}

}  // namespace
}  // namespace regard::test
