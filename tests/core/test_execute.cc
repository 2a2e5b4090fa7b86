#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "mock_backend.h"
#include "tests/support/scratch.h"

namespace regard::test {
namespace {

// A small request with memory of its own; every output starts as 7.
struct SmallCall {
  explicit SmallCall(std::int64_t seqlen = 4, std::int64_t head_dim = 8, std::int64_t heads = 2)
      : data(static_cast<std::size_t>(heads * seqlen * head_dim), 0.25f),
        out(data.size(), 7.0f),
        lse(static_cast<std::size_t>(heads * seqlen), 7.0f) {
    request.q = request.k = request.v = make_view(data.data(), {1, heads, seqlen, head_dim});
    request.out = make_view(out.data(), {1, heads, seqlen, head_dim});
  }
  bool untouched() const {
    for (const float x : out) {
      if (x != 7.0f) return false;
    }
    return true;
  }
  std::vector<float> data, out, lse;
  AttentionRequest request;
};

TEST(Execute, AcceptsAnyExtentsUpToThePlans) {
  Context context(described_env());
  SmallCall large(8);
  const Plan made = plan_for(context, large.request);
  Scratch scratch(made.workspace_bytes());
  for (const std::int64_t seqlen : {8, 5, 1, 0}) {
    SmallCall small(seqlen);
    ASSERT_TRUE(execute(made, small.request, scratch.launch).ok()) << seqlen;
    for (const float x : small.out) EXPECT_FLOAT_EQ(x, 0.25f);  // the mean of equal rows
  }
  SmallCall larger(9);
  const Status status = execute(made, larger.request, scratch.launch);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("seqlen_q (9) does not fit the plan, expected at most 8"),
            std::string::npos)
      << status.message();
  EXPECT_TRUE(larger.untouched());
}

// A bias is broadcast over an extent of 1, and full where the extent is 0.
TEST(Execute, AnEmptyExtentFitsAPlanOfOne) {
  Context context(described_env());
  float bias = 0.0f;
  SmallCall one(1);
  one.request.attn_bias = make_view(&bias, Dtype::kF32, {1, 1, 1, 1});
  const Plan made = plan_for(context, one.request);
  Scratch scratch(made.workspace_bytes());
  SmallCall none(0);
  none.request.attn_bias = make_view(&bias, Dtype::kF32, {1, 1, 0, 0});
  const Status status = execute(made, none.request, scratch.launch);
  EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST(Execute, RefusesWhatThePlanWasNotMadeFor) {
  Context context(described_env());
  SmallCall base;
  const Plan made = plan_for(context, base.request);
  Scratch scratch(made.workspace_bytes());

  const auto expect_refused = [&](const SmallCall& call) {
    const Status status = execute(made, call.request, scratch.launch);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
    EXPECT_EQ(status.message().rfind("[execute]", 0), 0u) << status.message();
    EXPECT_TRUE(call.untouched());
  };
  expect_refused(SmallCall(4, 16));    // head_dim
  expect_refused(SmallCall(4, 8, 3));  // heads
  SmallCall with_lse;
  with_lse.request.lse = make_view(with_lse.lse.data(), {1, 2, 4});
  expect_refused(with_lse);  // an output more
  SmallCall transposed;      // another layout
  for (TensorView* view : {&transposed.request.q, &transposed.request.k, &transposed.request.v}) {
    view->strides[1] = 8;
    view->strides[2] = 16;
  }
  expect_refused(transposed);
  SmallCall misaligned;
  misaligned.data.resize(misaligned.data.size() + 1);
  misaligned.request.q.data = misaligned.request.k.data = misaligned.request.v.data =
      misaligned.data.data() + 1;
  expect_refused(misaligned);  // 4 bytes where the plan knows 16
  SmallCall overlapping;
  overlapping.request.out.data = overlapping.data.data();
  const Status status = execute(made, overlapping.request, scratch.launch);
  EXPECT_NE(status.message().find("must not overlap"), std::string::npos) << status.message();
}

TEST(Execute, LengthsAreCheckedBeforeAnythingIsWritten) {
  Context context(described_env());
  SmallCall call;
  std::int32_t length = 4;
  call.request.seqlens_kv = make_view(&length, Dtype::kI32, {1});
  const Plan made = plan_for(context, call.request);
  Scratch scratch(made.workspace_bytes());
  for (const std::int32_t bad : {-1, 5, std::numeric_limits<std::int32_t>::min()}) {
    length = bad;
    const Status status = execute(made, call.request, scratch.launch);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("seqlens_kv[0] (" + std::to_string(bad) + "), expected 0 to 4"),
              std::string::npos)
        << status.message();
    EXPECT_TRUE(call.untouched());
  }
  length = 4;
  EXPECT_TRUE(execute(made, call.request, scratch.launch).ok());
}

TEST(Execute, DescalesAreCheckedBeforeAnythingIsWritten) {
  Context context(described_env());
  SmallCall call;
  float descales[] = {1.0f, 0.0f};  // of 2 heads
  call.request.descale_k = make_view(descales, Dtype::kF32, {1, 2});
  const Plan made = plan_for(context, call.request);
  Scratch scratch(made.workspace_bytes());
  EXPECT_TRUE(execute(made, call.request, scratch.launch).ok());
  call.out.assign(call.out.size(), 7.0f);
  struct Bad {
    float value;
    const char* text;
  };
  for (const Bad& bad : {Bad{-0.5f, "-0.5"}, Bad{HUGE_VALF, "inf"}, Bad{std::nanf(""), "nan"}}) {
    descales[1] = bad.value;
    const Status status = execute(made, call.request, scratch.launch);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(std::string("descale_k[0,1] (") + bad.text +
                                    "), expected finite and at least 0"),
              std::string::npos)
        << status.message();
    EXPECT_TRUE(call.untouched());
  }
}

TEST(Execute, AWorkspaceMustBeLargeEnoughAndAligned) {
  Context context(described_env());
  SmallCall call;
  const Plan made = plan_for(context, call.request);
  ASSERT_GT(made.workspace_bytes(), 0);
  Scratch scratch(made.workspace_bytes());

  Launch launch = scratch.launch;
  launch.workspace.bytes -= 1;
  Status status = execute(made, call.request, launch);
  EXPECT_EQ(status.code(), StatusCode::kWorkspace);
  EXPECT_NE(status.message().find(std::to_string(made.workspace_bytes())), std::string::npos);
  EXPECT_NE(status.message().find(std::to_string(made.workspace_bytes() - 1)), std::string::npos);

  launch = scratch.launch;
  launch.workspace.data = static_cast<char*>(launch.workspace.data) - 32;
  EXPECT_EQ(execute(made, call.request, launch).code(), StatusCode::kWorkspace);
  EXPECT_EQ(execute(made, call.request, {}).code(), StatusCode::kWorkspace);
  // One that is given but too small is an error for attention() too, never a lease.
  launch = scratch.launch;
  launch.workspace.bytes = 0;
  EXPECT_EQ(attention(context, call.request, {}, launch).code(), StatusCode::kWorkspace);
  EXPECT_TRUE(call.untouched());
}

// Kernels would overwrite what they read, and what they have written.
TEST(Execute, AWorkspaceMustNotOverlapATensor) {
  Context context(described_env());
  SmallCall call;
  call.request.lse = make_view(call.lse.data(), {1, 2, 4});
  const Plan made = plan_for(context, call.request);
  Scratch scratch(made.workspace_bytes() + 4096);
  auto* const inside = static_cast<float*>(scratch.launch.workspace.data) + 512;
  struct Tensor {
    const char* name;
    TensorView Buffers::*view;
  };
  for (const Tensor& tensor :
       {Tensor{"q", &Buffers::q}, Tensor{"k", &Buffers::k}, Tensor{"v", &Buffers::v},
        Tensor{"out", &Buffers::out}, Tensor{"lse", &Buffers::lse}}) {
    AttentionRequest request = call.request;
    (request.*tensor.view).data = inside;
    const Status status = execute(made, request, scratch.launch);
    EXPECT_EQ(status.code(), StatusCode::kWorkspace) << tensor.name;
    EXPECT_NE(status.message().find(std::string(" must not overlap ") + tensor.name + " "),
              std::string::npos)
        << status.message();
    EXPECT_EQ(attention(context, request, {}, scratch.launch).code(), StatusCode::kWorkspace);
  }
  EXPECT_TRUE(call.untouched());
  Launch launch = scratch.launch;
  launch.workspace.bytes = ~std::size_t{0};
  EXPECT_EQ(execute(made, call.request, launch).code(), StatusCode::kWorkspace);
  EXPECT_TRUE(execute(made, call.request, scratch.launch).ok());
}

TEST(Execute, ABackwardsWorkspaceMustNotOverlapATensor) {
  Context context(described_env());
  SmallCall call;
  call.request.lse = make_view(call.lse.data(), {1, 2, 4});
  call.request.options.needs_grad = true;
  const Plan made = plan_for(context, call.request);
  Scratch forward(made.workspace_bytes()), scratch(made.backward_workspace_bytes() + 4096);
  ASSERT_TRUE(execute(made, call.request, forward.launch).ok());
  std::vector<float> d_q(call.data.size());
  GradBuffers gradients;
  gradients.d_out = call.request.q;
  gradients.saved.stats = call.request.lse;
  gradients.saved.kind = SavedContext::Kind::kLse;
  gradients.d_q = make_view(d_q.data(), {1, 2, 4, 8});
  ASSERT_TRUE(execute_backward(made, call.request, gradients, scratch.launch).ok());
  auto* const inside = static_cast<float*>(scratch.launch.workspace.data) + 512;
  for (TensorView* view : {&gradients.d_q, &gradients.d_out, &gradients.saved.stats}) {
    void* const outside = view->data;
    view->data = inside;
    const Status status = execute_backward(made, call.request, gradients, scratch.launch);
    EXPECT_EQ(status.code(), StatusCode::kWorkspace) << status.message();
    view->data = outside;
  }
}

TEST(Execute, AnEmptyPlanIsAnError) {
  SmallCall call;
  EXPECT_EQ(execute(Plan(), call.request).code(), StatusCode::kInvalidArgument);
}

TEST(Execute, APlanOutlivesItsContext) {
  SmallCall call;
  Plan made;
  {
    Context context(described_env());
    made = plan_for(context, call.request);
  }
  Scratch scratch(made.workspace_bytes());
  ASSERT_TRUE(execute(made, call.request, scratch.launch).ok());
  EXPECT_FLOAT_EQ(call.out[0], 0.25f);
  EXPECT_EQ(made.selection().chosen, made.backend());
}

TEST(Execute, OnePlanServesManyThreads) {
  Context context(described_env());
  SmallCall shape(33, 16);
  const Plan made = plan_for(context, shape.request);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        SmallCall call(33, 16);
        Scratch scratch(made.workspace_bytes());
        if (!execute(made, call.request, scratch.launch).ok() || call.out[5] != 0.25f) ++wrong[t];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int n : wrong) EXPECT_EQ(n, 0);
}

// ---- leased workspaces ----

TEST(Workspace, IsLeasedReusedAndTrimmed) {
  Context context(described_env());
  EXPECT_EQ(context.leased_workspace_bytes(), 0);
  SmallCall call;
  ASSERT_TRUE(attention(context, call.request).ok());
  const std::int64_t first = context.leased_workspace_bytes();
  EXPECT_GT(first, 0);
  ASSERT_TRUE(attention(context, call.request).ok());
  EXPECT_EQ(context.leased_workspace_bytes(), first);
  context.trim();
  EXPECT_EQ(context.leased_workspace_bytes(), 0);
}

TEST(Workspace, OneThatCannotBeHadIsAStatusAndNothingIsWritten) {
  Context context(described_env());
  auto hungry = std::make_shared<MockBackend>(generous_info("hungry"));
  hungry->workspace = std::int64_t{1} << 61;
  add_backend(context, "hungry", hungry);
  SmallCall call;
  const Status status = attention(context, call.request, only({custom("hungry")}));
  EXPECT_EQ(status.code(), StatusCode::kWorkspace);
  EXPECT_EQ(hungry->executions, 0);
  EXPECT_EQ(context.leased_workspace_bytes(), 0);
}

// ---- executors ----

class SerialExecutor : public Executor {
 public:
  void run(int workers, Task task, void* state) override {
    ++runs;
    for (int worker = workers - 1; worker >= 0; --worker) task(state, worker);
  }
  int runs = 0;
};

TEST(Executors, TheLaunchsComesFirstThenTheInjectedOne) {
  Context context(described_env());
  SerialExecutor injected, launched;
  context.set_executor(&injected);
  SmallCall call(130, 16);  // worth two threads
  ASSERT_TRUE(attention(context, call.request).ok());
  EXPECT_EQ(injected.runs, 1);
  Launch launch;
  launch.executor = &launched;
  ASSERT_TRUE(attention(context, call.request, {}, launch).ok());
  EXPECT_EQ(launched.runs, 1);
  EXPECT_EQ(injected.runs, 1);
  context.set_executor(nullptr);
  ASSERT_TRUE(attention(context, call.request).ok());
  EXPECT_EQ(injected.runs, 1);
}

TEST(Executors, AShortCallWakesNoThread) {
  Context context(described_env());
  SerialExecutor injected;
  context.set_executor(&injected);
  SmallCall call;
  EXPECT_EQ(plan_for(context, call.request).kernel().workers, 1);
  ASSERT_TRUE(attention(context, call.request).ok());
  EXPECT_EQ(injected.runs, 0);
}

class ThrowingExecutor : public Executor {
 public:
  void run(int, Task, void*) override { throw std::runtime_error("no threads today"); }
};

TEST(Executors, AnExceptionBecomesAStatus) {
  Context context(described_env());
  ThrowingExecutor executor;
  context.set_executor(&executor);
  SmallCall call(130, 16);  // worth two threads
  const Status status = attention(context, call.request);
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_NE(status.message().find("or its executor threw: no threads today"), std::string::npos);
}

/// Runs the first few workers alone.
class IncompleteExecutor : public Executor {
 public:
  explicit IncompleteExecutor(int workers) : workers_(workers) {}
  void run(int workers, Task task, void* state) override {
    for (int worker = 0; worker < std::min(workers, workers_); ++worker) task(state, worker);
  }

 private:
  int workers_;
};

TEST(Executors, WorkersThatWereNotRunAreAnError) {
  Context context(described_env());
  SmallCall call(130, 16);  // worth two threads
  const int workers = plan_for(context, call.request).kernel().workers;
  ASSERT_GT(workers, 1);
  for (const int ran : {0, workers - 1}) {
    IncompleteExecutor executor(ran);
    const std::string expected = " had run " + std::to_string(ran) + " of " +
                                 std::to_string(workers) + " workers when its run() returned";
    Launch launch;
    launch.executor = &executor;
    Status status = attention(context, call.request, {}, launch);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("the launch's executor" + expected), std::string::npos)
        << status.message();
    context.set_executor(&executor);
    status = attention(context, call.request);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("the Context's executor" + expected), std::string::npos)
        << status.message();
    context.set_executor(nullptr);
  }
}

class ThrowingANumber : public Executor {
 public:
  void run(int, Task, void*) override { throw 5; }
};

TEST(Executors, NonStdExceptionBecomesStatus) {
  Context context(described_env());
  ThrowingANumber executor;
  context.set_executor(&executor);
  SmallCall call(130, 16);
  const Status status = attention(context, call.request);
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_NE(status.message().find("threw: no std::exception"), std::string::npos);
}

// ---- fork ----

// Runs `call` in a child; its exit code is 0 when the result is right.
int exit_code_in_child(const std::function<bool()>& call) {
  const pid_t child = fork();
  if (child == 0) _exit(call() ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Fork, AChildComputesByPlanAndByExecute) {
  Context context(described_env());
  SmallCall call(130, 16);
  const Plan made = plan_for(context, call.request);
  ASSERT_GT(made.kernel().workers, 1);
  Scratch scratch(made.workspace_bytes());
  ASSERT_TRUE(execute(made, call.request, scratch.launch).ok());
  const auto right = [&] { return call.out[7] == 0.25f && call.out.back() == 0.25f; };
  EXPECT_EQ(exit_code_in_child([&] {  // inline: the parent's threads are not here
              call.out.assign(call.out.size(), 7.0f);
              return execute(made, call.request, scratch.launch).ok() && right();
            }),
            0);
  EXPECT_EQ(exit_code_in_child([&] {  // threads of the child's own
              call.out.assign(call.out.size(), 7.0f);
              return attention(context, call.request).ok() && right();
            }),
            0);
  EXPECT_TRUE(execute(made, call.request, scratch.launch).ok());
}

}  // namespace
}  // namespace regard::test
