#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "base/message.h"
#include "regard/machine_rates.h"
#include "regard/padding.h"
#include "semantics/row_bounds.h"

// What each way to compute sequences of several lengths costs. predict() is the only place that
// turns operations and bytes into a time.

namespace regard {
namespace {

/// The sequences of one side: all of the mean length.
struct Side {
  double rows = 0.0;       // that hold tokens
  double positions = 0.0;  // of the padded tensor
  std::int64_t length = 0;
  std::int64_t extent = 0;
};

Side side_of(const AttentionParams& p, std::int64_t extent, std::int64_t tokens) {
  Side side;
  const double batch = static_cast<double>(p.batch);
  side.extent = extent;
  side.positions = batch * static_cast<double>(extent);
  side.rows = tokens > 0 ? std::min(static_cast<double>(tokens), side.positions) : side.positions;
  side.length = p.batch == 0 ? 0 : static_cast<std::int64_t>(side.rows / batch + 0.5);
  return side;
}

/// Pairs of a query and a visible key of one sequence. visible_keys() is piecewise linear, so the
/// mean over some queries in equal steps is that over all.
double pairs_of(const AttentionParams& p, std::int64_t len_q, std::int64_t len_kv) {
  const double rows = static_cast<double>(len_q);
  if (p.window_left < 0 && p.window_right < 0) return rows * static_cast<double>(len_kv);
  semantics::Band band;
  band.window_left = p.window_left;
  band.window_right = p.window_right;
  band.len_kv = len_kv;
  if (p.diagonal == Diagonal::kBottomRight) {
    band.shift = semantics::bottom_right_shift(len_q, len_kv);
  }
  constexpr std::int64_t kSamples = 64;
  const std::int64_t samples = std::min(len_q, kSamples);
  double visible = 0.0;
  for (std::int64_t i = 0; i < samples; ++i) {
    const double at = (static_cast<double>(i) + 0.5) * rows / static_cast<double>(samples);
    const semantics::KeyRange keys = semantics::visible_keys(band, static_cast<std::int64_t>(at));
    if (!is_empty(keys)) visible += static_cast<double>(keys.hi - keys.lo);
  }
  return samples == 0 ? 0.0 : visible / static_cast<double>(samples) * rows;
}

/// Bytes of the rows of all tensors of a side.
struct RowBytes {
  double q, kv, out;
};

RowBytes row_bytes(const AttentionParams& p) {
  const auto bytes = [](std::int64_t heads, std::int64_t width, Dtype dtype) {
    return static_cast<double>(heads) * static_cast<double>(bytes_of(dtype, width));
  };
  return {bytes(p.num_heads_q, p.head_dim_qk, p.dtype_q),
          bytes(p.num_heads_kv, p.head_dim_qk, p.dtype_k) +
              bytes(p.num_heads_kv, p.head_dim_v, p.dtype_v),
          bytes(p.num_heads_q, p.head_dim_v, p.dtype_out)};
}

/// What a path does, before any rate is applied.
struct PathWork {
  double operations = 0.0;
  double bytes = 0.0;      // of rows that the kernel reads and writes
  double cleared = 0.0;    // of positions without a row that it clears
  double copied = 0.0;     // that copies between padded and packed tensors read and write
  double footprint = 0.0;  // of the caller's tensors
};

PathWork work_of(const AttentionParams& p, const Side& q, const Side& kv, PaddingPath path) {
  const RowBytes row = row_bytes(p);
  const bool is_packed = p.features.has(Feature::kPacked);
  const bool masked = path == PaddingPath::kMask;
  PathWork work;
  const double pairs = masked ? pairs_of(p, q.extent, kv.extent) : pairs_of(p, q.length, kv.length);
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
  const Side q = side_of(params, params.seqlen_q, is_packed ? params.total_q : params.tokens_q);
  const Side kv = side_of(params, params.seqlen_kv, is_packed ? params.total_kv : params.tokens_kv);
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
