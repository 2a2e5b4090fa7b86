#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "conformance/generator.h"
#include "conformance/rng.h"
#include "tests/support/backends.h"
#include "tests/support/oracle_backend.h"

// Every refusal of random cases under random policies on described machines: its fix removes it,
// and its sentence states the numbers that the data has.

namespace regard {
namespace {

using conformance::Rng;

constexpr int kFixCases = 3000;

const std::vector<BackendRef>& all_names() {
  static const std::vector<BackendRef> names = {{BackendId::kMath, ""},
                                                {BackendId::kFlash, ""},
                                                {BackendId::kEfficient, ""},
                                                {BackendId::kCudnn, ""},
                                                {BackendId::kCustom, "narrow"}};
  return names;
}

std::vector<BackendRef> some_names(Rng& rng) {
  std::vector<BackendRef> refs;
  for (const BackendRef& ref : all_names()) {
    if (rng.chance(0.5)) refs.push_back(ref);
  }
  return refs;
}

Policy random_policy(Rng& rng) {
  Policy policy;
  if (rng.chance(0.3)) policy.only = some_names(rng);
  if (rng.chance(0.3)) policy.deny = some_names(rng);
  if (rng.chance(0.3)) policy.require = static_cast<Determinism>(rng.between(0, 3));
  if (rng.chance(0.4)) policy.max_error = std::pow(10.0, -static_cast<double>(rng.between(0, 11)));
  if (rng.chance(0.4)) policy.max_workspace_bytes = std::int64_t{1} << rng.between(0, 23);
  if (rng.chance(0.3)) policy.assume_finite = rng.chance(0.5);
  return policy;
}

// Refuses most of what cases may have.
BackendInfo narrow_info() {
  BackendInfo info = test::oracle_grad_info();
  info.determinism = Determinism::kRunToRun;
  for (Claims* claims : {&info.forward, &info.backward}) {
    claims->dtypes = {{Dtype::kF32, Dtype::kF32, Dtype::kF32, 1.25e-5},
                      {Dtype::kBf16, Dtype::kBf16, Dtype::kF32, 1e-3}};
    claims->features = claims->features.without(
        {Feature::kAlibi, Feature::kSinks, Feature::kGqa, Feature::kHeadDimsDiffer,
         Feature::kSeqlenQGreaterKv, Feature::kCausal, Feature::kDropout});
    claims->layouts = {true, true, false};
    claims->min_align_log2 = 4;
    claims->head_dim_qk = {16, 128, 8};
    claims->head_dim_v = {16, 128, 8};
  }
  return info;
}

std::unique_ptr<Context> described_context(Rng& rng) {
  Env env = test::make_context(Isa::kScalar)->env();
  const Isa isas[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16};
  env.isa = env.isa_available = rng.pick(isas);
  env.sm_version = rng.chance(0.5) ? 90 : 80;
  env.device_name = "described GPU";
  auto context = std::make_unique<Context>(env);
  const auto narrow = std::make_shared<test::OracleBackend>(narrow_info());
  EXPECT_TRUE(register_backend(*context, "narrow", narrow, test::NoSuite()).ok());
  return context;
}

bool is_same(const Refusal& a, const Refusal& b) {
  return a.code == b.code && a.fix.op == b.fix.op && a.fix.field == b.fix.field &&
         a.in_backward == b.in_backward;
}

void expect_sentence(const Refusal& refusal) {
  const std::string text = to_string(refusal);
  const auto printable = [](unsigned char c) { return c >= 0x20 && c < 0x7f; };
  EXPECT_TRUE(std::all_of(text.begin(), text.end(), printable)) << text;
  const std::string verb = text.substr(0, text.find(' '));
  constexpr const char* kVerbs[] = {"is", "was", "has", "does", "needs", "supports", "computes"};
  EXPECT_TRUE(std::find(std::begin(kVerbs), std::end(kVerbs), verb) != std::end(kVerbs)) << text;
  EXPECT_EQ(text.find("  "), std::string::npos) << text;
  if (refusal.fix.op == Fix::Op::kNone) return;
  EXPECT_NE(text.find("; "), std::string::npos) << text;
  if (refusal.code == RefusalCode::kErrorBound || refusal.code == RefusalCode::kWorkspace) {
    for (const std::string& number : {refusal.limit, refusal.actual, refusal.fix.value}) {
      EXPECT_NE(text.find(number), std::string::npos) << text;
    }
  }
}

void expect_fix_removes(Context& context, AttentionParams params, Policy policy,
                        const BackendRef& backend, const Refusal& refusal) {
  const std::string where = to_string(params) + " | " + to_string(policy) + " | " +
                            to_string(backend) + " " + to_string(refusal);
  const Status status = apply_fix(refusal.fix, &params, &policy);
  ASSERT_TRUE(status.ok()) << where << ": " << status.message();
  for (const Refusal& left : explain(context, params, policy).find(backend)->refusals) {
    EXPECT_FALSE(is_same(left, refusal)) << where << "\nleaves " << to_string(left);
  }
}

// With the fix of each refusal applied in turn the backend can run.
void expect_fixes_end(Context& context, AttentionParams params, Policy policy,
                      const BackendRef& backend) {
  const std::string where = to_string(params) + " | " + to_string(policy);
  std::string steps;
  for (int round = 0; round < 64; ++round) {
    const Verdict verdict = *explain(context, params, policy).find(backend);
    if (verdict.refusals.empty()) {
      EXPECT_TRUE(verdict.usable && verdict.enabled) << where;
      return;
    }
    if (verdict.refusals.front().fix.op == Fix::Op::kNone) return;
    steps += "\n" + to_string(verdict.refusals.front());
    ASSERT_TRUE(apply_fix(verdict.refusals.front().fix, &params, &policy).ok()) << where;
  }
  FAIL() << "the refusals of " << to_string(backend) << " do not end: " << where << steps;
}

TEST(Fixes, RemoveTheRefusalsOfRandomCasesUnderRandomPolicies) {
  std::map<RefusalCode, int> met;
  for (std::uint64_t n = 0; n < kFixCases; ++n) {
    Rng rng(7, n);
    const std::unique_ptr<Context> context = described_context(rng);
    Case c = n % 3 == 0 ? conformance::random_grad_case(7, n) : conformance::random_case(7, n);
    if (rng.chance(0.3)) c.params.device.type = DeviceType::kCuda;
    canonicalize(c.params);
    const Policy policy = random_policy(rng);
    const Selection selection = explain(*context, c.params, policy);
    for (const Verdict& verdict : selection.candidates) {
      for (const Refusal& refusal : verdict.refusals) {
        ++met[refusal.code];
        expect_sentence(refusal);
        if (refusal.fix.op == Fix::Op::kNone) continue;
        expect_fix_removes(*context, c.params, policy, verdict.backend, refusal);
      }
      expect_fixes_end(*context, c.params, policy, verdict.backend);
    }
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
  for (const RefusalCode code :
       {RefusalCode::kDenied, RefusalCode::kNotInOnly, RefusalCode::kDtype, RefusalCode::kFeature,
        RefusalCode::kHeadDimQk, RefusalCode::kHeadDimV, RefusalCode::kLayout,
        RefusalCode::kAlignment, RefusalCode::kDeterminism, RefusalCode::kErrorBound,
        RefusalCode::kWorkspace}) {
    EXPECT_GT(met[code], 20) << to_string(code);
  }
}

}  // namespace
}  // namespace regard
