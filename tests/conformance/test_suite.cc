#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "conformance/suite.h"
#include "tests/support/backends.h"
#include "tests/support/oracle_backend.h"

// The small suite that every custom backend passes before it may be selected.

namespace regard {
namespace {

using conformance::small_suite;
using oracle::Fault;
using test::OracleBackend;

Expected<BackendRef> try_to_register(Context& context, std::shared_ptr<const Backend> backend) {
  return register_backend(context, "mine", std::move(backend), small_suite());
}

std::string refusal_of(std::shared_ptr<const Backend> backend) {
  const std::unique_ptr<Context> context = test::make_context(Isa::kScalar);
  const std::size_t before = context->backends().size();
  const Expected<BackendRef> ref = try_to_register(*context, std::move(backend));
  EXPECT_EQ(context->backends().size(), ref.ok() ? before + 1 : before);
  if (ref.ok()) return "";
  EXPECT_EQ(ref.status().code(), StatusCode::kConformanceFailed) << ref.status().to_string();
  return ref.status().message();
}

TEST(SmallSuite, ARightBackendIsAcceptedAndSelected) {
  const std::unique_ptr<Context> context = test::make_context(Isa::kScalar);
  const Expected<BackendRef> ref =
      try_to_register(*context, std::make_shared<OracleBackend>(test::oracle_info()));
  ASSERT_TRUE(ref.ok()) << ref.status().to_string();
  Policy policy;
  policy.prefer = std::vector<BackendRef>{*ref};
  const AttentionParams params = parse_case("sq8 d16 causal").value().params;
  EXPECT_EQ(explain(*context, params, policy).chosen, *ref);
}

struct Wrong {
  const char* name;
  Fault fault;
  const char* word;  // of the case that must fail
};

class WrongBackends : public testing::TestWithParam<Wrong> {};

TEST_P(WrongBackends, AreRefusedWithTheFailingCase) {
  const std::string text =
      refusal_of(std::make_shared<OracleBackend>(test::oracle_info(), GetParam().fault));
  EXPECT_NE(text.find("custom:mine"), std::string::npos) << text;
  EXPECT_NE(text.find(GetParam().word), std::string::npos) << text;
  EXPECT_NE(text.find("regard check \"b"), std::string::npos) << text;
  EXPECT_NE(text.find("expected"), std::string::npos) << text;
}

const Wrong kWrong[] = {
    {"diagonal", Fault::kDiagonalOffByOne, "causal"},
    {"window", Fault::kWindowExclusive, "window="},
    {"softcap", Fault::kSoftcapAfterBias, "softcap="},
    {"sinks", Fault::kSinkIgnored, "sinks"},
    {"group", Fault::kNeighbourHead, "hkv"},
    {"dead_rows", Fault::kDeadRowMean, "expected"},
    {"lse", Fault::kLseBase2, "lse"},
    {"dropout", Fault::kDropoutNotScaled, "dropout="},
};
INSTANTIATE_TEST_SUITE_P(SmallSuite, WrongBackends, testing::ValuesIn(kWrong),
                         [](const auto& param) { return param.param.name; });

// A backend that offers a backward is held to the gradient cases too.
TEST(SmallSuite, ARightBackwardIsAccepted) {
  EXPECT_EQ(refusal_of(std::make_shared<OracleBackend>(test::oracle_grad_info())), "");
}

TEST(SmallSuite, WithoutABackwardItsFaultsDoNotMatter) {
  EXPECT_EQ(refusal_of(std::make_shared<OracleBackend>(test::oracle_info(), Fault::kDeltaDropped)),
            "");
}

class WrongBackwards : public testing::TestWithParam<Wrong> {};

TEST_P(WrongBackwards, AreRefusedWithTheFailingCase) {
  const std::string text =
      refusal_of(std::make_shared<OracleBackend>(test::oracle_grad_info(), GetParam().fault));
  EXPECT_NE(text.find(GetParam().word), std::string::npos) << text;
  EXPECT_NE(text.find("grad"), std::string::npos) << text;
  EXPECT_NE(text.find("regard check \"b"), std::string::npos) << text;
}

const Wrong kWrongBackwards[] = {
    {"delta", Fault::kDeltaDropped, "d_q"},
    {"scale", Fault::kKeyGradNotScaled, "d_k"},
    {"group", Fault::kGroupNotSummed, "hkv2"},
    {"dropout", Fault::kGradDropoutNotScaled, "dropout="},
    {"softcap", Fault::kSoftcapSlopeMissing, "softcap="},
    {"bias", Fault::kBiasGradNotReduced, "bias="},
    {"lse", Fault::kLseGradIgnored, "d_"},
};
INSTANTIATE_TEST_SUITE_P(SmallSuite, WrongBackwards, testing::ValuesIn(kWrongBackwards),
                         [](const auto& param) { return param.param.name; });

TEST(SmallSuite, NarrowBackwardClaimsAreTested) {
  BackendInfo narrow = test::oracle_grad_info();
  narrow.backward.features = {Feature::kCausal};  // no kind of statistics: nothing can be run
  EXPECT_NE(refusal_of(std::make_shared<OracleBackend>(narrow)).find("gradient cases"),
            std::string::npos);
  narrow.backward.features.set(Feature::kSavedStats);
  EXPECT_EQ(refusal_of(std::make_shared<OracleBackend>(narrow)), "");
  const std::string text =
      refusal_of(std::make_shared<OracleBackend>(narrow, Fault::kKeyGradNotScaled));
  EXPECT_NE(text.find("d_k"), std::string::npos) << text;
  narrow.backward.dtypes.clear();
  EXPECT_NE(refusal_of(std::make_shared<OracleBackend>(narrow)).find("gradient cases"),
            std::string::npos);
}

// Plays a CUDA device in host memory: the backend under test reads the host's tensors there.
class FakeDevice final : public conformance::DeviceRunner {
 public:
  explicit FakeDevice(const Backend& backend) : backend_(backend) {}
  Status run(const Call& call) override {
    ++calls;
    devices_seen = devices_seen && call.plan.params().device.type == DeviceType::kCuda;
    const Expected<AttentionParams> params = describe(call.request);
    if (!params) return params.status();
    Launch launch;
    launch.workspace = call.workspace;
    const Plan& plan = call.plan;
    return call.backward ? backend_.execute_backward(plan.backward_kernel(), *params, call.request,
                                                     call.request, launch)
                         : backend_.execute(plan.kernel(), *params, call.request, launch);
  }
  int calls = 0;
  bool devices_seen = true;

 private:
  const Backend& backend_;
};

BackendInfo cuda_info() {
  BackendInfo info = test::oracle_grad_info();
  info.device = DeviceType::kCuda;
  info.min_sm = 80;
  return info;
}

Env cuda_machine(std::int32_t sm_version) {
  Env env = test::make_context(Isa::kScalar)->env();
  env.sm_version = sm_version;
  return env;
}

TEST(SmallSuite, ACudaBackendIsRefusedByNameWithoutADevice) {
  Context context(cuda_machine(90));
  const Expected<BackendRef> ref =
      try_to_register(context, std::make_shared<OracleBackend>(cuda_info()));
  ASSERT_FALSE(ref.ok());
  EXPECT_EQ(ref.status().code(), StatusCode::kConformanceFailed);
  EXPECT_NE(ref.status().message().find("custom:mine serves cuda devices"), std::string::npos)
      << ref.status().to_string();
  EXPECT_NE(ref.status().message().find("small_suite(carrier)"), std::string::npos);
}

TEST(SmallSuite, ACudaBackendRunsOnTheRunnersDevice) {
  const auto backend = std::make_shared<OracleBackend>(cuda_info());
  FakeDevice device(*backend);
  Context context(cuda_machine(90));
  const auto suite = small_suite(device);
  const Expected<BackendRef> ref = register_backend(context, "mine", backend, *suite);
  ASSERT_TRUE(ref.ok()) << ref.status().to_string();
  EXPECT_GE(device.calls, 100);  // each case twice, those with gradients four times
  EXPECT_TRUE(device.devices_seen);
  Policy policy;
  policy.prefer = std::vector<BackendRef>{*ref};
  const AttentionParams params = parse_case("sq8 d16 causal device=cuda").value().params;
  EXPECT_EQ(explain(context, params, policy).chosen, *ref);
}

TEST(SmallSuite, AWrongCudaBackendIsRefusedWithTheFailingCase) {
  for (const Fault fault : {Fault::kDiagonalOffByOne, Fault::kGroupNotSummed}) {
    const auto backend = std::make_shared<OracleBackend>(cuda_info(), fault);
    FakeDevice device(*backend);
    Context context(cuda_machine(90));
    const auto suite = small_suite(device);
    const Expected<BackendRef> ref = register_backend(context, "mine", backend, *suite);
    ASSERT_FALSE(ref.ok());
    EXPECT_NE(ref.status().message().find("device=cuda"), std::string::npos)
        << ref.status().to_string();
  }
}

// The cases need kernels that the device has not got.
TEST(SmallSuite, ACudaBackendWithoutItsComputeCapabilityIsRefused) {
  const auto backend = std::make_shared<OracleBackend>(cuda_info());
  FakeDevice device(*backend);
  Context context(cuda_machine(75));
  const auto suite = small_suite(device);
  const Expected<BackendRef> ref = register_backend(context, "mine", backend, *suite);
  ASSERT_FALSE(ref.ok());
  EXPECT_NE(ref.status().message().find("claims none of the suite's"), std::string::npos);
  EXPECT_EQ(device.calls, 0);
}

// A narrow record is no excuse: cases bend to what is claimed.
TEST(SmallSuite, NarrowClaimsAreTested) {
  BackendInfo narrow = test::oracle_info();
  narrow.forward.features = {Feature::kCausal};
  narrow.forward.dtypes = {{Dtype::kF16, Dtype::kF16, Dtype::kF16, 1e-2}};
  narrow.forward.head_dim_qk = narrow.forward.head_dim_v = {64, 128, 64};
  narrow.forward.layouts = {false, true, false};
  EXPECT_EQ(refusal_of(std::make_shared<OracleBackend>(narrow)), "");
  const std::string text =
      refusal_of(std::make_shared<OracleBackend>(narrow, Fault::kDiagonalOffByOne));
  EXPECT_NE(text.find("causal"), std::string::npos) << text;
}

TEST(SmallSuite, AClaimedCaseThatDoesNotRunIsAFailure) {
  auto wrong = std::make_shared<OracleBackend>(test::oracle_info());
  wrong->cannot_run = [](const AttentionParams& p) { return p.features.has(Feature::kAlibi); };
  const std::string text = refusal_of(wrong);
  EXPECT_NE(text.find("[mock] cannot run it"), std::string::npos) << text;
  EXPECT_NE(text.find("alibi"), std::string::npos) << text;
}

TEST(SmallSuite, ABackendThatClaimsNothingIsRefused) {
  BackendInfo nothing = test::oracle_info();
  nothing.forward.dtypes.clear();
  const std::string text = refusal_of(std::make_shared<OracleBackend>(nothing));
  EXPECT_NE(text.find("claims none"), std::string::npos) << text;
}

}  // namespace
}  // namespace regard
