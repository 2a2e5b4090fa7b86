#include <gtest/gtest.h>

#include <string>

#include "mock_backend.h"

namespace regard::test {
namespace {

// What described_env() gives of the built-in backends, without the lines of the case.
std::string text_of(const char* words, const Policy& policy = {}, bool verbose = false) {
  Context context(described_env());
  const std::string text = to_string(explain(context, case_params(words), policy), verbose);
  return text.substr(text.find('\n') + 1);
}

Policy max_workspace(std::int64_t bytes) {
  Policy policy;
  policy.max_workspace_bytes = bytes;
  return policy;
}

Verdict usable(const BackendRef& ref, std::int64_t workspace_bytes) {
  Verdict verdict;
  verdict.backend = ref;
  verdict.built = verdict.enabled = verdict.usable = true;
  verdict.workspace_bytes = workspace_bytes;
  verdict.error_bound = 2e-6;
  verdict.determinism = Determinism::kBatchInvariant;
  return verdict;
}

Verdict absent_on_a_device() {
  Verdict verdict;
  verdict.backend = kCudnn;
  verdict.device = DeviceType::kCuda;
  verdict.enabled = true;
  verdict.refusals = {{RefusalCode::kNotBuilt, "configure with -DREGARD_CUDA=ON", "", {}}};
  return verdict;
}

TEST(SelectionText, HasOneStatusABackend) {
  Selection selection;
  selection.params = selection.key_params = case_params("b1 hq8 sq1024 d64 f32");
  selection.policy = max_workspace(307200);
  selection.chosen = kEfficient;
  selection.decided_by = "built-in order";
  Verdict flash = usable(kFlash, 448512), efficient = usable(kEfficient, 212096);
  flash.enabled = false;
  flash.refusals = {{RefusalCode::kWorkspace,
                     "307200",
                     "448512",
                     {Fix::Op::kSet, "policy.max_workspace_bytes", "448512"}}};
  efficient.chosen = true;
  selection.candidates = {flash, efficient, usable(kMath, 512), absent_on_a_device()};
  selection.warnings = {"one of them"};
  EXPECT_EQ(to_string(selection), R"(case     b1 hq8 hkv8 sq1024 skv1024 d64 f32
policy   max_workspace_bytes=307200
chosen   efficient, by built-in order
gave up  flash, which needs 438.0 KiB of workspace

backend    status              workspace  error    determinism
flash      excluded by policy  438.0 KiB  2.0e-06  batch_invariant
  - needs 448512 bytes of workspace, max_workspace_bytes allows 307200; raise it to 448512
efficient  chosen              207.1 KiB  2.0e-06  batch_invariant
math       usable              512 B      2.0e-06  batch_invariant
cudnn needs a CUDA device; verbose shows it
warning: one of them
)");
}

TEST(SelectionText, SaysWhatToChangeWhereNothingCanRun) {
  Selection selection;
  selection.params = case_params("b1 hq8 sq1000 d64 f32 scores=probs");
  selection.key_params = case_params("b1 hq8 sq1024 d64 f32 scores=probs");
  selection.policy = only({kFlash});
  selection.decided_by = "call policy (only)";
  Verdict flash = usable(kFlash, -1), math = usable(kMath, 75776), cudnn = absent_on_a_device();
  flash.usable = math.enabled = false;
  flash.error_bound = -1.0;
  flash.refusals = {{RefusalCode::kFeature, "", "scores_out", {Fix::Op::kClear, "scores_out", ""}}};
  math.refusals = {
      {RefusalCode::kNotInOnly, "flash", "math", {Fix::Op::kSet, "policy.only", "flash,math"}}};
  selection.candidates = {flash, math, cudnn};
  EXPECT_EQ(to_string(selection), R"(case     b1 hq8 hkv8 sq1000 skv1000 d64 f32 scores=probs
rounded  b1 hq8 hkv8 sq1024 skv1024 d64 f32 scores=probs
policy   only=[flash]
chosen   none, by call policy (only)
change   remove scores_out to run flash, or allow math

backend  status              workspace  error    determinism
flash    cannot run          -          -        batch_invariant
  - does not support scores_out; remove it, or use math
math     excluded by policy  74.0 KiB   2.0e-06  batch_invariant
  - is not listed in only (flash); add it
cudnn needs a CUDA device; verbose shows it
)");
  selection.policy = only({kFlash, kCudnn});
  EXPECT_NE(
      to_string(selection).find("cudnn    not built           -          -        -\n"
                                "  - is not part of this build: configure with -DREGARD_CUDA=ON\n"),
      std::string::npos)
      << to_string(selection);
}

// The advice in more forms.
TEST(SelectionText, NamesTheChangeThatHelps) {
  const auto change = [](const char* words, const Policy& policy) -> std::string {
    const std::string text = text_of(words, policy);
    const std::size_t at = text.find("change   ");
    return at == std::string::npos ? "" : text.substr(at + 9, text.find('\n', at) - at - 9);
  };
  EXPECT_EQ(change("sq8 d8 f32", {}), "");
  EXPECT_EQ(
      change("sq8 d999 f64", only({kFlash})),
      "set dtype to f32, reduce head_dim_qk to 576 and reduce head_dim_v to 576 to run flash, "
      "or allow math");
  EXPECT_EQ(change("sq8 d8 f32", only({kCudnn})), "allow flash, efficient or math");
  EXPECT_EQ(change("sq8 d8 f32", deny({kFlash, kEfficient, kMath})),
            "allow flash, efficient or math");
  EXPECT_EQ(change("b1 hq1 sq8 d8 f32", max_workspace(0)).find("raise max_workspace_bytes to "),
            0u);
  Policy strict = prefer({kCudnn});
  strict.on_fallback = OnFallback::kError;
  EXPECT_EQ(change("sq8 d8 f32", strict), "");  // the warning says it
  EXPECT_EQ(text_of("sq8 d999 f32 device=cuda", only({})).find("chosen   none, by conflict"), 17u);
}

TEST(SelectionText, SaysThatCallbacksAreSlower) {
  const char* const note =
      "note     score_callback is called for each row of a tile, slower than a score_function\n";
  EXPECT_NE(text_of("sq8 d16 f32 callback").find(note), std::string::npos);
  EXPECT_EQ(text_of("sq8 d16 f32 score=score*2").find("note"), std::string::npos);
}

TEST(SelectionText, SaysWhatAMaskFunctionHides) {
  const auto shares = [](const char* words) {
    const std::string text = text_of(words);
    const std::size_t at = text.find("mask     skips");
    return at == std::string::npos ? "" : text.substr(at, text.find('\n', at) - at);
  };
  EXPECT_EQ(shares("sq512 d16 f32 mask=kv_idx<=q_idx|kv_idx<4"),
            "mask     skips 37.5 % of the blocks of 128 x 128; 25 % are partial");
  EXPECT_EQ(shares("b2 hq2 sq128 d16 f32 mask=h==b"),
            "mask     skips 50 % of the blocks of 128 x 128; 0 % are partial");
  EXPECT_EQ(shares("sq128 skv256 d16 f32 diag=br mask=kv_idx<=q_pos|kv_idx<4"),
            "mask     skips 0 % of the blocks of 128 x 128; 50 % are partial");
  // A function of which a part became a feature: 7 of 16 blocks, on the diagonal and below it.
  EXPECT_EQ(shares("sq512 d16 f32 mask=kv_idx<=q_idx&(q_idx-kv_idx<100|kv_idx<0)"),
            "mask     skips 56.3 % of the blocks of 128 x 128; 43.8 % are partial");
  EXPECT_EQ(shares("sq128 skv256 d16 f32 causal diag=br mask=kv_idx!=9"),
            "mask     skips 0 % of the blocks of 128 x 128; 100 % are partial");
  EXPECT_EQ(shares("sq512 d16 f32 window=99,0 diag=tl mask=h!=9"),
            "mask     skips 56.3 % of the blocks of 128 x 128; 43.8 % are partial");
  // As many blocks as are counted, and one more row of them.
  EXPECT_NE(shares("sq32768 d16 f32 mask=kv_idx<=q_idx|kv_idx<4"), "");
  EXPECT_EQ(shares("sq32769 d16 f32 mask=kv_idx<=q_idx|kv_idx<4"), "");
  // What depends on data; what takes long; what is no function, or is a feature.
  EXPECT_EQ(shares("sq512 d16 f32 mask=i0[q_idx]==i0[kv_idx]"), "");
  EXPECT_EQ(shares("sq512 d16 f32 lens mask=kv_idx<=q_idx|kv_idx<4"), "");
  EXPECT_EQ(shares("sq512 d16 f32 diag=3 mask=kv_idx<=q_pos|kv_idx<4"), "");
  EXPECT_EQ(shares("sq8192 d16 f32 mask=q_idx%4==2&q_idx%4==3"), "");
  EXPECT_EQ(shares("sq512 d16 f32 score=score*2"), "");
  EXPECT_EQ(shares("sq512 d16 f32 mask=kv_idx<=q_idx"), "");
}

TEST(SelectionText, NothingIsNotTheBuiltInOrdersChoice) {
  Policy policy;
  policy.max_error = 1e-30;
  const std::string text = text_of("sq8 d8 f32", policy);
  EXPECT_NE(text.find("chosen   none\nchange   raise max_error to 2.0e-06 to run flash\n"),
            std::string::npos)
      << text;
}

TEST(SelectionText, VerboseHasTheFourFacts) {
  const std::string text = text_of("b1 hq8 sq128 d64 f32 grad", deny({kFlash}), true);
  EXPECT_NE(text.find("backend    status              built  enabled  usable  chosen  predicted"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("  workspace  backward   error    determinism\n"
                      "flash      excluded by policy  yes    no       yes     no      "),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("efficient  chosen              yes    yes      yes     yes     "),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("math       usable              yes    yes      yes     no      "),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("\ncudnn "), std::string::npos) << text;
  EXPECT_NE(text.find("  - needs a CUDA device, got a case on the CPU\n"), std::string::npos);
  EXPECT_EQ(text.find("verbose"), std::string::npos);
}

TEST(SelectionText, BackendsOfDevicesAreFoldedUnlessAskedFor) {
  const std::string line = "cudnn needs a CUDA device; verbose shows it\n";
  const auto folds = [&](const char* words, const Policy& policy) {
    return text_of(words, policy).find(line) != std::string::npos;
  };
  EXPECT_TRUE(folds("sq8 d8 f32", {}));
  EXPECT_TRUE(folds("sq8 d8 f32", only({kMath})));
  for (const Policy& policy : {only({kCudnn}), deny({kCudnn}), prefer({kCudnn, kMath})}) {
    EXPECT_FALSE(folds("sq8 d8 f32", policy));
  }
  EXPECT_FALSE(folds("sq8 d8 f32 device=cuda", {}));

  BackendInfo info = generous_info("gpu");
  info.device = DeviceType::kCuda;
  Context context(described_env());
  add_backend(context, "gpu", std::make_shared<MockBackend>(info));
  const std::string text = to_string(explain(context, case_params("sq8 d8 f32")));
  EXPECT_NE(text.find("\ncudnn and custom:gpu need a CUDA device; verbose shows them\n"),
            std::string::npos)
      << text;
}

TEST(SelectionText, AnErrorHasEveryReasonInOneLine) {
  Context context(described_env());
  const auto made = plan(context, case_params("b1 hq8 sq128 d640 f32"), only({kFlash}));
  ASSERT_FALSE(made);
  EXPECT_EQ(made.status().message(),
            "[plan] no backend can run b1 hq8 hkv8 sq128 skv128 d640 f32, by call policy (only): "
            "flash supports head_dim_qk 1 to 576, got 640; reduce it to 576, or use efficient. "
            "flash supports head_dim_v 1 to 576, got 640; reduce it to 576, or use efficient. "
            "efficient is not listed in only (flash); add it. "
            "math is not listed in only (flash); add it");
}

TEST(SelectionText, NamesEveryBackendAndReason) {
  Context context(described_env());
  const Selection selection = explain(context, case_params("sq8 d8 f64"));
  const std::string text = to_string(selection, /*verbose=*/true);
  for (const Verdict& verdict : selection.candidates) {
    EXPECT_NE(text.find(to_string(verdict.backend)), std::string::npos);
    for (const Refusal& refusal : verdict.refusals) {
      EXPECT_NE(text.find(to_string(refusal)), std::string::npos) << to_string(refusal);
    }
  }
}

TEST(SelectionText, PredictedTimesHaveThreeDigits) {
  Selection selection;
  selection.params = selection.key_params = case_params("b2 sq8 d64 f32 lens");
  selection.paths = {{PaddingPath::kLengths, 1e6, 2e6, 9.997e-4},
                     {PaddingPath::kMask, 1e6, 2e6, 0.9997},
                     {PaddingPath::kPacked, 1e6, 2e6, 2.5e-6}};
  const std::string text = to_string(selection);
  for (const char* time : {" 1.00 ms", " 1.00 s", " 2.50 us"}) {
    EXPECT_NE(text.find(time), std::string::npos) << time << "\n" << text;
  }
}

}  // namespace
}  // namespace regard::test
