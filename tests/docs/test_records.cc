// The documents name what the library has: claims, refusal codes, features, variables, case words.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "regard/attention.h"
#include "tests/docs/document.h"
#include "tests/support/literals.h"

namespace regard {
namespace {

using test::expect_block;
using test::names;
using test::read_document;

TEST(Documents, TheTensorsOfACallAreThoseOfTheTable) {
  expect_block("semantics.md", "tensors", "\n" + tensor_table() + "\n");
}

TEST(Documents, BackendsNameEveryBackend) {
  const std::string document = read_document("backends.md");
  const Context context;
  for (const BackendInfo& info : context.backends()) {
    EXPECT_TRUE(names(document, to_string(info.ref))) << to_string(info.ref);
  }
}

TEST(Documents, SelectionNamesEveryVariable) {
  const std::string document = read_document("selection.md");
  const Env env = read_env();
  EXPECT_EQ(env.variables.size(), 8u);
  for (const EnvVariable& variable : env.variables) {
    EXPECT_NE(document.find("| `" + variable.name + "` |"), std::string::npos) << variable.name;
  }
}

TEST(Documents, SelectionNamesEveryRefusalCode) {
  const std::string document = read_document("selection.md");
  for (int i = 0; i < static_cast<int>(RefusalCode::kCount); ++i) {
    const std::string code = to_string(static_cast<RefusalCode>(i));
    EXPECT_NE(document.find("| `" + code + "` |"), std::string::npos) << code;
  }
}

TEST(Documents, CasesNameEveryFeature) {
  const std::string document = read_document("cases.md");
  for (int i = 0; i < kFeatureCount; ++i) {
    const std::string feature = to_string(static_cast<Feature>(i));
    EXPECT_TRUE(names(document, feature)) << feature;
  }
}

TEST(Documents, SelectionNamesEveryPolicyField) {
  const std::string document = read_document("selection.md");
  const Policy policy;
  for_each_policy_field(policy, [&](const char* name, const auto&) {
    EXPECT_NE(document.find(std::string("| `") + name + "` |"), std::string::npos) << name;
  });
}

TEST(Documents, SelectionNamesEveryWordOfAValue) {
  const std::string document = read_document("selection.md");
  for (const Determinism level :
       {Determinism::kNone, Determinism::kRunToRun, Determinism::kThreadCountInvariant,
        Determinism::kBatchInvariant}) {
    EXPECT_TRUE(names(document, to_string(level))) << to_string(level);
  }
  for (const OnFallback value : {OnFallback::kAllow, OnFallback::kWarn, OnFallback::kError}) {
    EXPECT_TRUE(names(document, to_string(value))) << to_string(value);
  }
  for (const Isa& isa : named_isas()) {
    EXPECT_TRUE(names(document, to_string(isa))) << to_string(isa);
  }
}

// The last section of semantics.md lists exactly the problems of literals_table.cc.
TEST(Documents, SemanticsNamesEveryLiteralProblem) {
  const std::string document = read_document("semantics.md");
  const std::size_t begin = document.find("| rule | literal problems |");
  ASSERT_NE(begin, std::string::npos);
  const std::string table = document.substr(begin);
  for (const test::Literal& literal : test::literals()) {
    EXPECT_TRUE(names(table, literal.name)) << literal.name;
  }
  const auto ticks = std::count(table.begin(), table.end(), '`');
  EXPECT_EQ(ticks, 2 * static_cast<std::ptrdiff_t>(test::literals().size()))
      << "the table names a problem twice, or one that does not exist";
}

TEST(Documents, CasesHaveTheCaseSyntax) {
  std::string block = "```text\n";
  block.append(case_syntax_help()).append("```\n");
  expect_block("cases.md", "case words", block);
}

}  // namespace
}  // namespace regard
