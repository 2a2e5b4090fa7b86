#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "regard/attention.h"

// What the examples with an executor share: an executor decides when and on which thread a worker
// runs, and no bit of a result depends on that.

namespace example {

/// Attention of a case's sizes on tensors of small, varied numbers.
class Problem {
 public:
  explicit Problem(const regard::AttentionParams& params) {
    const std::int64_t b = params.batch, d = params.head_dim_qk, sq = params.seqlen_q;
    request_.q = fill(q_, {b, params.num_heads_q, sq, d}, 1);
    request_.k = fill(k_, {b, params.num_heads_kv, params.seqlen_kv, d}, 2);
    request_.v = fill(v_, {b, params.num_heads_kv, params.seqlen_kv, d}, 3);
    request_.out = fill(out_, {b, params.num_heads_q, sq, d}, 0);
    request_.options.is_causal = params.window_right == 0;
    request_.options.diagonal = params.diagonal;
  }

  const regard::AttentionRequest& request() const { return request_; }

  /// out after a call in this context, on `executor` or, where it is null, on the context's
  /// threads.
  regard::Expected<std::vector<float>> run(regard::Context& context, regard::Executor* executor) {
    regard::Launch launch;
    launch.executor = executor;
    const regard::Status status = regard::attention(context, request_, {}, launch);
    if (!status.ok()) return status;
    return out_;
  }

 private:
  static regard::TensorView fill(std::vector<float>& data, const std::int64_t (&shape)[4],
                                 std::uint32_t seed) {
    data.resize(static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3]));
    for (float& x : data) {
      seed = seed * 1664525u + 1013904223u;
      x = static_cast<float>(seed >> 8) * 0x1p-23f - 1.0f;
    }
    return regard::make_view(data.data(), shape);
  }

  std::vector<float> q_, k_, v_, out_;
  regard::AttentionRequest request_;
};

inline bool failed(const regard::Status& status) {
  std::printf("%s\n", status.to_string().c_str());
  return false;
}

/// Computes a case on the context's own threads and on `executor`; prints what came out. True where
/// the plan has several workers and all bits are the same.
inline bool gives_the_same_bits(regard::Context& context, regard::Executor& executor,
                                const char* text) {
  Problem problem(regard::parse_case(text)->params);
  const auto plan = regard::plan(context, regard::describe(problem.request()).value());
  if (!plan) return failed(plan.status());
  const auto expected = problem.run(context, nullptr);
  if (!expected) return failed(expected.status());
  const auto found = problem.run(context, &executor);
  if (!found) return failed(found.status());
  const std::size_t bytes = found->size() * sizeof(float);
  const bool same = std::memcmp(expected->data(), found->data(), bytes) == 0;
  std::printf("%s: %s, %d workers, %s\n", text, plan->kernel().kernel.c_str(),
              static_cast<int>(plan->kernel().workers), same ? "the same bits" : "OTHER BITS");
  return same && plan->kernel().workers > 1;
}

/// The same for a prefill and for a decode.
inline bool gives_the_same_bits(regard::Executor& executor) {
  regard::Env env = regard::read_env();
  env.concurrency = 4;  // workers of a plan, whatever this machine has
  regard::Context context(env);
  return gives_the_same_bits(context, executor, "b2 hq8 hkv2 sq200 d64 f32 causal") &&
         gives_the_same_bits(context, executor, "b3 hq8 hkv2 sq1 skv3000 d64 f32");
}

}  // namespace example
