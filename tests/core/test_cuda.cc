// CUDA problems on described machines: what is refused, ordered and leased. No device is needed,
// and none is touched.

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "mock_backend.h"

namespace regard::test {
namespace {

Env machine(std::int32_t sm_version) {
  Env env = described_env();
  env.device = DeviceType::kCuda;
  env.sm_version = sm_version;
  return env;
}

BackendInfo cuda_info() {
  BackendInfo info = generous_info("mock");
  info.device = DeviceType::kCuda;
  info.min_sm = 75;
  return info;
}

// A context on such a machine whose last CUDA candidate is a mock.
struct OnDevice {
  explicit OnDevice(std::int32_t sm_version, BackendInfo info = cuda_info())
      : context(machine(sm_version)), mock(std::make_shared<MockBackend>(std::move(info))) {
    ContextImpl::of(context).update([&](Settings& settings) {
      settings.cuda.push_back({custom("mock"), mock});
      settings.cpu.push_back({custom("mock"), mock});
    });
  }
  Verdict verdict(const std::string& words) {
    return *explain(context, case_params(words)).find(custom("mock"));
  }
  Context context;
  std::shared_ptr<MockBackend> mock;
};

// A request whose tensors lie at addresses that no host may read.
AttentionRequest device_request(std::int32_t index = 0) {
  AttentionRequest r;
  std::uintptr_t next = std::uintptr_t{1} << 20;
  for (TensorView* view : {&r.q, &r.k, &r.v, &r.out}) {
    *view = make_view(reinterpret_cast<void*>(next), Dtype::kF32, {1, 1, 4, 8});
    view->device = {DeviceType::kCuda, index};
    next += 1 << 20;
  }
  r.seqlens_q = make_view(reinterpret_cast<void*>(next), Dtype::kI32, {1});
  r.seqlens_kv = make_view(reinterpret_cast<void*>(next + 64), Dtype::kI32, {1});
  r.seqlens_q.device = r.seqlens_kv.device = r.q.device;
  return r;
}

TEST(Cuda, TheOrderDependsOnTheArchitecture) {
  const auto order = [](std::int32_t sm_version) {
    std::vector<BackendRef> refs;
    const Selection selection =
        explain(case_params("sq8 d64 bf16 device=cuda"), {}, machine(sm_version));
    for (const Verdict& verdict : selection.candidates) refs.push_back(verdict.backend);
    return refs;
  };
  const std::vector<BackendRef> with{kCudnn, kFlash, kEfficient, kMath};
  const std::vector<BackendRef> without{kFlash, kEfficient, kMath, kCudnn};
  EXPECT_EQ(order(75), without);
  for (const std::int32_t sm : {0, 80, 86, 89, 90, 100, 103}) EXPECT_EQ(order(sm), with) << sm;
  EXPECT_EQ(order(110), without);
  EXPECT_EQ(order(120), without);
}

TEST(Cuda, AnOlderDeviceOrNoneIsRefused) {
  const std::string words = "sq8 d64 f32 device=cuda";
  for (const std::int32_t sm : {75, 80, 120}) EXPECT_TRUE(OnDevice(sm).verdict(words).usable) << sm;
  const Verdict older = OnDevice(70).verdict(words);
  ASSERT_EQ(older.refusals.size(), 1u);
  EXPECT_EQ(to_string(older.refusals[0]),
            "needs a CUDA device of compute capability 7.5 or newer, got 7.0");
  const Verdict none = OnDevice(0).verdict(words);
  ASSERT_EQ(none.refusals.size(), 1u);
  EXPECT_EQ(to_string(none.refusals[0]),
            "needs a CUDA device of compute capability 7.5 or newer, got none");
  // A device's rule is none of a problem on the CPU.
  BackendInfo cpu = generous_info("mock");
  cpu.min_sm = 75;
  EXPECT_TRUE(OnDevice(0, cpu).verdict("sq8 d64 f32").usable);
}

TEST(Env, StatesNoDeviceBeforeOneIsAskedFor) {
  const Env env = read_env();
  EXPECT_EQ(env.sm_version, kSmUnread);
  EXPECT_GE(with_devices(env).sm_version, 0);
  const Env described = machine(90);
  EXPECT_EQ(with_devices(described), described);
}

std::atomic<int> reads{0};

Env read_sm120(Env env) {
  ++reads;
  env.sm_version = 120;
  return env;
}

// Each plan keeps the Env that it was decided from.
TEST(Cuda, TheFirstProblemOnADeviceReadsTheDevices) {
  OnDevice on(kSmUnread);
  ContextImpl& impl = ContextImpl::of(on.context);
  reads = 0;
  const Expected<Plan> made = plan(on.context, case_params("sq8 d64 f32"));
  ASSERT_TRUE(made);
  EXPECT_EQ(PlanImpl::of(*made)->env->sm_version, kSmUnread);
  EXPECT_EQ(impl.env_for({DeviceType::kCpu, 0}, read_sm120), impl.env);

  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      EXPECT_EQ(impl.env_for({DeviceType::kCuda, 0}, read_sm120)->sm_version, 120);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(reads, 1);

  const Policy policy = only({custom("mock")});
  const Expected<Plan> there = plan(on.context, case_params("sq8 d64 f32 device=cuda"), policy);
  ASSERT_TRUE(there) << there.status().to_string();
  EXPECT_EQ(PlanImpl::of(*there)->env->sm_version, 120);
  std::vector<BackendRef> order;
  for (const Verdict& verdict : there->selection().candidates) order.push_back(verdict.backend);
  EXPECT_EQ(order, (std::vector<BackendRef>{kFlash, kEfficient, kMath, kCudnn, custom("mock")}));
  EXPECT_EQ(impl.env->sm_version, kSmUnread);
}

TEST(Cuda, ADescribedMachineIsNotAsked) {
  OnDevice on(90);
  reads = 0;
  ContextImpl& impl = ContextImpl::of(on.context);
  EXPECT_EQ(impl.env_for({DeviceType::kCuda, 0}, read_sm120), impl.env);
  EXPECT_EQ(reads, 0);
}

Env read_two_devices(Env env) {
  env.sm_version = 80;
  env.device_name = "older";
  env.cuda_devices = {{"newer", 120}, {"older", 80}};
  return env;
}

// Index N of a problem is the N-th device, not the first or the smallest.
TEST(Cuda, AProblemIsDecidedForTheDeviceOfItsIndex) {
  const auto last_refusal = [](const Selection& selection) {
    return to_string(selection.find(custom("mock"))->refusals.at(0));
  };
  BackendInfo info = cuda_info();
  info.min_sm = 90;
  OnDevice on(kSmUnread, info);
  ContextImpl& impl = ContextImpl::of(on.context);
  EXPECT_EQ(impl.env_for({DeviceType::kCuda, 0}, read_two_devices)->sm_version, 120);
  EXPECT_EQ(impl.env_for({DeviceType::kCuda, 1})->device_name, "older");
  EXPECT_EQ(impl.env_for({DeviceType::kCuda, 2})->sm_version, 0);
  const Policy policy = only({custom("mock")});
  const AttentionParams first = case_params("sq8 d64 f32 device=cuda:0");
  const AttentionParams second = case_params("sq8 d64 f32 device=cuda:1");
  const AttentionParams absent = case_params("sq8 d64 f32 device=cuda:2");
  for (const bool described : {false, true}) {
    const auto explained = [&](const AttentionParams& params) {
      return described ? explain(on.context, params, policy, read_two_devices(described_env()))
                       : explain(on.context, params, policy);
    };
    EXPECT_TRUE(explained(first).ok());
    EXPECT_EQ(explained(first).candidates[0].backend, kFlash);  // the order of sm 12.0
    EXPECT_EQ(last_refusal(explained(second)),
              "needs a CUDA device of compute capability 9.0 or newer, got 8.0");
    EXPECT_EQ(explained(second).candidates[0].backend, kCudnn);
    EXPECT_EQ(last_refusal(explained(absent)),
              "needs a CUDA device of compute capability 9.0 or newer, got none");
  }
  EXPECT_TRUE(plan(on.context, first, policy).ok());
  EXPECT_EQ(plan(on.context, second, policy).status().code(), StatusCode::kNoBackend);
}

// A described machine keeps what the Context was given.
TEST(Cuda, ExplainOnADescribedMachineKeepsTheContextsSettings) {
  OnDevice on(75);
  Env machine_90 = machine(90);
  on.context.set_policy(prefer({custom("mock")}));
  const AttentionParams params = case_params("sq8 d64 bf16 device=cuda");
  const Selection selection = explain(on.context, params, {}, machine_90);
  EXPECT_EQ(selection.chosen, custom("mock"));
  EXPECT_EQ(selection.decided_by, "context policy (prefer)");
  EXPECT_EQ(selection.candidates[1].backend, kCudnn);  // the order of sm 9.0, not of 7.5
  EXPECT_EQ(explain(params, {}, machine_90).find(custom("mock")), nullptr);
}

TEST(Cuda, ARefusalAtPlanIsLearned) {
  OnDevice on(90);
  on.mock->refuse_plan = [](const AttentionKey&) { return true; };
  const AttentionParams params = case_params("sq8 d64 f64 device=cuda");
  Policy policy = only({custom("mock")});
  EXPECT_EQ(plan(on.context, params, policy).status().code(), StatusCode::kNoBackend);
  const Verdict verdict = *explain(on.context, params, policy).find(custom("mock"));
  ASSERT_FALSE(verdict.refusals.empty());
  EXPECT_EQ(verdict.refusals.back().code, RefusalCode::kLearned);
}

TEST(Cuda, TensorsOfTwoDevicesAreRefused) {
  AttentionRequest request = device_request();
  request.v.device.index = 1;
  const Status status = describe(request).status();
  EXPECT_EQ(status.message(), "[describe] device of v (cuda:1) must be q's, cuda:0");
}

// Host memory would be read by a kernel: without a device there is nothing to lease.
TEST(Cuda, AWorkspaceIsLeasedOnTheDevice) {
  if (with_devices(read_env()).sm_version != 0) GTEST_SKIP() << "there is a device";
  OnDevice on(90);
  on.mock->workspace = 256;
  AttentionRequest request = device_request();
  const Status status = attention(on.context, request, only({custom("mock")}));
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("[attention]"), std::string::npos) << status.to_string();
  EXPECT_EQ(on.mock->executions, 0);
  EXPECT_EQ(on.context.leased_workspace_bytes(), 0);
}

// A build without CUDA leaves the device to the backend: its execute sees lengths that nobody read.
TEST(Cuda, ExecuteReadsNoLengthsOfADevice) {
  if (read_env().built_with_cuda) GTEST_SKIP() << "the device is made current, and there is none";
  OnDevice on(90);
  on.mock->workspace = 256;
  Launch launch;
  launch.workspace = {reinterpret_cast<void*>(std::uintptr_t{1} << 30), 256};
  const AttentionRequest request = device_request();
  EXPECT_TRUE(attention(on.context, request, only({custom("mock")}), launch).ok());
  EXPECT_EQ(on.mock->executions, 1);
}

TEST(Cuda, AnAbsentDeviceIsNamed) {
  const Env env = with_devices(read_env());
  if (!env.built_with_cuda || env.sm_version != 0) GTEST_SKIP() << "no CUDA, or a device";
  OnDevice on(90);
  const Status status = attention(on.context, device_request(3), only({custom("mock")}));
  EXPECT_NE(status.message().find("device (cuda:3) must be one that the driver has"),
            std::string::npos)
      << status.to_string();
  EXPECT_EQ(on.mock->executions, 0);
}

struct Lengths {
  explicit Lengths(std::int32_t kv) : keys{kv, 2} {
    request.q = make_view(data, Dtype::kF32, {2, 1, 4, 1});
    request.k = request.v = request.q;
    request.out = make_view(out, Dtype::kF32, {2, 1, 4, 1});
    request.seqlens_kv = make_view(keys, Dtype::kI32, {2});
  }
  float data[8] = {}, out[8] = {};
  std::int32_t keys[2];
  AttentionRequest request;
};

TEST(Cuda, CheckDeviceDataRefusesLengthsOutOfRange) {
  EXPECT_TRUE(check_device_data(Lengths(4).request).ok());
  EXPECT_TRUE(check_device_data(Lengths(0).request).ok());
  EXPECT_EQ(check_device_data(Lengths(5).request).message(),
            "[check_device_data] seqlens_kv[0] (5), expected 0 to 4");
  EXPECT_FALSE(check_device_data(Lengths(-1).request).ok());
  Lengths descaled(4);
  float descale = -1.0f;
  descaled.request.descale_v = make_view(&descale, Dtype::kF32, {1});
  EXPECT_EQ(check_device_data(descaled.request).message(),
            "[check_device_data] descale_v[0] (-1), expected finite and at least 0");
  if (with_devices(read_env()).sm_version == 0) {
    EXPECT_FALSE(check_device_data(device_request()).ok());
  }
}

// Lengths whose strides span more than memory has are copied to the host with what lies between.
TEST(Cuda, CheckDeviceDataThrowsNothing) {
  AttentionRequest request = device_request();
  std::int32_t keys[2] = {};
  for (TensorView* view : {&request.q, &request.k, &request.v, &request.out}) view->shape[0] = 2;
  request.seqlens_q = {};
  request.seqlens_kv = make_view(keys, Dtype::kI32, {2});
  request.seqlens_kv.device = request.q.device;
  request.seqlens_kv.strides[0] = std::int64_t{1} << 60;
  const Status status = check_device_data(request);
  EXPECT_EQ(status.code(), StatusCode::kWorkspace) << status.to_string();
  EXPECT_NE(status.message().find("4611686018427387908 bytes"), std::string::npos)
      << status.to_string();
}

// The check of a page table reads the diagonal of each sequence.
TEST(Cuda, CheckDeviceDataCopiesDiagonalOffsets) {
  AttentionRequest request = device_request();
  std::int64_t offsets[2] = {};
  for (TensorView* view : {&request.q, &request.k, &request.v, &request.out}) view->shape[0] = 2;
  request.seqlens_q = request.seqlens_kv = {};
  request.options.is_causal = true;
  request.options.diagonal = Diagonal::kOffset;
  request.diagonal_offsets = make_view(offsets, Dtype::kI64, {2});
  request.diagonal_offsets.device = request.q.device;
  request.diagonal_offsets.strides[0] = std::int64_t{1} << 59;  // more than memory has
  const Status status = check_device_data(request);
  EXPECT_EQ(status.code(), StatusCode::kWorkspace) << status.to_string();
  EXPECT_NE(status.message().find("4611686018427387912 bytes"), std::string::npos)
      << status.to_string();
}

}  // namespace
}  // namespace regard::test
