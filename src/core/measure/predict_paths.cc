#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "base/message.h"
#include "core/measure/mean_sequence.h"
#include "regard/machine_rates.h"
#include "regard/padding.h"

// What each way to compute sequences of several lengths costs: the forward of FLASH, with what
// copies and cleared rows add. predict_time() (predict_time.cc) predicts a call of any backend.

namespace regard {
namespace {

/// What a path does, before any rate is applied.
struct PathWork {
  double operations = 0.0;
  double bytes = 0.0;      // of rows that the kernel reads and writes
  double cleared = 0.0;    // of positions without a row that it clears
  double copied = 0.0;     // that copies between padded and packed tensors read and write
  double footprint = 0.0;  // of the caller's tensors
};

PathWork work_of(const AttentionParams& p, const MeanSide& q, const MeanSide& kv,
                 PaddingPath path) {
  const TokenBytes row = token_bytes(p);
  const bool is_packed = p.features.has(Feature::kPacked);
  const bool masked = path == PaddingPath::kMask;
  PathWork work;
  const double pairs =
      masked ? visible_pairs(p, q.extent, kv.extent) : visible_pairs(p, q.length, kv.length);
  work.operations = pairs * static_cast<double>(p.batch) * static_cast<double>(p.num_heads_q) *
                    2.0 * static_cast<double>(p.head_dim_qk + p.head_dim_v);
  const double rows_q = masked ? q.positions : q.rows;
  work.bytes =
      rows_q * (row.q + row.out) + (masked ? kv.positions * (row.kv + 1.0) : kv.rows * row.kv);
  if (path == PaddingPath::kLengths) work.cleared = (q.positions - q.rows) * row.out;
  work.footprint = is_packed ? q.rows * (row.q + row.out) + kv.rows * row.kv
                             : q.positions * (row.q + row.out) + kv.positions * row.kv;
  if (is_packed != (path == PaddingPath::kPacked)) {
    // unpad reads and writes the rows; pad reads them and writes every position.
    const double in_q = is_packed ? q.rows + q.positions : 2.0 * q.rows;
    const double in_kv = is_packed ? kv.rows + kv.positions : 2.0 * kv.rows;
    const double back = is_packed ? 2.0 * q.rows : q.rows + q.positions;
    work.copied = in_q * row.q + in_kv * row.kv + back * row.out;
  }
  return work;
}

// Fitted to bench/padding.py (Zen 4, two threads, f32, 120 cells), where the path that these choose
// is within 5 % of the better one in 113.
constexpr double kPeakShare = 0.85;  // of the peak, where arithmetic takes longer than memory
// Of the rate from memory: what a kernel reads and writes, which it prefetches; copies, where all
// tensors fit a cache and where they are far larger; positions without a row that are cleared.
constexpr double kReadRate = 0.85;
constexpr double kCachedCopyRate = 0.85;
constexpr double kCopyRate = 0.38;
constexpr double kClearRate = 0.25;
constexpr double kCachedBytes = 2e7;
constexpr double kCallSeconds = 3e-6;

/// The predictor: the time of a path's work at these rates.
double predict(const PathWork& work, double gflops, double gbps) {
  const double cached = std::min(1.0, kCachedBytes / std::max(work.footprint, 1.0));
  const double copy_rate = std::max(kCopyRate, kCachedCopyRate * cached);
  const double computing = work.operations / (kPeakShare * gflops * 1e9);
  const double reading = work.bytes / (kReadRate * gbps * 1e9);
  return kCallSeconds + std::max(computing, reading) +
         (work.copied / copy_rate + work.cleared / kClearRate) / (gbps * 1e9);
}

}  // namespace

const char* to_string(PaddingPath path) noexcept {
  constexpr const char* kNames[] = {"lengths", "mask", "packed"};
  const auto i = static_cast<std::size_t>(path);
  return i < std::size(kNames) ? kNames[i] : "?";
}

const char* to_string(PaddingPolicy policy) noexcept {
  constexpr const char* kNames[] = {"auto", "padded", "packed"};
  const auto i = static_cast<std::size_t>(policy);
  return i < std::size(kNames) ? kNames[i] : "?";
}

Expected<PaddingPolicy> parse_padding_policy(const std::string& name) {
  for (const PaddingPolicy policy :
       {PaddingPolicy::kAuto, PaddingPolicy::kPadded, PaddingPolicy::kPacked}) {
    if (name == to_string(policy)) return policy;
  }
  return invalid("parse_padding_policy", "padding (", name, ") must be auto, padded or packed");
}

std::vector<PathPrediction> predict_paths(const AttentionParams& params,
                                          const MachineRates& rates) {
  const bool is_packed = params.features.has(Feature::kPacked);
  const bool has_lengths =
      params.features.has(Feature::kSeqlensQ) || params.features.has(Feature::kSeqlensKv);
  const FeatureSet without_cache = params.features.without(
      {Feature::kPaged, Feature::kCacheBatchIdx, Feature::kCacheLeftpad, Feature::kTreeMask,
       Feature::kAppendKv, Feature::kRotary, Feature::kScales, Feature::kChannelScales});
  if (without_cache != params.features || (!is_packed && !has_lengths)) return {};
  if (params.device.type != DeviceType::kCpu) return {};  // the rates are a CPU's
  const MeanSide q = mean_queries(params), kv = mean_keys(params);
  const MachineRates typical = default_rates(rates.isa, rates.threads);
  const double measured = peak_gflops(rates, params);
  const double gflops = measured > 0.0 ? measured : peak_gflops(typical, params);
  const double gbps = rates.read_gbps > 0.0 ? rates.read_gbps : typical.read_gbps;
  std::vector<PathPrediction> paths;
  for (int i = 0; i < kPaddingPathCount; ++i) {
    const auto path = static_cast<PaddingPath>(i);
    const PathWork work = work_of(params, q, kv, path);
    paths.push_back({path, work.operations, work.bytes + work.copied, predict(work, gflops, gbps)});
  }
  return paths;
}

PaddingPath fastest_path(const std::vector<PathPrediction>& paths) noexcept {
  const PathPrediction* fastest = nullptr;
  for (const PathPrediction& path : paths) {
    if (fastest == nullptr || path.seconds < fastest->seconds) fastest = &path;
  }
  return fastest == nullptr ? PaddingPath::kLengths : fastest->path;
}

}  // namespace regard
