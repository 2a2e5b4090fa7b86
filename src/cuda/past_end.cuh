#pragma once

#include <cstdint>

#include "cuda/element.cuh"
#include "cuda/grad_rows.cuh"
#include "cuda/tasks.cuh"

// Rows of packed tensors behind the last sequence: outputs and gradients are 0 there, lse is -inf.

namespace regard::cuda {

/// A tensor of `total` rows; those past the end get `value` in each of `columns` neighbours.
struct PackedTensor {
  View view{};
  std::int64_t heads = 0, total = 0, columns = 0;
  float value = 0.0f;
};

struct PastEndArgs {
  static constexpr int kMax = 4;
  PackedTensor tensors[kMax];
  std::int64_t count = 0;
  std::int64_t batch = 0;

  static void add(const View& view, std::int64_t heads, std::int64_t total, std::int64_t columns,
                  float value, PastEndArgs* args) {
    if (!view.present || view.starts.data == nullptr) return;
    args->tensors[args->count++] = {view, heads, total, columns, value};
  }
};

/// A block has a share of the rows of all heads of one tensor: mostly there are none.
struct PastEndKernel {
  using Args = PastEndArgs;
  static constexpr int kThreads = cuda::kThreads;
  static constexpr int kBlocks = 4;
  static constexpr int kSharedBytes = 16;  // not used
  static constexpr std::int64_t kShares = 64;

  REGARD_KERNEL_FN std::int64_t count_tasks(const Args& args) { return args.count * kShares; }

  template <class Block>
  REGARD_DEVICE_FN void run(const Block& block, const Args& args) {
    for_each_task(block, count_tasks(args), [&](std::int64_t task) {
      const PackedTensor& t = args.tensors[task / kShares];
      const std::int64_t end = problem::row_start(t.view.starts, args.batch);
      const std::int64_t first = semantics::clamp(end, 0, t.total);
      const std::int64_t rows = (t.total - first) * t.heads,
                         bytes = problem::element_bytes(t.view.type);
      for (std::int64_t n = task % kShares; n < rows; n += kShares) {
        const std::int64_t row = first + n / t.heads, head = n % t.heads;
        char* const to = t.view.data + (row * t.view.stride[2] + head * t.view.stride[1]) * bytes;
        for (std::int64_t c = block.thread(); c < t.columns; c += kThreads) {
          store_element(t.view.type, to, c, t.value);
        }
      }
    });
  }
};

template <class Runner>
void run_past_end(Runner& run, const PastEndArgs& args) {
  if (args.count > 0) run.template launch<PastEndKernel>(args, PastEndKernel::count_tasks(args));
}

/// Of a forward's outputs.
template <class Runner>
void clear_outputs_past_end(Runner& run, const Problem& p) {
  constexpr float kMinusInfinity = -__builtin_inff();
  PastEndArgs args;
  args.batch = p.batch;
  PastEndArgs::add(p.out, p.num_heads_q, p.total_q, p.head_dim_v, 0.0f, &args);
  PastEndArgs::add(p.lse, p.num_heads_q, p.total_q, 1, kMinusInfinity, &args);
  PastEndArgs::add(p.stats, p.num_heads_q, p.total_q, 1, kMinusInfinity, &args);
  View sums = p.stats;
  sums.data += p.stats.stride[3] * problem::element_bytes(p.stats.type);
  PastEndArgs::add(sums, p.num_heads_q, p.total_q, 1, 0.0f, &args);
  run_past_end(run, args);
}

/// Of gradients.
template <class Runner>
void clear_gradients_past_end(Runner& run, const GradProblem& g) {
  const Problem& p = g.problem;
  PastEndArgs args;
  args.batch = p.batch;
  PastEndArgs::add(g.d_q, p.num_heads_q, p.total_q, p.head_dim_qk, 0.0f, &args);
  PastEndArgs::add(g.d_k, p.num_heads_kv, p.total_kv, p.head_dim_qk, 0.0f, &args);
  PastEndArgs::add(g.d_v, p.num_heads_kv, p.total_kv, p.head_dim_v, 0.0f, &args);
  run_past_end(run, args);
}

}  // namespace regard::cuda
