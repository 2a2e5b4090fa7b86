#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "c_request.h"
#include "regard/context.h"

namespace regard::test {

struct DestroyContext {
  void operator()(regard_context* context) const { regard_context_destroy(context); }
};
using ContextHandle = std::unique_ptr<regard_context, DestroyContext>;

/// Of two workers on a machine of one CPU, too: executors are called for two.
inline ContextHandle make_c_context() {
  setenv("REGARD_NUM_THREADS", "2", 0);
  regard_context* context = nullptr;
  if (regard_context_create(&context) != REGARD_STATUS_OK) return nullptr;
  return ContextHandle(context);
}

struct DestroyPlan {
  void operator()(regard_plan* plan) const { regard_plan_destroy(plan); }
};
using PlanHandle = std::unique_ptr<regard_plan, DestroyPlan>;

inline PlanHandle make_c_plan(regard_context* context, const regard_request* request,
                              const regard_policy* policy = nullptr) {
  regard_plan* plan = nullptr;
  if (regard_plan_create(context, request, policy, &plan) != REGARD_STATUS_OK) return nullptr;
  return PlanHandle(plan);
}

/// The default policy with one backend that alone may run.
inline regard_policy only_policy(const char* backend) {
  regard_policy policy = regard_policy_default();
  policy.only = backend;
  return policy;
}

/// A causal problem [2,4,seqlen,16] as a C caller writes it; values differ by position.
struct SmallCall {
  explicit SmallCall(std::int64_t seqlen = 8)
      : q(static_cast<std::size_t>(2 * 4 * seqlen * 16)),
        k(q.size()),
        v(q.size()),
        out(q.size(), 7.0f),
        shape{2, 4, seqlen, 16} {
    for (std::size_t i = 0; i < q.size(); ++i) {
      q[i] = static_cast<float>(i % 7) * 0.25f;
      k[i] = static_cast<float>(i % 5) * 0.5f;
      v[i] = static_cast<float>(i % 11);
    }
    request.q = &tensors[0];
    request.k = &tensors[1];
    request.v = &tensors[2];
    request.out = &tensors[3];
    request.is_causal = 1;
  }
  /// Asks for a pair, and for what its backward needs.
  void need_grad() {
    saved.assign(static_cast<std::size_t>(2 * 4 * shape[2] * 2), 7.0f);
    request.saved_stats = &saved_tensor;
    saved_tensor.data = saved.data();
    request.needs_grad = 1;
  }
  SmallCall(const SmallCall&) = delete;
  SmallCall& operator=(const SmallCall&) = delete;

  /// The same in C++, with `output`, resized, as out.
  AttentionRequest cxx(std::vector<float>& output) const {
    AttentionRequest same;
    output.resize(out.size());
    same.q = make_view(q.data(), {2, 4, shape[2], 16});
    same.k = make_view(k.data(), {2, 4, shape[2], 16});
    same.v = make_view(v.data(), {2, 4, shape[2], 16});
    same.out = make_view(output.data(), {2, 4, shape[2], 16});
    same.options.is_causal = true;
    return same;
  }
  bool untouched() const {
    for (const float x : out) {
      if (x != 7.0f) return false;
    }
    return true;
  }

  std::vector<float> q, k, v, out, saved;
  std::int64_t shape[4];
  std::int64_t saved_shape[4] = {2, 4, shape[2], 2};
  regard_tensor saved_tensor =
      regard_make_tensor(nullptr, {REGARD_DTYPE_FLOAT, 32, 1}, 4, saved_shape);
  regard_tensor tensors[4] = {
      regard_make_tensor(q.data(), {REGARD_DTYPE_FLOAT, 32, 1}, 4, shape),
      regard_make_tensor(k.data(), {REGARD_DTYPE_FLOAT, 32, 1}, 4, shape),
      regard_make_tensor(v.data(), {REGARD_DTYPE_FLOAT, 32, 1}, 4, shape),
      regard_make_tensor(out.data(), {REGARD_DTYPE_FLOAT, 32, 1}, 4, shape)};
  regard_request request = regard_request_default();
};

/// Memory of the plan's size, 64-byte aligned, in a launch. `bytes_of` is the function that states
/// the size.
struct CScratch {
  explicit CScratch(const regard_plan* plan,
                    regard_status (*bytes_of)(const regard_plan*,
                                              size_t*) = regard_plan_workspace_bytes) {
    bytes_of(plan, &launch.workspace_bytes);
    memory.resize(launch.workspace_bytes + 64);
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    launch.workspace = memory.data() + (64 - address % 64) % 64;
  }
  std::vector<char> memory;
  regard_launch launch = regard_launch_default();
};

}  // namespace regard::test
