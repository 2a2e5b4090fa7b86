#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "core/text/case_words.h"
#include "regard/case.h"

namespace regard {
namespace {

Case parsed(std::string_view text) {
  Expected<Case> c = parse_case(text);
  EXPECT_TRUE(c.ok()) << text << ": " << c.status().message();
  return c.ok() ? *c : Case{};
}

// ---- a random canonical case, every field drawn

template <class T>
T pick(std::mt19937_64& rng, std::initializer_list<T> values) {
  return values.begin()[rng() % values.size()];
}
bool one_in(std::mt19937_64& rng, unsigned n) { return rng() % n == 0; }

std::int64_t random_extent(std::mt19937_64& rng) {
  return one_in(rng, 8) ? pick<std::int64_t>(rng, {0, 1, 4096, 8191})
                        : static_cast<std::int64_t>(1 + rng() % 200);
}

double random_double(std::mt19937_64& rng) {
  const double x = std::ldexp(static_cast<double>(rng() >> 11), static_cast<int>(rng() % 80) - 100);
  return one_in(rng, 3) ? static_cast<double>(rng() % 50) / 10 : x;
}

void random_functions(std::mt19937_64& rng, AttentionParams* p) {
  const auto text = [&](std::initializer_list<const char*> texts) {
    return Expression::parse(pick(rng, texts)).value();
  };
  if (one_in(rng, 3)) {
    p->score_function =
        text({"score*2.0", "score+r0[h]*(kv_idx-q_idx)", "tanh(score)-i1[b,q_idx]"});
  }
  if (one_in(rng, 3)) {
    p->mask_function = text({"kv_idx%2==0", "i2[b,q_idx]==i2[b,kv_idx]", "kv_idx<3|kv_idx>7"});
  }
  p->block_size_q = 1 + random_extent(rng);
  p->block_size_kv = 1 + random_extent(rng);
  p->features.set(Feature::kScoreCallback, p->dtype_q != Dtype::kF64 && one_in(rng, 8));
}

void random_features(std::mt19937_64& rng, AttentionParams* p) {
  for (const Feature f : {Feature::kAttnMask,
                          Feature::kAttnBias,
                          Feature::kAlibi,
                          Feature::kSinks,
                          Feature::kSegmentIds,
                          Feature::kSeqlensQ,
                          Feature::kSeqlensKv,
                          Feature::kBlockMask,
                          Feature::kPacked,
                          Feature::kPaged,
                          Feature::kAppendKv,
                          Feature::kRotary,
                          Feature::kCacheBatchIdx,
                          Feature::kCacheLeftpad,
                          Feature::kTreeMask,
                          Feature::kDescales,
                          Feature::kDescalesPerHead,
                          Feature::kLse,
                          Feature::kSavedStats,
                          Feature::kNeedsGrad,
                          Feature::kDLse,
                          Feature::kDelta,
                          Feature::kDiagonalPerSequence,
                          Feature::kPositions,
                          Feature::kRotaryInterleaved,
                          Feature::kHadamard,
                          Feature::kScalesQ,
                          Feature::kFutureScales,
                          Feature::kQuantizedProbs,
                          Feature::kOutAmax}) {
    p->features.set(f, one_in(rng, 4));
  }
  p->features.set(Feature::kScales, one_in(rng, 3));
  p->features.set(Feature::kScalesPerToken, one_in(rng, 2));
  p->features = with_scale_layout(
      p->features, pick(rng, {ScaleLayout::kRows, ScaleLayout::kRows, ScaleLayout::k1x32,
                              ScaleLayout::k1x128, ScaleLayout::k128x128, ScaleLayout::k128x128}));
  const bool packs_keys = p->features.has(Feature::kPacked) && !p->features.has(Feature::kPaged);
  if (p->seqlen_kv == 0 || packs_keys) p->features.set(Feature::kAppendKv, false);
  if (packs_keys) p->features.set(Feature::kCacheLeftpad, false);
  if (p->features.has(Feature::kAppendKv)) p->features.set(Feature::kPositions, false);
  p->mask_dims = static_cast<BroadcastDims>(rng() % 16);
  p->bias_dims = static_cast<BroadcastDims>(rng() % 16);
  p->dtype_bias = pick(rng, {Dtype::kF32, Dtype::kF64, p->dtype_q});
  if (is_f8(p->dtype_bias)) p->dtype_bias = Dtype::kF32;
  p->total_q = random_extent(rng);
  p->total_kv = random_extent(rng);
  p->num_pages = random_extent(rng);
  p->page_size = random_extent(rng);
  p->rotary_dim = p->head_dim_qk / 4 * 2;
  random_functions(rng, p);
}

std::vector<std::int64_t> random_lens(std::mt19937_64& rng, std::int64_t batch, std::int64_t max) {
  std::vector<std::int64_t> lens;
  for (std::int64_t i = 0; i < batch; ++i) {
    lens.push_back(static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(max + 1)));
  }
  return lens;
}

Case random_case(std::mt19937_64& rng) {
  Case c;
  AttentionParams& p = c.params;
  const auto dtype = [&] { return static_cast<Dtype>(rng() % kDtypeCount); };
  p.device.type = pick(rng, {DeviceType::kCpu, DeviceType::kCuda});
  p.device.index = one_in(rng, 3) ? static_cast<std::int32_t>(rng() % 9) : 0;
  p.dtype_q = one_in(rng, 3) ? pick(rng, {Dtype::kF8E4M3, Dtype::kF8E5M2}) : dtype();
  p.dtype_k = one_in(rng, 3) ? dtype() : p.dtype_q;
  p.dtype_v = one_in(rng, 4) ? dtype() : p.dtype_k;
  p.dtype_out = one_in(rng, 3) ? dtype() : p.dtype_q;
  p.dtype_d_out = one_in(rng, 8) ? p.dtype_out : dtype();
  p.dtype_gradients = dtype();
  p.fp8_recipe = static_cast<Fp8Recipe>(rng() % 5);
  p.batch = one_in(rng, 9) ? 0 : static_cast<std::int64_t>(1 + rng() % 6);
  p.num_heads_kv = random_extent(rng);
  p.num_heads_q = p.num_heads_kv * static_cast<std::int64_t>(1 + rng() % 4);
  p.seqlen_q = random_extent(rng);
  p.seqlen_kv = one_in(rng, 2) ? p.seqlen_q : random_extent(rng);
  p.head_dim_qk = random_extent(rng);
  p.head_dim_v = one_in(rng, 2) ? p.head_dim_qk : random_extent(rng);
  for (Layout* layout : {&p.layout_q, &p.layout_k, &p.layout_v, &p.layout_out}) {
    *layout = static_cast<Layout>(rng() % 3);
  }
  if (one_in(rng, 2)) p.layout_k = p.layout_v = p.layout_out = p.layout_q;
  for (std::int32_t* align :
       {&p.align_q_log2, &p.align_k_log2, &p.align_v_log2, &p.align_out_log2}) {
    *align = one_in(rng, 2) ? kMaxAlignLog2 : static_cast<std::int32_t>(rng() % 5);
  }
  random_features(rng, &p);
  if (p.dtype_k == Dtype::kU4) p.head_dim_qk *= 2;
  if (p.dtype_v == Dtype::kU4) p.head_dim_v *= 2;
  const bool is_power = std::has_single_bit(static_cast<std::uint64_t>(p.head_dim_qk));
  if (!is_power) p.features.set(Feature::kHadamard, false);
  p.features.set(Feature::kChannelScales, is_quantised(p.dtype_k) && one_in(rng, 2));
  if (one_in(rng, 2)) p.tokens_q = static_cast<std::int64_t>(rng() % 1000);
  if (one_in(rng, 2)) p.tokens_kv = static_cast<std::int64_t>(rng() % 1000);
  p.diagonal = static_cast<Diagonal>(rng() % 4);
  p.window_left = one_in(rng, 2) ? kUnlimited : static_cast<std::int64_t>(rng() % 100);
  p.window_right = one_in(rng, 2) ? kUnlimited : static_cast<std::int64_t>(rng() % 3);
  p.softmax_scale =
      one_in(rng, 2) ? default_softmax_scale(p.head_dim_qk) : -3.0 + random_double(rng);
  p.softcap = one_in(rng, 2) ? 0.0 : random_double(rng);
  p.dropout_p = one_in(rng, 2) ? 0.0 : static_cast<double>(rng() % 1000) / 1001.0;
  p.scores_kind = static_cast<ScoresKind>(rng() % 4);
  p.features.set(Feature::kDropoutOrigin, one_in(rng, 2));
  const auto below = [&](int end) { return static_cast<std::int64_t>(rng() % end); };
  c.data.dropout_origin = {below(100) - 50, 8 * below(50), below(9), below(9)};
  if (one_in(rng, 2)) c.env.isa = named_isas()[rng() % named_isas().size()];
  if (one_in(rng, 2)) c.env.sm_version = static_cast<std::int32_t>(70 + rng() % 60);
  c.data.seed = one_in(rng, 2) ? 0 : rng();
  c.data.kind = static_cast<DataKind>(rng() % 5);
  c.data.poison = one_in(rng, 3);
  c.data.diagonal_offset = static_cast<std::int64_t>(rng()) >> (rng() % 63);
  if (one_in(rng, 2)) c.data.seqlens_q = random_lens(rng, p.batch, p.seqlen_q);
  const std::int64_t new_rows = p.features.has(Feature::kAppendKv) ? c.data.new_rows : 0;
  if (one_in(rng, 2)) c.data.seqlens_kv = random_lens(rng, p.batch, p.seqlen_kv - new_rows);
  if (p.seqlen_q == 0) p.total_q = 0;
  if (p.seqlen_kv == 0) p.total_kv = 0;
  canonicalize(c);
  // The rows of packed sequences bound their lengths.
  for (std::int64_t& length : c.data.seqlens_q) length = std::min(length, p.seqlen_q);
  for (std::int64_t& length : c.data.seqlens_kv) length = std::min(length, p.seqlen_kv);
  if (!p.features.has(Feature::kPacked) || p.batch == 0) return c;
  if (one_in(rng, 2)) c.data.rows_q = random_lens(rng, p.batch, p.seqlen_q / p.batch);
  if (p.features.has(Feature::kPaged)) return c;
  if (one_in(rng, 2)) c.data.rows_kv = random_lens(rng, p.batch, p.seqlen_kv / p.batch);
  return c;
}

TEST(CaseText, RandomCasesRoundTrip) {
  std::mt19937_64 rng(2024);
  int checked = 0;
  std::map<std::string, int> words;
  while (checked < 10000) {
    const Case c = random_case(rng);
    if (!validate(c.params, "test").ok()) continue;
    ++checked;
    const std::string text = to_string(c);
    const Expected<Case> again = parse_case(text);
    ASSERT_TRUE(again.ok()) << text << ": " << again.status().message();
    ASSERT_EQ(again->params, c.params) << text << "\n"
                                       << to_json(again->params) << "\n"
                                       << to_json(c.params);
    ASSERT_EQ(again->env, c.env) << text;
    ASSERT_EQ(again->data, c.data) << text;
    ASSERT_EQ(to_string(*again), text);
    // Nothing as a change to a case is that case, and so is the case itself.
    ASSERT_EQ(parse_case("", c).value(), c) << text;
    std::istringstream stream(text);
    for (std::string word; stream >> word;) {
      const std::size_t end = word.find_first_of("=");
      ++words[end != std::string::npos ? word.substr(0, end) : word];
    }
  }
  for (const CaseWord& word : case_words()) {
    if (word.form == WordForm::kSize || word.form == WordForm::kDtype) continue;
    if (std::string_view(word.name) == "align") continue;  // each tensor's own is printed
    EXPECT_GT(words[word.name], 100) << word.name << " is hardly printed";
  }
}

/// Changes one field at a time; `unused` are those that the case has no use for.
void expect_every_field_in_text(const Case& base, const std::set<std::string>& unused) {
  const std::string text = to_string(base.params);
  std::set<std::string> texts{text};
  int fields = 0;
  for_each_field(base.params, [&](const char*, const auto&) { ++fields; });
  for (int i = 0; i < fields; ++i) {
    AttentionParams changed = base.params;
    std::string name;
    int at = 0;
    for_each_field(changed, [&](const char* field_name, auto& field) {
      if (at++ != i) return;
      name = field_name;
      using Field = std::remove_reference_t<decltype(field)>;
      if constexpr (std::is_same_v<Field, Device>) {
        field.index = 3;
      } else if constexpr (std::is_same_v<Field, FeatureSet>) {
        field.set(Feature::kSinks);
      } else if constexpr (std::is_same_v<Field, Dtype>) {
        field = Dtype::kF64;
      } else if constexpr (std::is_enum_v<Field>) {
        field = static_cast<Field>(1);
      } else if constexpr (std::is_same_v<Field, double>) {
        field *= 0.5;
      } else if constexpr (std::is_same_v<Field, BroadcastDims>) {
        field ^= 2;
      } else if constexpr (std::is_same_v<Field, Expression>) {
        field = field.type() == ValueType::kBool ? Expression(true) : Expression(1.5);
      } else {
        field += 1;
      }
    });
    if (unused.contains(name)) continue;
    const std::string changed_text = to_string(changed);
    EXPECT_TRUE(texts.insert(changed_text).second) << name << " leaves " << changed_text;
  }
}

// Cases that use everything: keys are packed, or in pages.
TEST(CaseText, EveryFieldReachesTheText) {
  const std::string both =
      "b2 hq8 hkv4 sq16 skv32 d64 dv32 bf16 kv=i8 out=f16 packed total_q=20 rotary=16 causal "
      "diag=br window=7,0 softcap=2 score=score*2.0 scale=0.5 mask=1,H,Sq,Skv mask=kv_idx%2==0 "
      "block_mask=8,16 bias=B,1,1,Skv bias_dtype=bf16 lens "
      "dropout=0.5 scores=edited layout=strided align=4 device=cuda";
  expect_every_field_in_text(parsed(both + " total_kv=40"), {"num_pages", "page_size"});
  expect_every_field_in_text(parsed(both + " paged page_size=16 num_pages=9"), {"total_kv"});
}

TEST(CaseText, OneCanonicalOrder) {
  EXPECT_EQ(to_string(parsed("diag=tl causal f32 d64 skv128 sq128 hq8 b1")),
            "b1 hq8 hkv8 sq128 skv128 d64 f32 causal diag=tl");
  EXPECT_EQ(to_string(parsed("\t sq4\n d8  ")), "b1 hq1 hkv1 sq4 skv4 d8 f32");
  EXPECT_EQ(to_string(parsed("sq4 d8 layout_q=bshd layout_k=bshd layout_v=bshd layout_out=bshd")),
            "b1 hq1 hkv1 sq4 skv4 d8 f32 layout=bshd");
  EXPECT_EQ(to_string(parsed("sq4 d8 lens lens_kv=3")),
            "b1 hq1 hkv1 sq4 skv4 d8 f32 lens=q lens_kv=3");
}

TEST(CaseText, DefaultsFollowOtherWords) {
  const Case c = parsed("d64 sq16 hq4");
  EXPECT_EQ(c.params.num_heads_kv, 4);
  EXPECT_EQ(c.params.seqlen_kv, 16);
  EXPECT_EQ(c.params.head_dim_v, 64);
  EXPECT_EQ(c.params.softmax_scale, 0.125);
  EXPECT_EQ(c.params.dtype_out, Dtype::kF32);
  const Case d = parsed("sq16 d32 bfloat16 kv=int8");
  EXPECT_EQ(d.params.dtype_q, Dtype::kBf16);
  EXPECT_EQ(d.params.dtype_k, Dtype::kI8);
  EXPECT_EQ(d.params.dtype_out, Dtype::kBf16);
  EXPECT_EQ(parsed("sq16 d32 f8e4m3").params.dtype_out, Dtype::kBf16);
  EXPECT_EQ(parsed("sq16 d32 f8e4m3 out=f8e4m3").params.dtype_out, Dtype::kF8E4M3);
  EXPECT_EQ(to_string(parsed("sq4 d8 f8e5m2 out=bf16 descales")),
            "b1 hq1 hkv1 sq4 skv4 d8 f8e5m2 descales=all");
  const Case e = parsed("b3 sq16 d32 packed total_kv=17");
  EXPECT_EQ(e.params.total_q, 48);
  EXPECT_EQ(e.params.total_kv, 17);
  const Case f = parsed("b3 sq16 d32 packed rows_q=16,0,3");
  EXPECT_EQ(f.data.rows_q, (std::vector<std::int64_t>{16, 0, 3}));
  EXPECT_EQ(to_string(f),
            "b3 hq1 hkv1 sq16 skv16 d32 f32 packed total_q=48 total_kv=48 rows_q=16,0,3");
  // No packed sequence is longer than all together.
  EXPECT_EQ(parsed("b3 sq16 d32 packed total_q=5").params.seqlen_q, 5);
}

TEST(CaseText, WordsMeanWhatTheySay) {
  EXPECT_EQ(parsed("sq4 d8 causal").params.window_right, 0);
  EXPECT_EQ(parsed("sq4 d8 causal window=3,-1").params, parsed("sq4 d8 window=3,0").params);
  EXPECT_EQ(parsed("sq4 d8 causal window=3,0").params, parsed("sq4 d8 window=3,0").params);
  const Case offset = parsed("sq4 skv9 d8 causal diag=-3");
  EXPECT_EQ(offset.params.diagonal, Diagonal::kOffset);
  EXPECT_EQ(offset.data.diagonal_offset, -3);
  EXPECT_TRUE(
      parsed("sq4 skv9 d8 causal diag=seq").params.features.has(Feature::kDiagonalPerSequence));
  EXPECT_EQ(parsed("b2 hq2 sq4 d8 mask=B,1,Sq,1").params.mask_dims, 5);
  EXPECT_EQ(parsed("b2 hq2 sq4 d8 mask").params.mask_dims, 15);
  EXPECT_EQ(parsed("sq4 d8 bias=B,H,Sq,Skv").params.bias_dims, 12) << "extents of 1 broadcast";
  EXPECT_EQ(parsed("b2 sq4 d8 lens_q=1,4 diag=tl").data.seqlens_q,
            (std::vector<std::int64_t>{1, 4}));
  const FeatureSet both{Feature::kSeqlensQ, Feature::kSeqlensKv, Feature::kSeqlenQGreaterKv};
  EXPECT_EQ(parsed("sq4 d8 lens").params.features, both);
  EXPECT_EQ(parsed("sq4 d8 lens=both").params.features, both);
  EXPECT_EQ(parsed("sq4 d8 device=sm90").env.sm_version, 90);
  EXPECT_EQ(parsed("sq4 d8 device=sm90").params.device.type, DeviceType::kCuda);
  EXPECT_EQ(parsed("sq4 d8 device=cuda:2").params.device.index, 2);
  EXPECT_EQ(parsed("sq4 d8 isa=avx512_bf16").env.isa, Isa::kAvx512Bf16);
  EXPECT_EQ(parsed("sq4 d8 seed=18446744073709551615").data.seed,
            std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(parsed("hq2 sq4 d8 f32 align=4 align_q=8").params.align_k_log2, 2);
  EXPECT_EQ(parsed("hq2 sq4 d8 f32 align=4 align_q=8").params.align_q_log2, 3);
}

TEST(CaseText, ChangesToABase) {
  const Case base = parsed(
      "b2 hq8 hkv2 sq16 skv32 d64 bf16 causal diag=br window=7,0 softcap=30 lens layout=bshd");
  const auto changed = [&](std::string_view text) {
    Expected<Case> c = parse_case(text, base);
    EXPECT_TRUE(c.ok()) << text << ": " << c.status().message();
    return c.ok() ? to_string(*c) : "";
  };
  EXPECT_EQ(changed("sq64"),
            "b2 hq8 hkv2 sq64 skv32 d64 bf16 causal diag=br window=7,0 softcap=30 "
            "lens=both layout=bshd");
  EXPECT_EQ(changed("causal=0 softcap=none lens=0"),
            "b2 hq8 hkv2 sq16 skv32 d64 bf16 diag=br window=7,-1 layout=bshd");
  EXPECT_EQ(changed("window=none causal=0 softcap=0 lens=q layout=strided d128"),
            "b2 hq8 hkv2 sq16 skv32 d128 bf16 lens=q layout=strided");
  EXPECT_EQ(changed("lens_kv=1,2 softcap=none f32"),
            "b2 hq8 hkv2 sq16 skv32 d64 f32 causal diag=br window=7,0 lens=q lens_kv=1,2 "
            "layout=bshd");
  EXPECT_EQ(changed("layout_q=bhsd lse"),
            "b2 hq8 hkv2 sq16 skv32 d64 bf16 causal diag=br window=7,0 softcap=30 lens=both lse "
            "layout_k=bshd layout_v=bshd layout_out=bshd");
  // A base's word that hangs on another goes with it; said anew it is an error.
  const Case packed = parsed("sq4 d8 packed total_q=9 bias bias_dtype=f64");
  EXPECT_EQ(to_string(parse_case("packed=0 bias=0", packed).value()),
            "b1 hq1 hkv1 sq4 skv4 d8 f32");
  EXPECT_FALSE(parse_case("packed=0 total_q=3", packed).ok());
  EXPECT_FALSE(parse_case("sq=none", packed).ok());
  EXPECT_FALSE(parse_case("window=1,5", base).ok()) << "the base is causal";
}

struct BadText {
  const char* text;
  const char* fragment;
  StatusCode code = StatusCode::kInvalidArgument;
};
class CaseTextRefuses : public testing::TestWithParam<BadText> {};

TEST_P(CaseTextRefuses, NamingWordAndExpectation) {
  const Expected<Case> c = parse_case(GetParam().text);
  ASSERT_FALSE(c.ok()) << to_string(*c);
  EXPECT_EQ(c.status().code(), GetParam().code) << c.status().message();
  EXPECT_EQ(c.status().message().rfind("[parse_case] ", 0), 0u) << c.status().message();
  EXPECT_NE(c.status().message().find(GetParam().fragment), std::string::npos)
      << c.status().message();
}

const BadText kBadTexts[] = {
    {"", "missing word; expected sqN"},
    {"d8", "missing word; expected sqN"},
    {"sq8", "missing word; expected dN"},
    {"sq8 d8 caucal", "unknown word 'caucal'; the nearest known is causal"},
    {"sq8 d8 softcp=3", "unknown word 'softcp=3'; the nearest known is softcap=X"},
    {"sq8 d8 hkvs4", "unknown word 'hkvs4'; the nearest known is hkvN"},
    {"sq8 d8 f33", "unknown word 'f33'"},
    {"sq8 d8 =", "unknown word '='"},
    {"sq8 d8 -4", "unknown word '-4'"},
    {"sq8 d8 sq9", "duplicate word 'sq9'; expected sqN at most once"},
    {"sq8 d8 f32 bf16", "duplicate word 'bf16'"},
    {"sq8 d8 causal causal=0", "duplicate word 'causal=0'"},
    {"sq8x d8", "unknown word 'sq8x'; the nearest known is sqN"},
    {"sq=8x d8", "cannot read 'sq8x'; expected sqN"},
    {"sq=-8 d8", "cannot read 'sq-8'"},
    {"sq99999999999999999999 d8", "cannot read 'sq99999999999999999999'"},
    {"sq= d8", "cannot read 'sq='; expected sqN"},
    {"sq8 d8 window", "cannot read 'window'; expected window=L,R"},
    {"sq8 d8 window=3", "cannot read 'window=3'; expected window=L,R"},
    {"sq8 d8 window=3,4,5", "cannot read 'window=3,4,5'"},
    {"sq8 d8 window=3,4x", "cannot read 'window=3,4x'"},
    {"sq8 d8 window=-2,0", "window_left (-2) must be >= -1"},
    {"sq8 d8 causal window=3,4", "cannot read 'window=3,4'"},
    {"sq8 d8 causal=2", "cannot read 'causal=2'; expected causal"},
    {"sq8 d8 softcap=abc", "cannot read 'softcap=abc'; expected softcap=X"},
    {"sq8 d8 softcap=1e999", "cannot read 'softcap=1e999'"},
    {"sq8 d8 softcap=1.5junk", "cannot read 'softcap=1.5junk'"},
    {"sq8 d8 softcap=-1", "softcap (-1) must be finite and >= 0"},
    {"sq8 d8 scale=nan", "softmax_scale (nan) must be finite"},
    {"sq8 d8 dropout=1", "dropout_p (1) must be in [0, 1)"},
    {"sq8 d8 dropout=1e-9", "dropout_p (1e-09) must keep"},
    {"sq8 d8 mask=B,H,Sq", "cannot read 'mask=B,H,Sq'; expected mask[=B,H,Sq,Skv]"},
    {"sq8 d8 mask=B,H,Sq,Skv,1", "unknown name 'B'"},
    {"sq8 d8 mask=H,B,Sq,Skv", "unknown name 'H'"},
    {"sq8 d8 bias=2,1,1,1", "cannot read 'bias=2,1,1,1'"},
    {"sq8 d8 bias_dtype=f64",
     "bias_dtype has no effect without bias; add bias, or remove bias_dtype"},
    {"sq8 d8 descales=row", "cannot read 'descales=row'; expected descales[=all|head]"},
    {"sq8 d8 f8e5m2 bias bias_dtype=f8e5m2", "dtype of attn_bias (f8e5m2) must be f32 or f64"},
    {"sq8 d8 bias bias_dtype=bf16", "dtype of attn_bias (bf16) must be f32, f64 or q's f32"},
    {"sq8 d8 total_q=4", "total_q has no effect without packed; add packed, or remove total_q"},
    {"sq8 d8 rows_q=4", "rows_q has no effect without packed; add packed, or remove rows_q"},
    {"sq8 skv0 d8 packed total_kv=3", "skv (0) must be at least 1 where there are packed rows (3)"},
    {"b2 sq8 d8 packed rows_q=4", "rows_q (1 values) must have one value for each sequence, 2"},
    {"b2 sq8 d8 packed rows_kv=4,9", "a value of rows_kv (9) must be 0..8"},
    {"b2 sq8 d8 packed total_q=9 rows_q=4,6",
     "the sum of rows_q (10) must be at most the packed rows, 9"},
    {"sq8 d8 diag=middle", "cannot read 'diag=middle'; expected diag=tl|br|N|seq"},
    {"sq8 skv9 d8 causal", "diagonal (unnamed) must be named"},
    {"sq8 d8 causal lens", "diagonal (unnamed) must be named"},
    {"sq8 d8 lens=all", "cannot read 'lens=all'; expected lens[=q|kv|both]"},
    {"b2 sq8 d8 lens_q=1", "lens_q (1 values) must have one value for each sequence, 2"},
    {"b2 sq8 d8 lens_kv=1,9", "a value of lens_kv (9) must be 0..8"},
    {"b2 sq8 d8 lens_kv=1,-1", "a value of lens_kv (-1) must be 0..8"},
    {"sq8 d8 hq8 hkv3", "num_heads_kv (3) must divide num_heads_q (8)"},
    {"sq8 d8 b4611686018427387904", "must fit 64 bits", StatusCode::kOverflow},
    {"sq8 d8 kv=f31", "cannot read 'kv=f31'; expected kv=DTYPE"},
    {"sq8 d8 layout=sbhd", "cannot read 'layout=sbhd'; expected layout=bhsd|bshd|strided"},
    {"sq8 d8 align=3", "cannot read 'align=3'; expected align=1|2|4|8|16"},
    {"sq8 d8 align=32", "cannot read 'align=32'"},
    {"sq8 d8 scores=none=", "cannot read 'scores=none='"},
    {"sq8 d8 scores=raw", "cannot read 'scores=raw'; expected scores=scaled|edited|probs"},
    {"sq8 d8 seed=-1", "cannot read 'seed=-1'; expected seed=N"},
    {"sq8 d8 seed=18446744073709551616", "cannot read 'seed=18446744073709551616'"},
    {"sq8 d8 data=zeros", "cannot read 'data=zeros'; expected data=normal|large"},
    {"sq8 d8 device=tpu", "cannot read 'device=tpu'; expected device=cpu|cuda|smNN"},
    {"sq8 d8 device=sm", "cannot read 'device=sm'"},
    {"sq8 d8 device=cuda:-1", "cannot read 'device=cuda:-1'"},
    {"sq8 d8 isa=sse2", "cannot read 'isa=sse2'; expected isa=scalar|avx2|avx512|avx512_bf16"},
    {"sq8 d8 rotary=9", "rotary_dim (9) must be at most head_dim_qk (8)"},
    {"sq8 d8 \x1b[31m", "unknown word '\\x1b[31m'"},
    {"sq8 d8 xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
     "...'; the nearest known is"},
};
INSTANTIATE_TEST_SUITE_P(All, CaseTextRefuses, testing::ValuesIn(kBadTexts));

TEST(CaseText, HelpHasEveryWord) {
  const std::string help = case_syntax_help();
  std::istringstream lines(help);
  std::size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) EXPECT_LE(line.size(), 100u) << line;
  EXPECT_EQ(count, case_words().size());
  EXPECT_NE(help.find("diag=tl|br|N|seq"), std::string::npos);
}

TEST(CaseText, WordNamesAreUnique) {
  std::set<std::string> names;
  for (const CaseWord& word : case_words()) {
    if (word.takes != nullptr) continue;  // another has the rest of its values
    EXPECT_TRUE(names.insert(word.name).second) << word.name;
  }
}

TEST(Case, OverridesDescribeAMachine) {
  Env env;
  env.isa = Isa::kAvx2;
  env.isa_available = Isa::kAvx2;
  EXPECT_EQ(apply_overrides(env, parsed("sq1 d1")), env);
  EXPECT_EQ(apply_overrides(env, parsed("sq1 d1 isa=scalar")).isa, Isa::kScalar);
  EXPECT_EQ(apply_overrides(env, parsed("sq1 d1 isa=scalar")).isa_available, Isa::kAvx2);
  EXPECT_EQ(apply_overrides(env, parsed("sq1 d1 isa=avx512")).isa_available, Isa::kAvx512);
  const Env gpu = apply_overrides(env, parsed("sq1 d1 device=sm90"));
  EXPECT_EQ(gpu.device, DeviceType::kCuda);
  EXPECT_EQ(gpu.sm_version, 90);
}

TEST(Case, CanonicalDropsWhatIsUnused) {
  Case c;
  c.env.sm_version = 90;
  c.data.diagonal_offset = 5;
  c.data.seqlens_q = {1};
  c.data.seqlens_kv = {1};
  canonicalize(c);
  EXPECT_EQ(c, Case{});
}

}  // namespace
}  // namespace regard
