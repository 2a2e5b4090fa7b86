// CUDNN on described machines, and its graphs as cuDNN validates them; without a device.

#include <gtest/gtest.h>

#include <string>

#include "backends/cudnn/plan_state.h"
#include "backends/cudnn/record.h"
#include "mock_backend.h"
#include "platform/cudnn_library.h"

namespace regard::test {
namespace {

using cudnn::Node;

Env cudnn_machine(std::int32_t sm_version, std::int32_t cudnn_version = 0) {
  Env env = described_env();
  env.device = DeviceType::kCuda;
  env.sm_version = sm_version;
  env.cudnn_version = cudnn_version;
  return env;
}

Policy finite() {
  Policy policy;
  policy.assume_finite = true;
  return policy;
}

Verdict judge(const std::string& words, const Env& env, const Policy& policy = finite()) {
  return *explain(case_params(words + " device=cuda"), policy, env).find(kCudnn);
}

// The last of the reasons; "" where it runs.
std::string cudnn_refusal(const std::string& words, const Env& env) {
  const Verdict verdict = judge(words, env);
  return verdict.refusals.empty() ? "" : to_string(verdict.refusals.back());
}

TEST(Cudnn, RunsWhatTheRecordAllows) {
  for (const std::int32_t sm : {80, 86, 90, 100, 103}) {
    const Env env = cudnn_machine(sm);
    for (const char* words :
         {"sq128 d64 bf16", "sq128 d64 f16 causal diag=tl", "sq1 skv4096 d128 bf16",
          "b2 hq8 hkv2 sq512 skv1024 d256 bf16 causal diag=br lse", "sq300 skv100 d64 bf16",
          "sq128 d64 bf16 window=16,0 diag=tl", "sq128 d128 bf16 causal diag=tl grad lse"}) {
      EXPECT_EQ(cudnn_refusal(words, env), "") << sm << " " << words;
    }
  }
  EXPECT_EQ(cudnn_refusal("sq128 d192 dv128 bf16 grad", cudnn_machine(90)), "");
  EXPECT_EQ(cudnn_refusal("sq128 d192 dv128 bf16 grad", cudnn_machine(100)), "");
}

TEST(Cudnn, RefusesInCudnnsWords) {
  const Env hopper = cudnn_machine(90);
  EXPECT_NE(
      cudnn_refusal("sq300 skv100 d64 bf16 causal diag=br", hopper).find("max_s_q > max_s_kv"),
      std::string::npos);
  EXPECT_NE(
      cudnn_refusal("sq300 skv100 d64 bf16 window=9,0 diag=tl", hopper).find("Sliding window"),
      std::string::npos);
  EXPECT_NE(cudnn_refusal("sq1 d64 bf16 grad", hopper).find("s_q = s_kv = 1"), std::string::npos);
  EXPECT_EQ(cudnn_refusal("sq1 d64 bf16", hopper), "");
  EXPECT_EQ(cudnn_refusal("sq128 d136 bf16", cudnn_machine(80)), "");
  EXPECT_NE(
      cudnn_refusal("sq128 d136 bf16 grad", cudnn_machine(80)).find("less than or equal to 128"),
      std::string::npos);
  EXPECT_NE(cudnn_refusal("sq128 d192 dv64 bf16 grad", cudnn_machine(100))
                .find("equal to 128 if d_qk is 192"),
            std::string::npos);
}

// The first and last head dims of recorded ranges.
TEST(Cudnn, RangesOfHeadDimsHoldTheirEnds) {
  for (const char* words : {"sq8 d64 dv136 bf16 grad", "sq8 d64 dv256 bf16 grad",
                            "sq8 d136 dv8 bf16 grad", "sq8 d256 bf16 grad"}) {
    EXPECT_NE(cudnn_refusal(words, cudnn_machine(80)), "") << words;
    EXPECT_EQ(cudnn_refusal(words, cudnn_machine(90)), "") << words;
  }
  EXPECT_EQ(cudnn_refusal("sq8 d128 bf16 grad", cudnn_machine(80)), "");
  EXPECT_NE(cudnn_refusal("sq8 d192 dv120 bf16 grad", cudnn_machine(100)), "");
  EXPECT_NE(cudnn_refusal("sq8 d192 dv136 bf16 grad", cudnn_machine(100)), "");
}

TEST(Cudnn, RefusesWhatItDoesNotMeanAlike) {
  const Env env = cudnn_machine(90);
  for (const char* words :
       {"sq128 d64 f32", "sq128 d64 bf16 dropout=0.1", "sq128 d64 bf16 softcap=3",
        "sq128 d64 bf16 mask", "sq128 d64 bf16 bias", "sq128 d64 bf16 lens", "sq128 d60 bf16",
        "sq128 d264 bf16", "hq2 sq128 d64 bf16 layout=strided", "sq128 d64 bf16 align_q=8",
        "sq0 skv8 d64 bf16", "sq8 skv0 d64 bf16"}) {
    EXPECT_NE(cudnn_refusal(words, env), "") << words;
  }
  EXPECT_TRUE(judge("sq128 d64 bf16", env, Policy{}).usable);
  EXPECT_TRUE(judge("sq128 d64 bf16 causal diag=tl", env, Policy{}).usable);
  EXPECT_TRUE(judge("sq64 skv128 d64 bf16 causal diag=br", env, Policy{}).usable);
  const Verdict behind_mask = judge("sq64 skv128 d64 bf16 causal diag=tl", env, Policy{});
  ASSERT_EQ(behind_mask.refusals.size(), 1u);
  EXPECT_EQ(behind_mask.refusals[0].actual, "non_finite_behind_mask");
}

// Words of a case, and the fix of the last refusal there; "" where it runs.
struct EightBits {
  std::int32_t sm;
  const char* words;
  const char* fix;
};

TEST(Cudnn, TakesF8E4M3WhereTheNodeDoes) {
  constexpr EightBits kCases[] = {
      {90, "hq4 hkv2 sq128 d64 f8e4m3 out=f8e4m3 descales causal diag=tl lse", ""},
      {90, "sq128 d256 dv48 f8e4m3 out=f8e4m3", ""},
      {90, "sq128 d64 f8e4m3", "set dtype_out to f8e4m3"},
      {90, "sq128 d64 f8e4m3 out=f16", "set dtype_out to f8e4m3"},
      {90, "sq128 d64 f8e4m3 out=f8e4m3 causal diag=br", "set dtype to bf16"},
      {90, "sq128 d64 f8e4m3 causal diag=br", "set dtype to bf16"},
      {90, "sq128 d64 f8e4m3 out=f8e4m3 descales=head", "remove descales_per_head"},
      {90, "sq128 d64 f8e4m3 out=f32", "set dtype_out to f8e4m3"},
      {90, "sq128 d64 f8e5m2 out=f8e5m2", "set dtype to f8e4m3"},
      {90, "sq128 d72 f8e4m3 out=f8e4m3 layout=bshd align=16", "set head_dim_qk to 80"},
      {90, "sq128 d64 f8e4m3 out=f8e4m3 grad lse", "set dtype to bf16"},
      {90, "sq128 d64 bf16 descales", "remove descales"},
      {90, "sq300 skv100 d64 f8e4m3 out=f8e4m3 window=9,0 diag=tl", "reduce seqlen_q to seqlen_kv"},
      {90, "sq100 skv300 d64 f8e4m3 out=f8e4m3 window=9,0 diag=tl", ""},
      {100, "sq128 d64 f8e4m3 descales causal diag=br", ""},
      {100, "sq128 d192 dv128 f8e4m3 out=f16", ""},
      {100, "sq128 d256 f8e4m3", "set dtype to bf16"},
      {80, "sq128 d64 f8e4m3 out=f8e4m3", "set dtype to bf16"},
  };
  for (const EightBits& c : kCases) {
    const Verdict verdict = judge(c.words, cudnn_machine(c.sm));
    const std::string fix = verdict.refusals.empty() ? "" : to_string(verdict.refusals.back().fix);
    EXPECT_EQ(fix, c.fix) << c.sm << " " << c.words;
    EXPECT_EQ(verdict.usable, verdict.refusals.empty());
  }
  EXPECT_NE(
      cudnn_refusal("sq128 d64 f8e4m3", cudnn_machine(90)).find("only supported on Blackwell"),
      std::string::npos);
  EXPECT_NE(cudnn_refusal("sq128 d64 f8e4m3", cudnn_machine(80)).find("only supported on Hopper"),
            std::string::npos);
}

TEST(Cudnn, PlansF8WithRoomForWhatItReports) {
  Context context(cudnn_machine(90));
  const AttentionParams params =
      case_params("sq128 d64 f8e4m3 out=f8e4m3 descales causal diag=tl device=cuda");
  const Expected<Plan> made = plan(context, params, finite());
  ASSERT_TRUE(made) << made.status().to_string();
  EXPECT_EQ(made->kernel().kernel, "cudnn_sdpa_f8e4m3");
  const AttentionParams half = case_params("sq128 d64 bf16 causal diag=tl device=cuda");
  EXPECT_EQ(made->workspace_bytes(),
            plan(context, half, finite())->workspace_bytes() + cudnn::kUnwantedBytes);
}

TEST(Cudnn, KnowsArchitecturesAndVersions) {
  EXPECT_EQ(cudnn_refusal("sq128 d64 bf16", cudnn_machine(75)),
            "needs a CUDA device of compute capability 8.0 or newer, got 7.5");
  EXPECT_EQ(cudnn_refusal("sq128 d64 bf16", cudnn_machine(120)),
            "needs a CUDA device of compute capability 8.0 to 10.x, got 12.0");
  const auto with = [](std::int32_t version, const char* words) {
    return cudnn_refusal(words, cudnn_machine(90, version));
  };
  EXPECT_EQ(with(92000, "sq128 d64 bf16"), "") << "a newer library has the newest record";
  EXPECT_NE(with(90800, "sq128 d64 bf16").find("9.19.0 or newer"), std::string::npos);
  EXPECT_NE(with(91001, "sq128 d64 bf16").find("known bugs"), std::string::npos);
  EXPECT_NE(with(91400, "sq128 d64 bf16 window=9,0 diag=tl").find("known bug in windows"),
            std::string::npos);
  Env without = cudnn_machine(90);
  without.device_name = "a device";
  EXPECT_NE(cudnn_refusal("sq128 d64 bf16", without).find("libcudnn.so.9"), std::string::npos);
}

TEST(Cudnn, PlansWithoutADevice) {
  Context context(cudnn_machine(90));
  const AttentionParams params =
      case_params("b2 hq4 hkv2 sq200 d64 bf16 causal diag=tl grad lse device=cuda");
  const Expected<Plan> made = plan(context, params, finite());
  ASSERT_TRUE(made) << made.status().to_string();
  EXPECT_EQ(made->backend(), kCudnn);
  EXPECT_EQ(made->kernel().kernel, "cudnn_sdpa_bf16");
  EXPECT_EQ(made->backward_kernel().kernel, "cudnn_sdpa_backward_bf16");
  const Verdict verdict = *made->selection().find(kCudnn);
  EXPECT_TRUE(verdict.needs_exact_extents);
  EXPECT_EQ(verdict.workspace_bytes, made->workspace_bytes());
  EXPECT_EQ(verdict.backward_workspace_bytes, made->backward_workspace_bytes());
  // d_q in f32 and all three gradients fit beside one another.
  const std::int64_t rows = 2 * 4 * 208 * 64;
  EXPECT_GE(made->backward_workspace_bytes(), rows * 4 + rows * 2 + 2 * (rows / 2) * 2);
}

TEST(Cudnn, ARecordHoldsForAllThatIsAlike) {
  EXPECT_EQ(cudnn::find_record(91900)->version, 91900);
  EXPECT_EQ(cudnn::find_record(91899), nullptr);
  EXPECT_EQ(cudnn::recorded_sm(89), 80);
  EXPECT_EQ(cudnn::recorded_sm(103), 100);
  EXPECT_EQ(cudnn::recorded_sm(75), 0);
  EXPECT_EQ(cudnn::recorded_sm(121), 0);
}

TEST(Cudnn, IsPlannedAtExactExtents) {
  Context context(cudnn_machine(90));
  for (const char* words : {"sq1001 d64 bf16 device=cuda", "sq1002 d64 bf16 device=cuda"}) {
    const AttentionParams params = case_params(words);
    const Plan made = plan(context, params, finite()).value();
    EXPECT_EQ(made.backend(), kCudnn);
    EXPECT_EQ(made.params().seqlen_q, params.seqlen_q);
  }
}

// cuDNN takes delta from out and its statistics from lse: no forward runs on it whose backward is
// given anything else.
TEST(Cudnn, RefusesWhatItsBackwardIsNotGiven) {
  for (const char* words : {"sq128 d64 bf16", "sq64 skv300 d128 f16 causal diag=br",
                            "hq4 hkv2 sq17 d40 bf16 window=5,3 diag=tl layout=bshd"}) {
    for (unsigned drawn = 0; drawn < 16; ++drawn) {
      std::string given = std::string(words) + " grad";
      for (int bit = 0; bit < 4; ++bit) {
        constexpr const char* kWords[] = {" lse", " saved", " d_lse", " delta"};
        if ((drawn >> bit & 1) != 0) given += kWords[bit];
      }
      for (const std::int32_t sm : {80, 90, 100}) {
        EXPECT_EQ(judge(given, cudnn_machine(sm)).usable, drawn <= 1) << sm << " " << given;
      }
    }
  }
  EXPECT_EQ(cudnn_refusal("sq128 d64 bf16 lse grad d_lse", cudnn_machine(90)),
            "does not support d_lse in a backward; remove it");
}

int builds = 0;
StatusCode outcome = StatusCode::kOk;

Expected<std::shared_ptr<const cudnn::Graph>> build_nothing(const AttentionParams&, Node,
                                                            const cudnn::Strides&, std::int64_t) {
  struct Empty final : cudnn::Graph {
    Status run(const cudnn::Pointers&, void*, void*) const override { return {}; }
  };
  ++builds;
  if (outcome != StatusCode::kOk) return Status(outcome, "refused");
  return std::shared_ptr<const cudnn::Graph>(std::make_shared<const Empty>());
}

TEST(Cudnn, GraphsAreBuiltByPrepareAlone) {
  const AttentionParams params = case_params("sq8 d64 bf16 device=cuda");
  const cudnn::PlanState state(Node::kSdpa, 0, build_nothing);
  const cudnn::Strides dense = cudnn::dense_strides(params);
  cudnn::Strides other = dense;
  other.q[2] += 8;
  builds = 0;
  outcome = StatusCode::kOk;
  EXPECT_EQ(state.find(dense), nullptr);
  EXPECT_TRUE(state.prepare(params, dense).ok());
  EXPECT_TRUE(state.prepare(params, dense).ok());
  EXPECT_EQ(builds, 1);
  EXPECT_NE(state.find(dense), nullptr);
  EXPECT_EQ(state.find(other), nullptr);
  outcome = StatusCode::kRefusedAtPlan;
  EXPECT_EQ(state.prepare(params, other).code(), StatusCode::kRefusedAtPlan);
  EXPECT_EQ(state.find(other), nullptr);
}

class CudnnGraphs : public testing::Test {
 protected:
  void SetUp() override {
    if (cudnn_library().handle == nullptr) GTEST_SKIP() << "libcudnn.so.9 cannot be loaded";
  }
  static std::string validate(const std::string& words, Node node, std::int32_t sm = 90) {
    const AttentionParams params = case_params(words + " device=cuda");
    return validate_graph(params, node, cudnn::dense_strides(params), sm);
  }
};

// cuDNN's left bound counts the diagonal, and its backward refuses a bound of 0.
TEST_F(CudnnGraphs, AWindowsLeftBoundIsOneMore) {
  const char* words = "sq128 d64 bf16 window=0,0 diag=tl";
  EXPECT_EQ(validate(words, Node::kSdpa), "");
  EXPECT_EQ(validate(words, Node::kSdpaBackward), "");
}

// Bounds beyond 32 bits must not come out negative.
TEST_F(CudnnGraphs, WideWindowsStayWide) {
  const char* words = "sq128 d64 bf16 window=9000000000,8000000000 diag=tl";
  EXPECT_EQ(validate(words, Node::kSdpa), "");
  EXPECT_EQ(validate(words, Node::kSdpaBackward), "");
}

TEST_F(CudnnGraphs, BothLayoutsAndBothTypesValidate) {
  for (const char* words :
       {"b2 hq4 hkv2 sq128 d64 f16", "b2 hq4 hkv2 sq128 d64 bf16 layout=bshd"}) {
    EXPECT_EQ(validate(words, Node::kSdpa), "") << words;
    EXPECT_EQ(validate(words, Node::kSdpaBackward), "") << words;
  }
}

TEST_F(CudnnGraphs, OfF8AgreeWithTheRecord) {
  const cudnn::Record* record = cudnn::find_record(cudnn_library().version);
  ASSERT_NE(record, nullptr);
  int refused = 0, count = 0;
  for (const char* mask : {"", " causal diag=tl", " causal diag=br", " window=5,3 diag=br"}) {
    for (const char* sizes : {"sq16 skv64 d48 dv112", "sq64 skv17 d128", "sq1 skv33 d192 dv128"}) {
      for (const char* out : {" out=f8e4m3", " out=f16", " out=f8e4m3 lse layout=bshd"}) {
        for (const std::int32_t sm : {80, 90, 100}) {
          const std::string words = std::string("hq4 hkv2 f8e4m3 ") + sizes + out + mask;
          const AttentionParams params = case_params(words + " device=cuda");
          const char* recorded = find_refusal(*record, params, Node::kSdpaF8, sm);
          EXPECT_EQ(validate(words, Node::kSdpaF8, sm).empty(), recorded == nullptr)
              << sm << " " << words;
          refused += recorded != nullptr ? 1 : 0;
          ++count;
        }
      }
    }
  }
  EXPECT_GT(refused, 20);
  EXPECT_GT(count - refused, 20);
}

// The graph says what the record says, for problems that the record was not made from.
TEST_F(CudnnGraphs, AgreeWithTheRecord) {
  const cudnn::Record* record = cudnn::find_record(cudnn_library().version);
  ASSERT_NE(record, nullptr);
  int refused = 0, count = 0;
  for (const char* mask : {"", " causal diag=tl", " causal diag=br", " window=5,3 diag=br"}) {
    for (const char* sizes : {"sq17 skv64", "sq64 skv17", "sq1 skv33", "sq2048 skv3001"}) {
      for (const char* dims : {" d40 dv104", " d128", " d192 dv128", " d216 dv48"}) {
        for (const std::int32_t sm : {80, 90, 100}) {
          for (const Node node : {Node::kSdpa, Node::kSdpaBackward}) {
            const std::string words = std::string("hq4 hkv2 f16 ") + sizes + dims + mask;
            const AttentionParams params = case_params(words + " device=cuda");
            const char* recorded = find_refusal(*record, params, node, sm);
            EXPECT_EQ(validate(words, node, sm).empty(), recorded == nullptr) << sm << " " << words;
            refused += recorded != nullptr ? 1 : 0;
            ++count;
          }
        }
      }
    }
  }
  EXPECT_GT(refused, 20);
  EXPECT_GT(count - refused, 20);
}

}  // namespace
}  // namespace regard::test
