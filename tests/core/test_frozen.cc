// Decisions in files: what they hold, how two differ and why, and programs that are held to them.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "mock_backend.h"
#include "regard/frozen.h"
#include "tests/support/temp_folder.h"

namespace regard::test {
namespace {

const char* const kWords[] = {
    "b1 hq8 hkv2 sq128 skv128 d64 f32 causal diag=tl", "b1 hq8 hkv2 sq1 skv1024 d64 bf16",
    "b1 hq2 hkv2 sq64 skv64 d32 f32 saved grad", "b1 hq1 hkv1 sq8 skv8 d64 f64"};

std::vector<AttentionParams> cases() {
  std::vector<AttentionParams> all;
  for (const char* words : kWords) all.push_back(case_params(words));
  return all;
}

FrozenDecisions frozen_on(const Env& env, const Policy& policy = {}) {
  Context context(env);
  return freeze(context, cases(), policy).value();
}

std::string differences(const FrozenDecisions& a, const FrozenDecisions& b) {
  return to_string(diff(a, b));
}

/// The first word of each line of `text`, once.
std::string causes(const std::vector<FrozenDifference>& all) {
  std::string text;
  for (const FrozenDifference& d : all) {
    const std::string word = to_string(d.cause);
    if (text.find(word) == std::string::npos) text += word + " ";
  }
  return text;
}

TEST(Frozen, HoldsWhatRunsAndReadsBack) {
  const FrozenDecisions frozen = frozen_on(described_env());
  ASSERT_EQ(frozen.decisions.size(), 4u);
  EXPECT_EQ(frozen.decisions[0].backend, "flash");
  EXPECT_EQ(frozen.decisions[0].decided_by, "built-in order");
  EXPECT_EQ(frozen.decisions[0].forward.find("flash_avx2_f32 avx2 workers="), 0u)
      << frozen.decisions[0].forward;
  EXPECT_EQ(frozen.decisions[0].backward, "");
  EXPECT_NE(frozen.decisions[2].backward, "");
  EXPECT_EQ(frozen.decisions[3].backend, "math");
  const std::string text = to_string(frozen);
  const Expected<FrozenDecisions> again = parse_frozen(text, "");
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(again->decisions, frozen.decisions);
  EXPECT_EQ(again->environment, frozen.environment);
  EXPECT_EQ(to_string(*again), text);
  EXPECT_EQ(differences(frozen, *again), "");
}

TEST(Frozen, WhereNothingCanRunIsADecision) {
  Policy policy = only({kFlash});
  const FrozenDecisions frozen = frozen_on(described_env(), policy);
  EXPECT_EQ(frozen.decisions[3].backend, "error");
  EXPECT_TRUE(parse_frozen(to_string(frozen), "").ok());
}

TEST(Frozen, DifferencesHaveTheirCause) {
  const FrozenDecisions here = frozen_on(described_env());
  Env other = described_env();
  other.version = "9.9.9";
  EXPECT_EQ(differences(here, frozen_on(other)),
            "version: version: " + described_env().version + " -> 9.9.9\n");
  other = described_env();
  other.concurrency = 7;
  EXPECT_EQ(causes(diff(here, frozen_on(other))), "threads ");
  EXPECT_NE(differences(here, frozen_on(other)).find("threads: forward of b1 hq8"),
            std::string::npos);
  other = described_env();
  other.isa = Isa::kScalar;
  EXPECT_EQ(causes(diff(here, frozen_on(other))), "isa ");
  EXPECT_NE(differences(here, frozen_on(other)).find("flash_avx2_f32"), std::string::npos);
  EXPECT_EQ(causes(diff(here, frozen_on(described_env(), deny({kFlash})))), "policy ");

  Context tuned(described_env());
  TuningTable table = parse_tuning_table("regard-tuning 1\nversion " + described_env().version +
                                             "\nisa avx2\ncpu described CPU\nconcurrency 2\n"
                                             "order sq<=1 : math,flash\n",
                                         "t")
                          .value();
  tuned.set_tuning(table);
  const std::vector<FrozenDifference> found = diff(here, freeze(tuned, cases()).value());
  EXPECT_EQ(causes(found), "table ");
  EXPECT_EQ(found[1].what, "backend of " + here.decisions[1].words);
  EXPECT_EQ(found[1].a + " " + found[1].b, "flash math");

  Context more(described_env());
  add_backend(more, "mock", std::make_shared<MockBackend>(generous_info("mock")));
  EXPECT_EQ(causes(diff(here, freeze(more, cases()).value())), "capability ");

  FrozenDecisions fewer = here;
  fewer.decisions.pop_back();
  EXPECT_EQ(differences(here, fewer), "case: " + here.decisions[3].words + ": math -> (none)\n");
  EXPECT_EQ(differences(fewer, here), "case: " + here.decisions[3].words + ": (none) -> math\n");
}

TEST(Frozen, AProgramIsHeldToThem) {
  const FrozenDecisions frozen =
      parse_frozen(to_string(frozen_on(described_env())), "f.frozen").value();
  Context context(described_env());
  ASSERT_TRUE(context.set_replay(frozen).ok());
  ASSERT_TRUE(plan(context, cases()[0]).ok());
  ASSERT_TRUE(plan(context, case_params("b1 hq1 sq5 d8")).ok());  // is not among them
  ASSERT_TRUE(plan(context, cases()[0], only({kMath})).ok());     // another policy

  ASSERT_TRUE(context.set_concurrency(5).ok());
  const Expected<Plan> refused = plan(context, cases()[0]);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  for (const char* word : {"f.frozen", "forward of b1 hq8", "workers=2", "->"}) {
    EXPECT_NE(refused.status().message().find(word), std::string::npos)
        << word << " in " << refused.status().message();
  }
  ASSERT_TRUE(context.set_replay({}).ok());
  EXPECT_TRUE(plan(context, cases()[0]).ok());
}

TEST(Frozen, AnotherMachineIsRefusedWithTheDifferenceAndNothingChanges) {
  const FrozenDecisions frozen = frozen_on(described_env());
  Env other = described_env();
  other.isa = Isa::kScalar;
  Context context(other);
  const Status refused = context.set_replay(frozen);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("isa: isa: avx2 -> scalar\n"), std::string::npos)
      << refused.message();
  EXPECT_TRUE(plan(context, cases()[0]).ok());

  Context mine(described_env());
  ASSERT_TRUE(mine.set_replay(frozen).ok());
  FrozenDecisions changed = frozen;
  changed.decisions[0].backend = "math";
  EXPECT_FALSE(mine.set_replay(changed).ok());
  ASSERT_TRUE(mine.set_concurrency(5).ok());
  EXPECT_FALSE(plan(mine, cases()[0]).ok());  // the former decisions hold
}

TEST(Frozen, TextsThatAreNone) {
  const std::string text = to_string(frozen_on(described_env()));
  const auto error = [](const std::string& changed) {
    const Expected<FrozenDecisions> frozen = parse_frozen(changed, "x");
    return frozen ? std::string("accepted") : frozen.status().message();
  };
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return error(changed);
  };
  EXPECT_EQ(error(text), "accepted");
  for (std::size_t size = 0; size < text.size(); ++size) {
    ASSERT_NE(error(text.substr(0, size)), "accepted") << size;
  }
  EXPECT_NE(error("").find("x:1: expected 'regard-frozen 1', got the end of the file"),
            std::string::npos);
  EXPECT_NE(with("frozen 1", "frozen 2").find("got 'regard-frozen 2'"), std::string::npos);
  EXPECT_NE(with("env isa ", "env asi ").find("x:4: expected \"env isa ...\""), std::string::npos);
  EXPECT_NE(with("backend flash", "backend flesh").find("'flesh' is no backend's name"),
            std::string::npos);
  EXPECT_NE(with("case b1 hq8", "case b1 colour").find("colour"), std::string::npos);
  EXPECT_NE(with("case b1 hq8", "case hq8 b1").find("canonical order"), std::string::npos);
  EXPECT_NE(with("end 4", "end 5").find("4 cases come before it"), std::string::npos);
  EXPECT_NE(error(text + "more\n").find("expected the end of the file"), std::string::npos);
  EXPECT_NE(with("decided_by", "decided_at").find("expected \"decided_by ...\""),
            std::string::npos);
}

TEST(Frozen, TheEnvironmentNamesAFile) {
  TempFolder folder;
  const std::string path = (folder.path() / "f.frozen").string();
  {
    Context context;
    std::ofstream(path) << to_string(freeze(context, cases()).value());
  }
  ASSERT_EQ(::setenv("REGARD_REPLAY", path.c_str(), 1), 0);
  Context same;
  EXPECT_TRUE(plan(same, cases()[0]).ok()) << plan(same, cases()[0]).status().to_string();
  ASSERT_EQ(::setenv("REGARD_DENY", "flash", 1), 0);
  Context other;
  std::ofstream(path) << "junk\n";
  Context junk;
  ASSERT_EQ(::unsetenv("REGARD_REPLAY"), 0);
  ASSERT_EQ(::unsetenv("REGARD_DENY"), 0);
  const Status refused = plan(other, cases()[0]).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("policy: policy: (none) -> deny=flash"), std::string::npos)
      << refused.message();
  EXPECT_NE(plan(junk, cases()[0]).status().message().find("expected 'regard-frozen 1'"),
            std::string::npos);
}

}  // namespace
}  // namespace regard::test
