#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/measure/call_counts.h"
#include "core/measure/mean_sequence.h"
#include "regard/cost.h"

// What a call would take with keys and values of another format.

namespace regard {
namespace {

/// The problem with keys and values of `dtype`, and a scale for each row where it has scales.
AttentionParams with_format(const AttentionParams& params, Dtype dtype) {
  AttentionParams at = params;
  at.dtype_k = dtype;
  at.dtype_v = dtype;
  at.features.set(Feature::kChannelScales, false);
  at.features.set(Feature::kScales, is_quantised(dtype));
  at.features.set(Feature::kScalesPerToken, is_quantised(dtype));
  return at;
}

/// What the lengths of sequences were is not said of other lengths.
AttentionParams with_keys(AttentionParams params, std::int64_t keys) {
  params.seqlen_kv = keys;
  params.tokens_kv = 0;
  return params;
}

std::vector<Dtype> formats_for(const AttentionParams& params) {
  std::vector<Dtype> formats;
  if (params.dtype_q != Dtype::kBf16) formats.push_back(params.dtype_q);
  formats.insert(formats.end(), {Dtype::kBf16, Dtype::kI8, Dtype::kF8E4M3, Dtype::kF8E5M2});
  if (params.head_dim_qk % 2 == 0 && params.head_dim_v % 2 == 0) formats.push_back(Dtype::kU4);
  return formats;
}

bool is_cache_read(const AttentionParams& params) {
  const bool has_type = params.dtype_q == Dtype::kF32 || params.dtype_q == Dtype::kBf16 ||
                        params.dtype_q == Dtype::kF16;
  const CostKind kind = kind_of(params, false);
  return has_type && params.device.type == DeviceType::kCpu &&
         !params.features.has(Feature::kNeedsGrad) && !params.features.has(Feature::kDescales) &&
         (kind == CostKind::kDecode || kind == CostKind::kShort) &&
         params.seqlen_kv > params.seqlen_q;
}

}  // namespace

std::vector<CacheFormatPrediction> predict_cache_formats(const CostModel& model,
                                                         const BackendRef& backend,
                                                         const AttentionParams& params) {
  if (!is_cache_read(params)) return {};
  const auto seconds = [&](Dtype dtype, const AttentionParams& of) {
    return predict_time(model, backend, with_format(of, dtype), false).seconds;
  };
  const double bf16 = seconds(Dtype::kBf16, params);
  std::vector<CacheFormatPrediction> predictions;
  for (const Dtype dtype : formats_for(params)) {
    const double own = seconds(dtype, params);
    if (!(own > 0.0) || !(bf16 > 0.0)) return {};
    CacheFormatPrediction prediction{
        dtype, token_bytes(with_format(params, dtype)).kv, own, bf16 / own, {}};
    constexpr std::int64_t kMinKeys = 16;
    for (std::int64_t keys = CacheFormatPrediction::kMaxKeys; keys >= kMinKeys; keys /= 2) {
      const AttentionParams at = with_keys(params, keys);
      if (seconds(dtype, at) >= seconds(Dtype::kBf16, at)) break;
      prediction.faster_from = keys;
    }
    predictions.push_back(prediction);
  }
  return predictions;
}

}  // namespace regard
