#include <gtest/gtest.h>

#include <set>
#include <string>

#include "core/select/tuning.h"
#include "mock_backend.h"

namespace regard::test {
namespace {

bool has_refusal(const Selection& selection, const BackendRef& ref, RefusalCode code) {
  const Verdict* verdict = selection.find(ref);
  if (verdict == nullptr) return false;
  for (const Refusal& refusal : verdict->refusals) {
    if (refusal.code == code) return true;
  }
  return false;
}

// A context whose last candidate is a mock with this record.
struct WithMock {
  explicit WithMock(const BackendInfo& info)
      : context(described_env()), mock(std::make_shared<MockBackend>(info)) {
    add_backend(context, "mock", mock);
  }
  Context context;
  std::shared_ptr<MockBackend> mock;
};

struct CodeRow {
  RefusalCode code;
  const char* problem;
  void (*narrow)(BackendInfo&);
  Policy policy;
};

Policy with_require() {
  Policy policy;
  policy.require = Determinism::kThreadCountInvariant;
  return policy;
}
Policy with_max_error(double bound) {
  Policy policy;
  policy.max_error = bound;
  return policy;
}
Policy with_max_workspace(std::int64_t bytes) {
  Policy policy;
  policy.max_workspace_bytes = bytes;
  return policy;
}

std::vector<CodeRow> code_rows() {
  const auto nothing = [](BackendInfo&) {};
  const char* plain = "sq8 d8 f32";
  return {
      {RefusalCode::kNotBuilt, plain, [](BackendInfo& i) { i.built = false; }, {}},
      {RefusalCode::kDevice, plain, [](BackendInfo& i) { i.device = DeviceType::kCuda; }, {}},
      {RefusalCode::kIsa, plain, [](BackendInfo& i) { i.min_isa = Isa::kAvx512; }, {}},
      {RefusalCode::kDenied, plain, nothing, deny({custom("mock")})},
      {RefusalCode::kNotInOnly, plain, nothing, only({kMath})},
      {RefusalCode::kDirection,
       "sq8 d8 f32 grad",
       [](BackendInfo& i) { i.backward.offered = false; },
       {}},
      {RefusalCode::kDtype,
       "sq8 d8 f64",
       [](BackendInfo& i) {
         i.forward.dtypes = {{Dtype::kF32, Dtype::kF32, Dtype::kF32, 0.0}};
       },
       {}},
      {RefusalCode::kFeature,
       "sq8 d8 f32 sinks softcap=2",
       [](BackendInfo& i) {
         i.forward.features = i.forward.features.without({Feature::kSinks, Feature::kSoftcap});
       },
       {}},
      {RefusalCode::kHeadDimQk,
       "sq8 d300 f32",
       [](BackendInfo& i) {
         i.forward.head_dim_qk = {8, 256, 8};
       },
       {}},
      {RefusalCode::kHeadDimQk,
       "sq8 d13 f32",
       [](BackendInfo& i) {
         i.forward.head_dim_qk = {8, 256, 8};
       },
       {}},
      {RefusalCode::kHeadDimV,
       "sq8 d8 dv2 f32",
       [](BackendInfo& i) {
         i.forward.head_dim_v = {8, 256, 8};
       },
       {}},
      {RefusalCode::kLayout,
       "sq8 d8 f32 layout=strided",
       [](BackendInfo& i) {
         i.forward.layouts = {true, false, false};
       },
       {}},
      {RefusalCode::kAlignment,
       "sq8 d8 f32 align_k=2",
       [](BackendInfo& i) { i.forward.min_align_log2 = 4; },
       {}},
      {RefusalCode::kDeterminism, plain,
       [](BackendInfo& i) { i.determinism = Determinism::kRunToRun; }, with_require()},
      {RefusalCode::kErrorBound, plain, nothing, with_max_error(1e-9)},
      {RefusalCode::kWorkspace, plain, nothing, with_max_workspace(100)},
  };
}

// The fix of every refusal, applied one after the other, leaves a usable, enabled backend.
void apply_all_fixes(WithMock& fixture, AttentionParams params, Policy policy) {
  for (int round = 0; round < 8; ++round) {
    const Selection selection = explain(fixture.context, params, policy);
    const Verdict verdict = *selection.find(custom("mock"));
    if (verdict.refusals.empty()) {
      EXPECT_TRUE(verdict.usable && verdict.enabled);
      return;
    }
    const Refusal& refusal = verdict.refusals.front();
    ASSERT_NE(refusal.fix.op, Fix::Op::kNone) << to_string(refusal);
    ASSERT_TRUE(apply_fix(refusal.fix, &params, &policy).ok()) << to_string(refusal.fix);
    const Selection fixed = explain(fixture.context, params, policy);
    for (const Refusal& left : fixed.find(custom("mock"))->refusals) {
      EXPECT_FALSE(left == refusal) << "not removed by its fix: " << to_string(refusal);
    }
  }
  FAIL() << "refusals do not end";
}

TEST(Refusals, EveryCodeIsReachedAndItsFixRemovesIt) {
  std::set<RefusalCode> seen{RefusalCode::kLearned, RefusalCode::kCustom};  // below and test_cache
  for (const CodeRow& row : code_rows()) {
    SCOPED_TRACE(to_string(row.code));
    BackendInfo info = generous_info("mock");
    row.narrow(info);
    WithMock fixture(info);
    fixture.mock->workspace = 128;
    const AttentionParams params = case_params(row.problem);
    const Selection selection = explain(fixture.context, params, row.policy);
    EXPECT_TRUE(has_refusal(selection, custom("mock"), row.code)) << to_string(selection);
    EXPECT_FALSE(selection.chosen == custom("mock"));
    seen.insert(row.code);
    const bool terminal = row.code == RefusalCode::kNotBuilt || row.code == RefusalCode::kDevice ||
                          row.code == RefusalCode::kIsa;
    if (terminal) {
      EXPECT_EQ(selection.find(custom("mock"))->refusals[0].fix.op, Fix::Op::kNone);
    } else {
      apply_all_fixes(fixture, params, row.policy);
    }
  }
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(RefusalCode::kCount));
}

class CustomRule : public MockBackend {
 public:
  using MockBackend::MockBackend;
  bool supports(const AttentionKey& key, const Env& env,
                std::vector<Refusal>* refusals) const override {
    const bool claims = check_claims(info(), key, env, refusals);
    if (key.params().seqlen_q % 4 == 0) return claims;
    if (refusals != nullptr) {
      refusals->push_back({RefusalCode::kCustom,
                           "seqlen_q % 4 == 0",
                           std::to_string(key.params().seqlen_q),
                           {Fix::Op::kSet, "seqlen_q", "4"}});
    }
    return false;
  }
};

TEST(Refusals, ABackendsOwnRuleSpeaksBesideItsRecord) {
  Context context(described_env());
  BackendInfo info = generous_info("mock");
  info.forward.features = info.forward.features.without({Feature::kSinks});
  add_backend(context, "mock", std::make_shared<CustomRule>(info));
  const Selection selection =
      explain(context, case_params("sq7 d8 f32 sinks"), prefer({custom("mock")}));
  EXPECT_TRUE(has_refusal(selection, custom("mock"), RefusalCode::kFeature));
  EXPECT_TRUE(has_refusal(selection, custom("mock"), RefusalCode::kCustom));
}

TEST(Select, NoReasonIsSuppressedByAnother) {
  BackendInfo info = generous_info("mock");
  info.forward.dtypes = {{Dtype::kF32, Dtype::kF32, Dtype::kF32, 0.0}};
  info.forward.head_dim_qk = {8, 16, 8};
  info.forward.features = {};
  WithMock fixture(info);
  const Selection selection =
      explain(fixture.context, case_params("sq9 skv5 d33 bf16 causal diag=br sinks alibi"),
              deny({custom("mock")}));
  const Verdict& verdict = *selection.find(custom("mock"));
  // denied, dtype, head_dim and the features causal, bottom_right, sinks, alibi, sq > skv,
  // non-finite
  EXPECT_GE(verdict.refusals.size(), 8u) << to_string(selection);
  EXPECT_FALSE(verdict.enabled);
  EXPECT_FALSE(verdict.usable);
}

TEST(Select, FourFactsAreFourDifferentFacts) {
  BackendInfo not_built = generous_info("mock");
  not_built.built = false;
  WithMock fixture(not_built);
  const Selection selection = explain(fixture.context, case_params("sq8 d8 f32"), deny({kFlash}));
  const Verdict& denied = *selection.find(kFlash);
  const Verdict& first = *selection.find(kEfficient);
  const Verdict& absent = *selection.find(custom("mock"));
  EXPECT_TRUE(!denied.enabled && denied.built && denied.usable && !denied.chosen);
  EXPECT_TRUE(first.built && first.enabled && first.usable && first.chosen);
  EXPECT_TRUE(!absent.built && absent.enabled && !absent.usable && !absent.chosen);
}

TEST(Select, DecisionEqualsSelection) {
  // decide() (no text) and select() (all reasons) must name the same backend.
  Context context(described_env());
  for (const char* text : {"sq8 d8 f32", "sq8 d8 f64", "sq8 d8 bf16 scores=probs", "sq8 d999 f16",
                           "sq8 d8 f32 grad", "sq8 d8 f32 segments dropout=0.5"}) {
    for (const Policy& policy : {Policy{}, only({kMath}), deny({kEfficient}), prefer({kMath})}) {
      const Selection selection = explain(context, case_params(text), policy);
      const auto made = plan(context, case_params(text), policy);
      ASSERT_EQ(made.ok(), selection.ok()) << text;
      if (made) {
        EXPECT_EQ(made->backend(), selection.chosen) << text;
        EXPECT_EQ(made->selection(), selection) << text;
      } else {
        EXPECT_EQ(*made.status().selection(), selection) << text;
      }
    }
  }
}

TEST(Select, AForcedBackendThatCannotRunIsAnErrorWithItsReasons) {
  Context context(described_env());
  const auto made = plan(context, case_params("sq8 d8 f64"), only({kEfficient}));
  ASSERT_FALSE(made);
  EXPECT_EQ(made.status().code(), StatusCode::kNoBackend);
  EXPECT_TRUE(has_refusal(*made.status().selection(), kEfficient, RefusalCode::kDtype));
  EXPECT_NE(made.status().message().find("dtype"), std::string::npos);
}

TEST(Select, AssumeFiniteWaivesTheFeature) {
  BackendInfo info = generous_info("mock");
  info.forward.features = info.forward.features.without({Feature::kNonFiniteBehindMask});
  WithMock fixture(info);
  Policy policy = only({custom("mock")});
  EXPECT_TRUE(plan(fixture.context, case_params("sq8 d8 f32"), policy));  // hides nothing
  EXPECT_FALSE(plan(fixture.context, case_params("sq8 d8 f32 causal window=3,0"), policy));
  policy.assume_finite = true;
  EXPECT_TRUE(plan(fixture.context, case_params("sq8 d8 f32 causal window=3,0"), policy));
}

// Causality alone hides no padding where some row sees every key.
TEST(Select, PlainCausalCallsNeedNothingBehindAMask) {
  BackendInfo info = generous_info("mock");
  info.forward.features = info.forward.features.without({Feature::kNonFiniteBehindMask});
  WithMock fixture(info);
  Policy policy = only({custom("mock")});
  const auto runs = [&](const char* words) {
    return plan(fixture.context, case_params(words), policy).ok();
  };
  for (const char* words : {"sq8 d8 f32 causal", "sq9 skv8 d8 f32 causal diag=tl",
                            "sq8 skv900 d8 f32 causal diag=br", "sq1 skv9 d8 f32 causal diag=br"}) {
    EXPECT_TRUE(runs(words)) << words;
  }
  for (const char* words :
       {"sq8 skv9 d8 f32 causal diag=tl", "sq8 d8 f32 causal diag=1", "sq8 d8 f32 causal diag=seq",
        "sq8 d8 f32 causal diag=tl lens", "sq8 d8 f32 causal mask", "sq8 d8 f32 causal window=4,0",
        "sq8 d8 f32 causal bias", "sq8 d8 f32 causal alibi", "sq8 d8 f32 causal segments"}) {
    EXPECT_FALSE(runs(words)) << words;
  }
  policy.assume_finite = false;
  EXPECT_FALSE(runs("sq8 d8 f32 causal"));
}

Policy max_error(double limit) {
  Policy policy;
  policy.max_error = limit;
  return policy;
}

TEST(Select, AClaimHoldsFromItsIsaOn) {
  BackendInfo info = generous_info("mock");
  DtypeClaim rounded{Dtype::kF32, Dtype::kF32, Dtype::kF32, 1e-2};
  rounded.min_isa = Isa::kAvx512;
  info.forward.dtypes = {{Dtype::kF32, Dtype::kF32, Dtype::kF32, 1e-6}, rounded};
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    Env env = described_env();
    env.isa = env.isa_available = isa;
    Context context(env);
    add_backend(context, "mock", std::make_shared<MockBackend>(info));
    const Selection selection = explain(context, case_params("sq8 d8 f32"), only({custom("mock")}));
    EXPECT_EQ(selection.find(custom("mock"))->error_bound, isa == Isa::kAvx2 ? 1e-6 : 1e-2);
  }
  info.forward.dtypes = {rounded};
  WithMock on_avx2(info);
  const Selection selection = explain(on_avx2.context, case_params("sq8 d8 f32"));
  EXPECT_TRUE(has_refusal(selection, custom("mock"), RefusalCode::kDtype));
}

TEST(Select, AClaimHoldsFromItsComputeCapabilityOn) {
  BackendInfo info = generous_info("mock");
  info.min_sm = 75;  // of a backend that serves the CPU here: Contexts take no others
  DtypeClaim rounded{Dtype::kF32, Dtype::kF32, Dtype::kF32, 1e-2};
  rounded.min_sm = 80;
  info.forward.dtypes = {{Dtype::kF32, Dtype::kF32, Dtype::kF32, 1e-6}, rounded};
  const auto bound = [&](int sm, const std::optional<double>& limit) {
    Env env = described_env();
    env.sm_version = sm;
    Context context(env);
    add_backend(context, "mock", std::make_shared<MockBackend>(info));
    Policy policy = only({custom("mock")});
    policy.max_error = limit;
    const Selection selection = explain(context, case_params("sq8 d8 f32"), policy);
    EXPECT_EQ(selection.ok(), !limit || *limit >= 1e-6);
    return selection.find(custom("mock"))->error_bound;
  };
  EXPECT_EQ(bound(75, {}), 1e-6);
  EXPECT_EQ(bound(80, {}), 1e-2);
  EXPECT_EQ(bound(90, {}), 1e-2);
  EXPECT_EQ(bound(90, 1e-2), 1e-2);
  EXPECT_EQ(bound(90, 1e-3), 1e-6);  // by the kernels of an older device
  EXPECT_EQ(bound(90, 1e-7), 1e-2);  // none are exact enough
}

TEST(Select, MaxErrorTakesALesserIsaWhereItsKernelsAreExactEnough) {
#if defined(REGARD_NO_AVX512_BF16)
  GTEST_SKIP() << "this compiler builds no kernels of bf16 pairs";
#endif
  Env env = described_env();
  env.isa = env.isa_available = Isa::kAvx512Bf16;
  Context context(env);
  const auto flash = [&](const char* text, const Policy& policy) {
    const auto made = plan(context, case_params(text), policy);
    EXPECT_TRUE(made.ok() && made->backend() == kFlash) << text;
    EXPECT_EQ(made->selection().chosen, kFlash) << text;
    return made.value();
  };
  const char* const pair = "sq80 d8 bf16 grad";
  const Plan fast = flash(pair, {}), exact = flash(pair, max_error(4e-3));
  EXPECT_EQ(fast.kernel().isa, Isa::kAvx512Bf16);
  EXPECT_EQ(fast.backward_kernel().isa, Isa::kAvx512Bf16);
  EXPECT_EQ(fast.selection().find(kFlash)->error_bound, 8e-3);
  EXPECT_EQ(fast.policy(), Policy{});
  EXPECT_EQ(exact.kernel().isa, Isa::kAvx512);
  EXPECT_EQ(exact.backward_kernel().isa, Isa::kAvx512);
  EXPECT_EQ(exact.selection().find(kFlash)->error_bound, 4e-3);
  EXPECT_EQ(exact.policy(), max_error(4e-3));
  EXPECT_EQ(exact.workspace_bytes(), exact.selection().find(kFlash)->workspace_bytes);
  // Both directions are judged, and a limit that is met changes nothing.
  EXPECT_EQ(flash(pair, max_error(7e-3)).kernel().isa, Isa::kAvx512);
  EXPECT_EQ(flash("sq80 d8 bf16", max_error(7e-3)).kernel().isa, Isa::kAvx512Bf16);
  EXPECT_EQ(flash("sq80 d8 bf16 out=f32", max_error(1e-5)).kernel().isa, Isa::kAvx512);
  EXPECT_FALSE(plan(context, case_params(pair), max_error(3e-3)));
}

TEST(Select, AnInvalidProblemIsExplainedNotJudged) {
  AttentionParams params = case_params("sq8 d8 f32");
  params.num_heads_q = 8;
  params.num_heads_kv = 3;
  Context context(described_env());
  const Selection selection = explain(context, params);
  EXPECT_FALSE(selection.ok());
  EXPECT_TRUE(selection.candidates.empty());
  ASSERT_EQ(selection.warnings.size(), 1u);
  EXPECT_NE(selection.warnings[0].find("num_heads_kv (3)"), std::string::npos);
}

// What a policy requires is judged where the backend cannot run, too.
TEST(Select, RequireIsJudgedForUnusableCandidates) {
  BackendInfo info = generous_info("mock");
  info.determinism = Determinism::kRunToRun;
  info.forward.head_dim_qk = {16, 16, 1};
  WithMock fixture(info);
  const Selection selection = explain(fixture.context, case_params("sq8 d8 f32"), with_require());
  const Verdict& verdict = *selection.find(custom("mock"));
  EXPECT_TRUE(has_refusal(selection, custom("mock"), RefusalCode::kHeadDimQk));
  EXPECT_TRUE(has_refusal(selection, custom("mock"), RefusalCode::kDeterminism));
  EXPECT_TRUE(!verdict.enabled && !verdict.usable);
  apply_all_fixes(fixture, case_params("sq8 d8 f32"), with_require());
}

// ---- tuning ----

std::string table_text(const Env& env) {
  return "regard-tuning 1\n# measured\nversion " + env.version + "\nisa " + to_string(env.isa) +
         "\ncpu " + env.cpu_model + "\nconcurrency " + std::to_string(env.concurrency) +
         "\norder sq<=32 bf16 : math,efficient\norder : efficient,math\n";
}

TEST(Tuning, AFixtureTableReorders) {
  Context context(described_env());
  context.set_tuning(parse_tuning_table(table_text(context.env()), "fixture").value());
  Selection selection = explain(context, case_params("sq8 skv64 d8 bf16"));
  EXPECT_EQ(selection.chosen, kMath);
  EXPECT_EQ(selection.decided_by, "tuning table fixture");
  EXPECT_EQ(explain(context, case_params("sq33 skv64 d8 bf16")).chosen, kEfficient);
  EXPECT_EQ(explain(context, case_params("sq8 d8 f32")).chosen, kEfficient);
  // A policy's order stands above it.
  EXPECT_EQ(explain(context, case_params("sq8 d8 bf16"), prefer({kEfficient})).chosen, kEfficient);
}

TEST(Tuning, ATableOfAnotherMachineIsReportedAndSkipped) {
  const auto other = [](void (*change)(Env&)) {
    Env env = described_env();
    change(env);
    return parse_tuning_table(table_text(env), "other").value();
  };
  const std::vector<TuningTable> tables = {
      other([](Env& e) { e.version = "9.9.9"; }), other([](Env& e) { e.isa = Isa::kScalar; }),
      other([](Env& e) { e.cpu_model = "another"; }), other([](Env& e) { e.concurrency = 64; })};
  for (const TuningTable& table : tables) {
    Context context(described_env());
    context.set_tuning(table);
    const Selection selection = explain(context, case_params("sq8 d8 bf16"));
    EXPECT_EQ(selection.chosen, kFlash);
    EXPECT_EQ(selection.decided_by, "built-in order");
    ASSERT_EQ(selection.warnings.size(), 1u);
    EXPECT_NE(selection.warnings[0].find("tuning table other is skipped: it was made for"),
              std::string::npos);
  }
}

std::vector<BackendRef> order_of(const Selection& selection) {
  std::vector<BackendRef> order;
  for (const Verdict& verdict : selection.candidates) order.push_back(verdict.backend);
  return order;
}

Env machine_with_gpu() {
  Env env = described_env();
  env.sm_version = 90;
  env.device_name = "described GPU";
  return env;
}

std::string gpu_table_text(const std::string& sm, const std::string& name) {
  return "regard-tuning 1\nversion " + described_env().version + "\nsm " + sm + "\ngpu " + name +
         "\norder : math,efficient\n";
}

TEST(Tuning, ATableOfACpuLeavesDevicesAlone) {
  Context context(machine_with_gpu());
  const AttentionParams on_device = case_params("sq8 d8 bf16 device=cuda");
  const std::vector<BackendRef> builtin = order_of(explain(context, on_device));
  context.set_tuning(parse_tuning_table(table_text(context.env()), "of a cpu").value());
  EXPECT_EQ(explain(context, case_params("sq8 d8 bf16")).chosen, kMath);
  const Selection selection = explain(context, on_device);
  EXPECT_EQ(order_of(selection), builtin);
  EXPECT_EQ(selection.decided_by, "built-in order");
  EXPECT_EQ(selection.warnings,
            std::vector<std::string>{
                "tuning table of a cpu is skipped: it was made for device cpu, not cuda"});
}

TEST(Tuning, ATableOfADeviceOrdersThatDeviceAlone) {
  const AttentionParams on_device = case_params("sq8 d8 bf16 device=cuda");
  const auto explain_with = [&](const std::string& text, const AttentionParams& params) {
    Context context(machine_with_gpu());
    context.set_tuning(parse_tuning_table(text, "table").value());
    return explain(context, params);
  };
  const std::string ours = gpu_table_text("90", "described GPU");
  EXPECT_EQ(order_of(explain_with(ours, on_device)).front(), kMath);
  EXPECT_TRUE(explain_with(ours, on_device).warnings.empty());
  Selection skipped = explain_with(ours, case_params("sq8 d8 bf16"));
  EXPECT_EQ(skipped.chosen, kFlash);
  EXPECT_EQ(skipped.warnings,
            std::vector<std::string>{
                "tuning table table is skipped: it was made for device cuda, not cpu"});
  skipped = explain_with(gpu_table_text("80", "described GPU"), on_device);
  EXPECT_EQ(skipped.warnings, std::vector<std::string>{
                                  "tuning table table is skipped: it was made for sm 80, not 90"});
  skipped = explain_with(gpu_table_text("90", "another"), on_device);
  EXPECT_EQ(skipped.warnings,
            std::vector<std::string>{
                "tuning table table is skipped: it was made for gpu another, not described GPU"});
  EXPECT_NE(order_of(skipped).front(), kMath);
}

TEST(Tuning, ConditionsNameTheDevice) {
  Context context(machine_with_gpu());
  context.set_tuning(
      parse_tuning_table(table_text(context.env()) + "sm 90\ngpu described GPU\n", "both").value());
  EXPECT_EQ(order_of(explain(context, case_params("sq8 d8 bf16 device=cuda"))).front(), kMath);
  std::string text = table_text(context.env());
  text.insert(text.find("order"), "sm 90\ngpu described GPU\norder device=cuda : efficient\n");
  context.set_tuning(parse_tuning_table(text, "both").value());
  EXPECT_EQ(order_of(explain(context, case_params("sq8 d8 bf16 device=cuda"))).front(), kEfficient);
  EXPECT_EQ(order_of(explain(context, case_params("sq8 d8 bf16"))).front(), kMath);
}

// It would draw the mask of another place and say nothing.
TEST(Select, ABackendThatKnowsNoDropoutOriginIsRefusedByName) {
  BackendInfo info = generous_info("mock");
  info.forward.features.set(Feature::kDropoutOrigin, false);
  WithMock with(info);
  std::vector<float> x(256), out(256);
  AttentionRequest r;
  r.q = r.k = r.v = make_view(x.data(), {1, 2, 16, 8});
  r.out = make_view(out.data(), {1, 2, 16, 8});
  r.options.dropout_p = 0.5;
  const auto mock_refuses = [&] {
    const Selection s = explain(with.context, describe(r).value(), prefer({custom("mock")}));
    return has_refusal(s, custom("mock"), RefusalCode::kFeature);
  };
  EXPECT_FALSE(mock_refuses());
  r.dropout_origin.position = 4;
  EXPECT_TRUE(mock_refuses());
  check(attention(with.context, r, prefer({custom("mock")})));
  EXPECT_EQ(with.mock->executions, 0);
  // A plan of a call without an origin does not run one that has it.
  r.dropout_origin = {};
  const Plan planned = plan(with.context, describe(r).value(), only({custom("mock")})).value();
  r.dropout_origin.position = 4;
  const Status s = execute(planned, r);
  EXPECT_NE(s.message().find("dropout_origin"), std::string::npos) << s.message();
  EXPECT_EQ(with.mock->executions, 0);
}

TEST(Tuning, BadFilesNameTheLine) {
  for (const char* text :
       {"", "hello\n", "regard-tuning 1\nfoo bar\n", "regard-tuning 1\norder sq<=x : math\n",
        "regard-tuning 1\norder : flesh\n", "regard-tuning 1\norder math\n",
        "regard-tuning 1\nconcurrency 2x\n", "regard-tuning 1\nsm 9.0\n", "regard-tuning 1\nsm 0\n",
        "regard-tuning 1\norder device=tpu : math\n"}) {
    const auto table = parse_tuning_table(text, "file");
    ASSERT_FALSE(table) << text;
    EXPECT_NE(table.status().message().find("file:"), std::string::npos);
  }
}

}  // namespace
}  // namespace regard::test
