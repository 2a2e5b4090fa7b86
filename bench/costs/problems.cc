#include "bench/costs/problems.h"

#include "regard/case.h"

namespace regard::bench {
namespace {

std::string words_of(const std::string& group, Draw* draw) {
  constexpr const char* kTypes[] = {"f32", "bf16", "f16"};
  constexpr const char* kCacheTypes[] = {"bf16 kv=i8 scales=token",
                                         "bf16 kv=f8e4m3 scales=token",
                                         "bf16 kv=u4",
                                         "f32 kv=i8 scales=token",
                                         "f32 kv=f8e5m2 scales=token",
                                         "f32 kv=u4",
                                         "f32 kv=bf16"};
  constexpr int kHeadDims[] = {32, 40, 64, 64, 80, 96, 128, 128, 192, 256};
  constexpr int kKvHeads[] = {1, 2, 3, 4, 8, 12};
  constexpr int kGroupSizes[] = {1, 1, 1, 2, 4, 8};
  constexpr const char* kMasks[] = {" causal diag=br", " window=127,0 diag=br", " mask",
                                    " bias",           " alibi causal diag=br", " softcap=30",
                                    " sinks"};
  const std::int64_t kv_heads = draw->one_of(kKvHeads);
  const std::int64_t heads = kv_heads * draw->one_of(kGroupSizes);
  std::int64_t batch = draw->whole(1, 4), sq = 0, skv = 0;
  std::string more;
  const bool is_cache = group == "cache";
  if (group == "decode" || group == "formats" || (is_cache && draw->whole(0, 3) != 0)) {
    sq = draw->whole(1, 3) == 1 ? draw->whole(2, 4) : 1;
    skv = draw->logarithmic(64, 32768);
  } else if (group == "short" || is_cache) {
    sq = draw->logarithmic(5, 80);
    skv = draw->whole(0, 1) == 0 ? sq : draw->logarithmic(16, 512);
    batch = draw->logarithmic(1, 64);
  } else {
    sq = draw->logarithmic(65, 2048);
    skv = draw->whole(0, 2) == 0 ? draw->logarithmic(64, 4096) : sq;
  }
  if (group == "masked") more = draw->one_of(kMasks);
  if (group == "prefill" && draw->whole(0, 1) == 0) more = " causal diag=br";
  if (group == "backward")
    more = draw->whole(0, 1) == 0 ? " grad saved" : " grad saved causal diag=br";
  const auto word = [](const char* name, std::int64_t n) { return name + std::to_string(n) + " "; };
  return word("b", batch) + word("hq", heads) + word("hkv", kv_heads) + word("sq", sq) +
         word("skv", skv) + word("d", draw->one_of(kHeadDims)) +
         (is_cache ? draw->one_of(kCacheTypes) : draw->one_of(kTypes)) + more;
}

/// Small enough that MATH takes some 30 ms.
bool is_small(const AttentionParams& p) {
  const double pairs = static_cast<double>(p.batch * p.num_heads_q) *
                       static_cast<double>(p.seqlen_q) * static_cast<double>(p.seqlen_kv);
  const double keys = static_cast<double>(p.batch * p.num_heads_kv * p.seqlen_kv);
  const double dims = static_cast<double>(p.head_dim_qk);
  const bool grad = p.features.has(Feature::kNeedsGrad);
  return pairs * dims * (grad ? 14.0 : 4.0) < 1.5e9 && keys * dims < 4e7 && pairs < 2e7;
}

}  // namespace

std::string draw_case(const std::string& group, Draw* draw) {
  std::string words = words_of(group, draw);
  while (!is_small(parse_case(words).value().params)) words = words_of(group, draw);
  return words;
}

}  // namespace regard::bench
