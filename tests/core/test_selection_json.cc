#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "mock_backend.h"

namespace regard::test {
namespace {

using nlohmann::json;

TEST(SelectionJson, HasEveryKeyAndParses) {
  Context context(described_env());
  const Selection selection = explain(context, case_params("sq8 d8 f64 sinks"), deny({kMath}));
  const json doc = json::parse(to_json(selection));
  for (const char* key : {"case", "params", "key", "policy", "chosen", "decided_by", "candidates",
                          "advice", "environment", "warnings"}) {
    EXPECT_TRUE(doc.contains(key)) << key;
  }
  EXPECT_EQ(doc["chosen"], "error");
  ASSERT_EQ(doc["candidates"].size(), selection.candidates.size());
  for (const json& candidate : doc["candidates"]) {
    for (const char* key :
         {"backend", "device", "status", "built", "enabled", "usable", "chosen", "workspace_bytes",
          "backward_workspace_bytes", "error_bound", "determinism", "refusals"}) {
      EXPECT_TRUE(candidate.contains(key)) << key;
    }
    for (const json& refusal : candidate["refusals"]) {
      for (const char* key : {"code", "message", "limit", "actual", "in_backward", "fix"}) {
        EXPECT_TRUE(refusal.contains(key)) << key;
      }
    }
  }
  EXPECT_EQ(doc["params"]["dtype_q"], "f64");
}

TEST(SelectionJson, HasTheStatusAndTheSentencesOfTheTable) {
  Context context(described_env());
  const Selection selection = explain(context, case_params("sq8 d8 f64 scores=probs"));
  const json doc = json::parse(to_json(selection));
  const std::string table = to_string(selection, /*verbose=*/true);
  const json flash = doc["candidates"][0], math = doc["candidates"][2],
             cudnn = doc["candidates"][3];
  EXPECT_EQ(flash["status"], "cannot run");
  EXPECT_EQ(flash["refusals"][1]["message"], "does not support scores_out; remove it, or use math");
  EXPECT_EQ(flash["refusals"][1]["fix"]["text"], "remove scores_out");
  EXPECT_EQ(math["status"], "chosen");
  EXPECT_EQ(math["determinism"], "batch_invariant");
  EXPECT_EQ(cudnn["device"], "cuda");
  EXPECT_EQ(cudnn["determinism"].is_null(), !cudnn["built"]);
  for (const json& candidate : doc["candidates"]) {
    EXPECT_NE(table.find(candidate["status"].get<std::string>()), std::string::npos);
    for (const json& refusal : candidate["refusals"]) {
      EXPECT_NE(table.find("  - " + refusal["message"].get<std::string>() + "\n"),
                std::string::npos);
    }
  }
}

TEST(SelectionJson, EscapesWhatABackendSays) {
  BackendInfo info = generous_info("mock");
  info.built = false;
  info.not_built_reason = "a \"quoted\"\n\\ reason\x01";
  Context context(described_env());
  add_backend(context, "mock", std::make_shared<MockBackend>(info));
  const json doc = json::parse(to_json(explain(context, case_params("sq8 d8 f32"))));
  EXPECT_EQ(doc["candidates"].back()["refusals"][0]["limit"], info.not_built_reason);
}

// Backends and the environment may hold any bytes; JSON is UTF-8.
TEST(SelectionJson, BytesThatAreNotUtf8AreReplaced) {
  BackendInfo info = generous_info("mock");
  info.built = false;
  info.not_built_reason = "\xff caf\xc3\xa9 \xe2\x82 \xc0\xaf \xed\xa0\x80 \xf0\x9f\x98\x80\xc3";
  Env env = described_env();
  env.cpu_model = "\xfe";
  Context context(env);
  add_backend(context, "mock", std::make_shared<MockBackend>(info));
  const std::string text = to_json(explain(context, case_params("sq8 d8 f32")));
  ASSERT_TRUE(json::accept(text)) << text;
  const std::string one = "\xef\xbf\xbd";  // U+FFFD
  EXPECT_EQ(json::parse(text)["candidates"].back()["refusals"][0]["limit"],
            one + " caf\xc3\xa9 " + one + one + " " + one + one + " " + one + one + one +
                " \xf0\x9f\x98\x80" + one);
  EXPECT_EQ(json::parse(to_json(env))["cpu_model"], one);
}

}  // namespace
}  // namespace regard::test
