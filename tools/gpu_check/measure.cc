#include "tools/gpu_check/measure.h"

#include <functional>
#include <memory>
#include <utility>

#include "tools/gpu_check/bench_case.h"
#include "tools/gpu_check/cudnn_direct.h"
#include "tools/gpu_check/device_rates.h"

namespace regard::gpu_check {
namespace {

/// The case's tensors with the plan of that backend, both ready to run; null, and why.
std::unique_ptr<BenchCase> prepare(const Bench& bench, const Case& c, const BackendRef& backend,
                                   std::string* error) {
  Expected<Plan> made = plan(bench.context, c.params, conformance::policy_for(c, backend));
  if (!made) {
    *error = made.status().to_string();
    return nullptr;
  }
  auto prepared = std::make_unique<BenchCase>(bench.memory, c.params, *std::move(made));
  *error = prepared->error();
  return error->empty() ? std::move(prepared) : nullptr;
}

double flops(const AttentionParams& p) {
  const double pairs = static_cast<double>(p.batch * p.num_heads_q) *
                       static_cast<double>(p.seqlen_q) * static_cast<double>(p.seqlen_kv);
  const double forward = 2.0 * pairs * static_cast<double>(p.head_dim_qk + p.head_dim_v);
  const double causal = p.features.has(Feature::kCausal) && p.seqlen_q > 1 ? 0.5 : 1.0;
  return forward * causal * (p.features.has(Feature::kNeedsGrad) ? 2.5 : 1.0);
}

/// Of q, k, v and out; the backward has a gradient of each besides.
double bytes(const AttentionParams& p) {
  const auto size = [&](std::int64_t heads, std::int64_t rows, std::int64_t dim, Dtype dtype) {
    return static_cast<double>(p.batch * heads) * static_cast<double>(rows * dim) *
           static_cast<double>(size_of(dtype));
  };
  const double all = size(p.num_heads_q, p.seqlen_q, p.head_dim_qk, p.dtype_q) +
                     size(p.num_heads_kv, p.seqlen_kv, p.head_dim_qk, p.dtype_k) +
                     size(p.num_heads_kv, p.seqlen_kv, p.head_dim_v, p.dtype_v) +
                     size(p.num_heads_q, p.seqlen_q, p.head_dim_v, p.dtype_out);
  return p.features.has(Feature::kNeedsGrad) ? 2.0 * all : all;
}

/// The message of the calls, or of the device once they are done.
std::string error_after(const Bench& bench, const BenchCase& prepared) {
  const std::string waited = bench.memory.wait();
  return prepared.error().empty() ? waited : prepared.error();
}

void measure_variants(const Bench& bench, const Case& c, const BackendRef& backend,
                      Timing* timing) {
  const Expected<Plan> usual = plan(bench.context, c.params, conformance::policy_for(c, backend));
  for (const std::string& name : usual ? usual->variants() : std::vector<std::string>()) {
    Expected<Plan> made = usual->with_variant(name);
    if (!made) continue;
    BenchCase prepared(bench.memory, c.params, *std::move(made));
    const Median median = median_time(bench.memory, bench.effort, [&] { prepared.execute(false); });
    timing->error = error_after(bench, prepared);
    if (!timing->error.empty()) return;
    timing->variants.emplace_back(name, flops(c.params) / median.ms * 1e-9);
  }
}

}  // namespace

Timing measure(const Bench& bench, const Case& c, const BackendRef& backend) {
  Timing timing;
  const auto prepared = prepare(bench, c, backend, &timing.error);
  if (prepared == nullptr) return timing;
  const bool backward = c.params.features.has(Feature::kNeedsGrad);
  timing.kernel = prepared->kernel(backward);
  timing.median = median_time(bench.memory, bench.effort, [&] { prepared->execute(backward); });
  timing.clock_mhz = sm_clock_mhz();
  timing.error = error_after(bench, *prepared);
  if (!timing.error.empty()) return timing;
  timing.tflops = flops(c.params) / timing.median.ms * 1e-9;
  timing.gbps = bytes(c.params) / timing.median.ms * 1e-6;
  if (!backward) measure_variants(bench, c, backend, &timing);
  return timing;
}

Comparison compare_with_cudnn(const Bench& bench, const Case& c, const BackendRef& backend,
                              bool backward) {
  Comparison comparison;
  const auto prepared = prepare(bench, c, backend, &comparison.error);
  if (prepared == nullptr) return comparison;
  DirectCall direct;
  if (bench.rehearse) {
    direct.run = [&] {
      prepared->execute(backward);
      return std::string();
    };
  } else {
    direct = make_direct_cudnn(c.params, prepared->request(), backward, bench.memory);
    comparison.error = direct.error;
    if (!direct.error.empty()) return comparison;
  }
  std::string refused;
  const Medians medians = median_times(
      bench.memory, bench.effort, [&] { prepared->execute(backward); },
      [&] {
        if (refused.empty()) refused = direct.run();
      });
  comparison.regard = medians.a;
  comparison.direct = medians.b;
  comparison.error = refused.empty() ? error_after(bench, *prepared) : refused;
  return comparison;
}

Overhead measure_overhead(const Bench& bench, const Case& c, const BackendRef& backend) {
  Overhead overhead;
  const auto prepared = prepare(bench, c, backend, &overhead.error);
  if (prepared == nullptr) return overhead;
  const Policy policy = conformance::policy_for(c, backend);
  const auto attend = [&] { prepared->attend(bench.context, policy); };
  attend();                                       // makes its plan
  prepared->attend(bench.context, policy, true);  // nothing else here leases
  overhead.attention_us = host_time(bench.memory, bench.effort, attend);
  overhead.execute_us = host_time(bench.memory, bench.effort, [&] { prepared->execute(false); });
  overhead.error = error_after(bench, *prepared);
  return overhead;
}

std::string launch_once(const Bench& bench, const Case& c, const BackendRef& backend) {
  std::string error;
  const auto prepared = prepare(bench, c, backend, &error);  // which runs the forward
  if (prepared == nullptr) return error;
  if (c.params.features.has(Feature::kNeedsGrad)) prepared->execute(true);
  return error_after(bench, *prepared);
}

}  // namespace regard::gpu_check
