#include "tools/regard/run_backend.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "oracle/number.h"
#include "regard/work.h"
#include "tools/regard/timing.h"

namespace regard::cli {
namespace {

double element(const OwnedTensor& tensor, std::int64_t index) {
  const auto* bytes = static_cast<const unsigned char*>(tensor.bytes.data());
  return oracle::decode(bytes + index * size_of(tensor.dtype), tensor.dtype);
}

/// Sequence b's length out of an optional [B] tensor of i32.
std::int64_t length_of(const TensorView& lengths, std::int64_t b, std::int64_t extent) {
  if (!lengths.present()) return extent;
  return static_cast<const std::int32_t*>(lengths.data)[b * lengths.strides[0]];
}

/// No query of any head: the other extents may be huge.
bool is_empty(const AttentionParams& p) {
  return p.batch == 0 || p.num_heads_q == 0 || p.seqlen_q == 0;
}

}  // namespace

double TimedRuns::median_seconds() const { return median(seconds); }

std::int64_t Timing::max_runs() const { return repeat > 0 ? repeat : kUsualRuns; }

bool Timing::is_enough(std::int64_t runs, double seconds) const {
  constexpr double kEnoughSeconds = 2.0;
  return repeat == 0 && runs > 0 && seconds > kEnoughSeconds;
}

Expected<TimedRuns> time_runs(const Timing& timing, const std::function<Status()>& call) {
  TimedRuns runs;
  if (Status status = call(); !status) return status;
  const double begin = now_seconds();
  for (std::int64_t i = 0; i < timing.max_runs(); ++i) {
    const double start = now_seconds();
    if (timing.is_enough(i, start - begin)) break;
    if (Status status = call(); !status) return status;
    runs.seconds.push_back(now_seconds() - start);
    if (timing.after_each != nullptr) timing.after_each(timing.user);
  }
  return runs;
}

Policy narrowed_to(const Policy& policy, const BackendRef& backend) {
  Policy narrowed = policy;
  narrowed.only = std::vector<BackendRef>{backend};
  narrowed.prefer.reset();
  return narrowed;
}

Expected<BackendRun> run_on_backend(Context& context, const RunInput& input,
                                    const BackendRef& backend, const Policy& policy,
                                    const Timing& timing) {
  const Expected<Plan> made = plan(context, input.c.params, narrowed_to(policy, backend));
  if (!made) return made.status();
  Expected<RunOutputs> outputs = input.make_outputs();
  if (!outputs) return outputs.status();
  Expected<OwnedBytes> workspace = OwnedBytes::make(made->workspace_bytes(), "the workspace");
  if (!workspace) return workspace.status();

  BackendRun run;
  run.backend = backend;
  run.kernel = made->kernel();
  run.workspace_bytes = made->workspace_bytes();
  run.outputs = *std::move(outputs);
  const AttentionRequest request = input.with(run.outputs);
  Launch launch;
  launch.executor = &context.executor();
  launch.workspace = {workspace->data(), static_cast<std::size_t>(workspace->size())};
  Expected<TimedRuns> timed = time_runs(timing, [&] { return execute(*made, request, launch); });
  if (!timed) return timed.status();
  static_cast<TimedRuns&>(run) = *std::move(timed);
  return run;
}

PaddingCheck check_padding(const RunInput& input, const RunOutputs& outputs) {
  PaddingCheck check;
  const AttentionParams& p = input.c.params;
  if (is_empty(p)) return check;
  const std::int64_t row_stride = input.bshd ? p.num_heads_q * p.head_dim_v : p.head_dim_v;
  const std::int64_t head_stride = input.bshd ? p.head_dim_v : p.seqlen_q * p.head_dim_v;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const std::int64_t begin = length_of(input.request.seqlens_q, b, p.seqlen_q);
    for (std::int64_t h = 0; h < p.num_heads_q; ++h) {
      for (std::int64_t i = begin; i < p.seqlen_q; ++i) {
        const std::int64_t row =
            b * p.num_heads_q * p.seqlen_q * p.head_dim_v + h * head_stride + i * row_stride;
        bool zero = true;
        for (std::int64_t d = 0; d < p.head_dim_v; ++d) {
          zero = zero && element(outputs.out, row + d) == 0.0;
        }
        const double lse = element(outputs.lse, (b * p.num_heads_q + h) * p.seqlen_q + i);
        ++check.rows;
        if (!zero || lse != -std::numeric_limits<double>::infinity()) ++check.wrong;
      }
    }
  }
  return check;
}

double largest_difference(const RunOutputs& a, const RunOutputs& b) {
  const std::int64_t count = a.out.bytes.size() / size_of(a.out.dtype);
  double largest = 0.0;
  double scale = 0.0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double x = element(a.out, i);
    const double y = element(b.out, i);
    if (x == y || (std::isnan(x) && std::isnan(y))) {
      if (std::isfinite(x)) scale = std::max(scale, std::abs(x));
      continue;
    }
    if (!std::isfinite(x) || !std::isfinite(y)) return std::numeric_limits<double>::infinity();
    scale = std::max(scale, std::abs(x));
    largest = std::max(largest, std::abs(x - y));
  }
  return largest == 0.0 ? 0.0 : largest / scale;
}

double kv_bytes(const RunInput& input) {
  const AttentionParams& p = input.c.params;
  if (is_empty(p)) return 0.0;
  double keys = 0.0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    keys += static_cast<double>(length_of(input.request.seqlens_kv, b, p.seqlen_kv));
  }
  const std::int64_t width = bytes_of(p.dtype_k, p.head_dim_qk) + bytes_of(p.dtype_v, p.head_dim_v);
  return keys * static_cast<double>(p.num_heads_kv * width);
}

double flop_count(const RunInput& input) {
  return forward_work(input.c.params, input.request).operations;
}

double backward_flop_count(const RunInput& input) {
  return backward_work(input.c.params, input.request, {}).operations;
}

}  // namespace regard::cli
