#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "conformance/generator.h"
#include "conformance/problem.h"
#include "regard/attention.h"
#include "small_call.h"
#include "tests/support/allocations.h"

// Forward with what it saves, and backward.

namespace regard::test {
namespace {

constexpr regard_dtype kF32 = {REGARD_DTYPE_FLOAT, 32, 1};

// The gradients of a SmallCall whose forward wrote saved_stats; every one starts as 7.
struct SmallGradients {
  explicit SmallGradients(SmallCall& call)
      : d_out(call.out.size()), d_q(call.out.size(), 7.0f), d_k(d_q), d_v(d_q) {
    for (std::size_t i = 0; i < d_out.size(); ++i) d_out[i] = static_cast<float>(i % 3) - 1.0f;
    float* const data[4] = {d_out.data(), d_q.data(), d_k.data(), d_v.data()};
    for (int i = 0; i < 4; ++i) tensors[i] = regard_make_tensor(data[i], kF32, 4, call.shape);
    gradients.saved = &call.saved_tensor;
    gradients.saved_kind = REGARD_SAVED_STATS;
    gradients.d_out = &tensors[0];
    gradients.d_q = &tensors[1];
    gradients.d_k = &tensors[2];
    gradients.d_v = &tensors[3];
  }
  SmallGradients(const SmallGradients&) = delete;
  SmallGradients& operator=(const SmallGradients&) = delete;
  bool untouched() const {
    const std::vector<float> sevens(d_q.size(), 7.0f);
    return d_q == sevens && d_k == sevens && d_v == sevens;
  }
  bool same(const SmallGradients& other) const {
    return d_q == other.d_q && d_k == other.d_k && d_v == other.d_v;
  }

  std::vector<float> d_out, d_q, d_k, d_v;
  regard_tensor tensors[4];
  regard_gradients gradients = regard_gradients_default();
};

// A forward that ran, and the gradients of its backward.
struct Trained {
  explicit Trained(regard_context* context) {
    call.need_grad();
    status = regard_attention(context, &call.request, nullptr, nullptr);
  }
  SmallCall call;
  SmallGradients back{call};
  regard_status status = REGARD_STATUS_INTERNAL;
};

// Forward and backward of one problem as a C caller makes them; the code of what failed first.
regard_status both_directions(regard_context* context, conformance::Problem& problem) {
  CRequest request(problem.request());
  const regard_status status = regard_attention(context, request.get(), nullptr, nullptr);
  if (status != REGARD_STATUS_OK) return status;
  problem.begin_backward();
  CGradients gradients(problem.request());
  return regard_attention_backward(context, request.get(), gradients.get(), nullptr, nullptr);
}

Status both_directions(Context& context, conformance::Problem& problem) {
  const Status status = attention(context, problem.request());
  if (!status.ok()) return status;
  problem.begin_backward();
  return attention_backward(context, problem.request());
}

// Every field of regard_gradients: bias, sinks, d_lse, delta, both kinds of statistics, dropout.
TEST(CBackward, ComputesWhatTheCxxCallsDo) {
  const ContextHandle context = make_c_context();
  Context cxx_context;
  int computed = 0, biases = 0, sinks = 0, from_lse = 0, deltas = 0, d_lses = 0;
  for (std::uint64_t n = 0; n < 400; ++n) {
    const Case c = conformance::random_grad_case(5, n);
    conformance::Problem problem = conformance::make_problem(c);
    const Status expected = both_directions(cxx_context, problem);
    const std::vector<unsigned char> bytes = problem.output_bytes();
    problem.reset_outputs();
    const regard_status status = both_directions(context.get(), problem);
    ASSERT_EQ(static_cast<int>(status), static_cast<int>(expected.code())) << to_string(c);
    if (status != REGARD_STATUS_OK) {
      EXPECT_EQ(regard_last_error(), expected.message());
      continue;
    }
    EXPECT_EQ(problem.output_bytes(), bytes) << to_string(c);
    EXPECT_EQ(problem.check_memory(), "") << to_string(c);
    const GradBuffers& g = problem.request();
    ++computed;
    biases += g.d_bias.present() ? 1 : 0;
    sinks += g.d_sinks.present() ? 1 : 0;
    from_lse += g.saved.kind == SavedContext::Kind::kLse ? 1 : 0;
    deltas += g.delta.present() ? 1 : 0;
    d_lses += g.d_lse.present() ? 1 : 0;
  }
  EXPECT_GT(computed, 300);
  for (const int count : {biases, sinks, from_lse, deltas, d_lses}) EXPECT_GT(count, 10);
}

TEST(CBackward, OnAPlanAllocatesNothingAndUsesTheStatedWorkspace) {
  const ContextHandle context = make_c_context();
  Trained whole(context.get()), planned(context.get());
  ASSERT_EQ(whole.status, REGARD_STATUS_OK) << regard_last_error();
  ASSERT_EQ(regard_attention_backward(context.get(), &whole.call.request, &whole.back.gradients,
                                      nullptr, nullptr),
            REGARD_STATUS_OK)
      << regard_last_error();
  EXPECT_FALSE(whole.back.untouched());

  const PlanHandle plan = make_c_plan(context.get(), &planned.call.request);
  ASSERT_NE(plan, nullptr) << regard_last_error();
  CScratch scratch(plan.get(), regard_plan_backward_workspace_bytes);
  ASSERT_GT(scratch.launch.workspace_bytes, 0u);
  const auto run = [&] {
    return regard_execute_backward(plan.get(), &planned.call.request, &planned.back.gradients,
                                   &scratch.launch);
  };
  ASSERT_EQ(run(), REGARD_STATUS_OK) << regard_last_error();  // starts threads
  EXPECT_TRUE(planned.back.same(whole.back));
  const AllocationCounter counter;
  const regard_status status = run();
  const std::uint64_t count = counter.count();
  EXPECT_EQ(status, REGARD_STATUS_OK);
  EXPECT_EQ(count, 0u);

  --scratch.launch.workspace_bytes;
  EXPECT_EQ(run(), REGARD_STATUS_WORKSPACE);
  EXPECT_NE(std::string(regard_last_error()).find("bytes, expected at least"), std::string::npos)
      << regard_last_error();
}

TEST(CBackward, APairsPlanHoldsWhateverThePolicyIsNow) {
  const ContextHandle context = make_c_context();
  Trained trained(context.get());
  const regard_policy math = only_policy("math"), none = only_policy("cudnn");
  const PlanHandle plan = make_c_plan(context.get(), &trained.call.request, &math);
  ASSERT_NE(plan, nullptr) << regard_last_error();
  ASSERT_EQ(regard_context_set_policy(context.get(), &none), REGARD_STATUS_OK);
  const auto run = [&] {
    return regard_attention_backward(context.get(), &trained.call.request, &trained.back.gradients,
                                     nullptr, nullptr);
  };
  EXPECT_EQ(run(), REGARD_STATUS_NO_BACKEND);
  EXPECT_TRUE(trained.back.untouched());
  trained.back.gradients.plan = plan.get();
  EXPECT_EQ(run(), REGARD_STATUS_OK) << regard_last_error();
  EXPECT_FALSE(trained.back.untouched());
}

TEST(CBackward, APolicyRestrictsWhatComputesIt) {
  const ContextHandle context = make_c_context();
  Trained trained(context.get());
  const regard_policy math = only_policy("math"), flash = only_policy("flash");
  const PlanHandle plan = make_c_plan(context.get(), &trained.call.request, &math);
  ASSERT_NE(plan, nullptr) << regard_last_error();
  const auto run = [&](const regard_policy& policy) {
    return regard_attention_backward(context.get(), &trained.call.request, &trained.back.gradients,
                                     &policy, nullptr);
  };
  trained.back.gradients.plan = plan.get();
  EXPECT_EQ(run(flash), REGARD_STATUS_NO_BACKEND);
  EXPECT_NE(std::string(regard_last_error()).find("the forward ran on math"), std::string::npos)
      << regard_last_error();
  EXPECT_EQ(run(only_policy("quick")), REGARD_STATUS_NOT_FOUND);
  EXPECT_TRUE(trained.back.untouched());
  EXPECT_EQ(run(math), REGARD_STATUS_OK) << regard_last_error();
  EXPECT_FALSE(trained.back.untouched());
  trained.back.gradients.plan = nullptr;
  EXPECT_EQ(run(flash), REGARD_STATUS_OK) << regard_last_error();
}

TEST(CBackward, APlanWithoutGradientsIsRefused) {
  const ContextHandle context = make_c_context();
  Trained trained(context.get());
  SmallCall forward;
  const PlanHandle plan = make_c_plan(context.get(), &forward.request);
  std::size_t bytes = 1;
  EXPECT_EQ(regard_plan_backward_workspace_bytes(plan.get(), &bytes), REGARD_STATUS_OK);
  EXPECT_EQ(bytes, 0u);
  EXPECT_EQ(
      regard_execute_backward(plan.get(), &trained.call.request, &trained.back.gradients, nullptr),
      REGARD_STATUS_INVALID_ARGUMENT);
  EXPECT_NE(std::string(regard_last_error()).find("must be made with needs_grad"),
            std::string::npos)
      << regard_last_error();
  EXPECT_TRUE(trained.back.untouched());
}

// What the backward call refused, in its words.
template <class Change>
std::string refusal(Change change) {
  const ContextHandle context = make_c_context();
  Trained trained(context.get());
  change(trained);
  const regard_status status = regard_attention_backward(context.get(), &trained.call.request,
                                                         &trained.back.gradients, nullptr, nullptr);
  EXPECT_NE(status, REGARD_STATUS_OK);
  EXPECT_TRUE(trained.back.untouched());
  return regard_last_error();
}

TEST(CBackward, WhatIsWrongIsNamed) {
  EXPECT_EQ(refusal([](Trained& t) { t.back.gradients.saved_kind = regard_saved_kind(3); }),
            "[regard_attention_backward] saved_kind (3) must be 0..2");
  EXPECT_EQ(refusal([](Trained& t) { t.back.gradients.reserved = 1; }),
            "[regard_attention_backward] reserved (1) must be 0");
  EXPECT_EQ(refusal([](Trained& t) { t.back.tensors[1].ndim = 7; }),
            "[regard_attention_backward] ndim of d_q (7) must be 1..4");
  EXPECT_EQ(refusal([](Trained& t) {
              t.back.gradients.saved_kind = REGARD_SAVED_NONE;
            }).rfind("[execute_backward] saved.kind (0) must be 1", 0),
            0u);
  EXPECT_EQ(refusal([](Trained& t) {
              t.back.tensors[3].data = t.back.d_k.data();
            }).rfind("[execute_backward] d_k f32[2,4,8,16]", 0),
            0u);
  EXPECT_EQ(refusal([](Trained& t) {
              t.call.request.dropout_p = 0.5;
              t.call.request.rng_seed = 3;
            }),
            "[execute_backward] rng_seed (3) must be saved.rng_seed, 0");
}

TEST(CStructSize, OfGradients) {
  const ContextHandle context = make_c_context();
  Trained trained(context.get());
  // What lies past the end of an older struct is not read.
  trained.back.gradients.struct_size = offsetof(regard_gradients, saved_kind);
  EXPECT_NE(regard_attention_backward(context.get(), &trained.call.request, &trained.back.gradients,
                                      nullptr, nullptr),
            REGARD_STATUS_OK);
  EXPECT_NE(std::string(regard_last_error()).find("saved.kind (0)"), std::string::npos)
      << regard_last_error();
  for (const std::size_t size : {std::size_t{0}, sizeof(regard_gradients) + 4}) {
    EXPECT_EQ(refusal([&](Trained& t) { t.back.gradients.struct_size = size; }),
              "[regard_attention_backward] struct_size of gradients (" + std::to_string(size) +
                  ") must be its sizeof, " + std::to_string(sizeof(regard_gradients)) +
                  " in regard " + version());
  }
  struct Larger {
    regard_gradients known;
    const void* later[2] = {nullptr, nullptr};
  } larger{trained.back.gradients};
  larger.known.struct_size = sizeof(larger);
  EXPECT_EQ(regard_attention_backward(context.get(), &trained.call.request, &larger.known, nullptr,
                                      nullptr),
            REGARD_STATUS_OK)
      << regard_last_error();
  larger.later[0] = &larger;
  EXPECT_EQ(regard_attention_backward(context.get(), &trained.call.request, &larger.known, nullptr,
                                      nullptr),
            REGARD_STATUS_INVALID_ARGUMENT);
  EXPECT_NE(std::string(regard_last_error()).find("of a field that regard"), std::string::npos)
      << regard_last_error();
}

}  // namespace
}  // namespace regard::test
