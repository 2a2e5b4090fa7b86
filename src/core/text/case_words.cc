#include "core/text/case_words.h"

#include <iterator>

#include "base/checked.h"
#include "base/message.h"
#include "core/text/broadcast_text.h"
#include "core/text/dropout_words.h"
#include "core/text/f8_words.h"
#include "core/text/function_words.h"
#include "core/text/number_parse.h"

namespace regard {
namespace {

using Text = std::string_view;

// Printing and parsing of one int64 field, of a flag of the features, of a double.
template <auto kMember>
bool print_extent(const Case& c, std::string* out) {
  append(*out, c.params.*kMember);
  return true;
}
template <auto kMember>
bool parse_extent(Text value, Case* c) {
  return parse_number(value, &(c->params.*kMember)) && c->params.*kMember >= 0;
}
// As parse_extent, and the default of a second field.
template <auto kMember, auto kFollower>
bool parse_extents(Text value, Case* c) {
  if (!parse_extent<kMember>(value, c)) return false;
  c->params.*kFollower = c->params.*kMember;
  return true;
}

template <Feature kFeature>
bool print_feature(const Case& c, std::string*) {
  return c.params.features.has(kFeature);
}
template <Feature kFeature>
bool parse_feature_flag(Text, Case* c) {
  c->params.features.set(kFeature);
  return true;
}

/// The word of an option or tensor of which a case says only that it is there. `needs`: see
/// CaseWord.
template <Feature kFeature>
constexpr CaseWord feature_word(const char* name, const char* meaning,
                                const char* needs = nullptr) {
  return {name, WordForm::kFlag, "", meaning, print_feature<kFeature>, parse_feature_flag<kFeature>,
          needs};
}

template <auto kMember>
bool print_nonzero(const Case& c, std::string* out) {
  append(*out, c.params.*kMember);
  return c.params.*kMember != 0.0;
}
template <auto kMember>
bool parse_double(Text value, Case* c) {
  return parse_number(value, &(c->params.*kMember));
}

template <class E>
bool parse_enum(Text value, E first, E last, E* out) {
  for (int i = static_cast<int>(first); i <= static_cast<int>(last); ++i) {
    if (value != to_string(static_cast<E>(i))) continue;
    *out = static_cast<E>(i);
    return true;
  }
  return false;
}

// ---- dtypes

bool print_dtype(const Case& c, std::string* out) {
  append(*out, to_string(c.params.dtype_q));
  return true;
}
bool parse_dtypes(Text value, Case* c) {
  const std::optional<Dtype> dtype = parse_dtype_word(value);
  if (!dtype) return false;
  c->params.dtype_q = c->params.dtype_k = c->params.dtype_v = *dtype;
  c->params.dtype_out = default_dtype_out(*dtype);
  c->params.dtype_d_out = c->params.dtype_gradients = c->params.dtype_out;
  return true;
}
/// Of out, and of d_out until the case says otherwise.
bool parse_out_dtype(Text value, Case* c) {
  const std::optional<Dtype> dtype = parse_dtype_word(value);
  if (dtype) c->params.dtype_out = c->params.dtype_d_out = *dtype;
  return dtype.has_value();
}
template <auto kMember, Dtype (*default_of)(const AttentionParams&)>
bool print_other_dtype(const Case& c, std::string* out) {
  append(*out, to_string(c.params.*kMember));
  return c.params.*kMember != default_of(c.params);
}
template <auto kMember>
bool parse_other_dtype(Text value, Case* c) {
  const std::optional<Dtype> dtype = parse_dtype_word(value);
  if (dtype) c->params.*kMember = *dtype;
  return dtype.has_value();
}
/// Of k, and of v until the case says otherwise.
bool parse_kv_dtype(Text value, Case* c) {
  const bool read = parse_other_dtype<&AttentionParams::dtype_k>(value, c);
  c->params.dtype_v = c->params.dtype_k;
  return read;
}
Dtype dtype_of_q(const AttentionParams& p) { return p.dtype_q; }
Dtype dtype_of_k(const AttentionParams& p) { return p.dtype_k; }
Dtype dtype_of_out(const AttentionParams& p) { return default_dtype_out(p.dtype_q); }
Dtype f32_dtype(const AttentionParams&) { return Dtype::kF32; }

// ---- sizes

bool parse_head_dim(Text value, Case* c) {
  if (!parse_extents<&AttentionParams::head_dim_qk, &AttentionParams::head_dim_v>(value, c)) {
    return false;
  }
  c->params.softmax_scale = default_softmax_scale(c->params.head_dim_qk);
  return true;
}
bool print_head_dim_v(const Case& c, std::string* out) {
  append(*out, c.params.head_dim_v);
  return c.params.head_dim_v != c.params.head_dim_qk;
}
bool parse_packed(Text, Case* c) {
  AttentionParams& p = c->params;
  p.features.set(Feature::kPacked);
  p.total_q = saturating_mul(p.batch, p.seqlen_q);
  p.total_kv = saturating_mul(p.batch, p.seqlen_kv);
  return true;
}
/// As many pages as keep those of all sequences apart, until the case says otherwise.
void set_page_size(AttentionParams& p, std::int64_t page_size) {
  p.page_size = page_size;
  if (page_size > 0) p.num_pages = saturating_mul(p.batch, ceil_div(p.seqlen_kv, page_size));
}
bool parse_paged(Text, Case* c) {
  constexpr std::int64_t kUsualPage = 16;
  c->params.features = c->params.features.with({Feature::kPaged, Feature::kSeqlensKv});
  set_page_size(c->params, kUsualPage);
  if (c->params.features.has(Feature::kPacked)) c->params.total_kv = 0;
  return true;
}
bool parse_page_size(Text value, Case* c) {
  if (!parse_extent<&AttentionParams::page_size>(value, c)) return false;
  set_page_size(c->params, c->params.page_size);
  return true;
}
template <auto kMember, Feature kFeature>
bool print_extent_of(const Case& c, std::string* out) {
  append(*out, c.params.*kMember);
  return c.params.features.has(kFeature);
}
/// Keys in pages are not packed.
bool print_total_kv(const Case& c, std::string* out) {
  append(*out, c.params.total_kv);
  return c.params.features.has(Feature::kPacked) && !c.params.features.has(Feature::kPaged);
}
template <auto kMember, Feature kFeature>
bool print_data_of(const Case& c, std::string* out) {
  append(*out, c.data.*kMember);
  return c.params.features.has(kFeature);
}
bool parse_append(Text value, Case* c) {
  c->params.features = c->params.features.with({Feature::kAppendKv, Feature::kSeqlensKv});
  return value.empty() || parse_number(value, &c->data.new_rows);
}
bool parse_tree(Text value, Case* c) {
  c->params.features.set(Feature::kTreeMask);
  return value.empty() || (parse_number(value, &c->data.tree_keys) && c->data.tree_keys >= 0);
}
bool parse_leftpad(Text, Case* c) {
  c->params.features = c->params.features.with({Feature::kCacheLeftpad, Feature::kSeqlensKv});
  return true;
}
bool parse_rotary(Text value, Case* c) {
  c->params.features.set(Feature::kRotary);
  return parse_extent<&AttentionParams::rotary_dim>(value, c);
}

// ---- the diagonal and windows

bool print_causal(const Case& c, std::string*) { return c.params.window_right == 0; }
bool parse_causal(Text, Case* c) {
  c->params.window_right = 0;
  return true;
}
void reset_causal(Case* c) {
  if (c->params.window_right == 0) c->params.window_right = kUnlimited;
}
bool print_window(const Case& c, std::string* out) {
  *out += concat(c.params.window_left, ",", c.params.window_right);
  return c.params.window_left >= 0 || c.params.window_right > 0;
}
bool parse_window(Text value, Case* c) {
  std::vector<std::int64_t> sides;
  if (!parse_numbers(value, &sides) || sides.size() != 2) return false;
  AttentionParams& p = c->params;
  const bool causal = p.window_right == 0;
  if (causal && sides[1] > 0) return false;
  p.window_left = sides[0];
  if (!causal || sides[1] < kUnlimited) p.window_right = sides[1];
  return true;
}
bool print_diagonal(const Case& c, std::string* out) {
  switch (c.params.diagonal) {
    case Diagonal::kUnnamed: return false;
    case Diagonal::kTopLeft: append(*out, "tl"); break;
    case Diagonal::kBottomRight: append(*out, "br"); break;
    case Diagonal::kOffset:
      if (c.params.features.has(Feature::kDiagonalPerSequence)) {
        append(*out, "seq");
      } else {
        append(*out, c.data.diagonal_offset);
      }
  }
  return true;
}
bool parse_diagonal(Text value, Case* c) {
  Diagonal& diagonal = c->params.diagonal;
  if (value == "tl" || value == "top_left") {
    diagonal = Diagonal::kTopLeft;
  } else if (value == "br" || value == "bottom_right") {
    diagonal = Diagonal::kBottomRight;
  } else {
    diagonal = Diagonal::kOffset;
    c->params.features.set(Feature::kDiagonalPerSequence, value == "seq");
    return value == "seq" || parse_number(value, &c->data.diagonal_offset);
  }
  return true;
}
bool print_scale(const Case& c, std::string* out) {
  append(*out, c.params.softmax_scale);
  return c.params.softmax_scale != default_softmax_scale(c.params.head_dim_qk);
}

// ---- mask and bias

template <auto kMember, Feature kFeature>
bool print_broadcast(const Case& c, std::string* out) {
  append(*out, broadcast_text(c.params.*kMember));
  return c.params.features.has(kFeature);
}
template <auto kMember, Feature kFeature>
bool parse_broadcast(Text value, Case* c) {
  c->params.features.set(kFeature);
  unsigned bits = 0;
  int i = 0;
  if (value.empty()) value = "B,H,Sq,Skv";
  const bool ok = for_each_part(value, ',', [&](Text part) {
    if (i >= 4) return false;
    if (part == kDimNames[i]) bits |= 1u << i;
    return part == kDimNames[i++] || part == "1";
  });
  c->params.*kMember = static_cast<BroadcastDims>(bits);
  return ok && i == 4;
}

/// Anything else after "mask=" is a function.
bool are_dims(Text value) {
  int parts = 0;
  return value.empty() || value == "none" || value == "0" || value == "1" ||
         for_each_part(value, ',', [&](Text part) {
           const int dim = parts++;
           return dim < 4 && (part == "1" || part == kDimNames[dim]);
         });
}

// ---- lengths

bool drawn(const Case& c, Feature feature, const std::vector<std::int64_t>& literal) {
  return c.params.features.has(feature) && literal.empty();
}
bool print_lens(const Case& c, std::string* out) {
  const bool q = drawn(c, Feature::kSeqlensQ, c.data.seqlens_q);
  const bool kv = drawn(c, Feature::kSeqlensKv, c.data.seqlens_kv);
  append(*out, q && kv ? "both" : q ? "q" : "kv");
  return q || kv;
}
bool parse_lens(Text value, Case* c) {
  const bool both = value.empty() || value == "both";
  if (!both && value != "q" && value != "kv") return false;
  if (both || value == "q") c->params.features.set(Feature::kSeqlensQ);
  if (both || value == "kv") c->params.features.set(Feature::kSeqlensKv);
  return true;
}
void reset_lens(Case* c) {
  c->params.features = c->params.features.without({Feature::kSeqlensQ, Feature::kSeqlensKv});
  c->data.seqlens_q.clear();
  c->data.seqlens_kv.clear();
}
template <auto kMember, Feature kFeature>
bool print_literal_lens(const Case& c, std::string* out) {
  const std::vector<std::int64_t>& lens = c.data.*kMember;
  for (std::size_t i = 0; i < lens.size(); ++i) *out += concat(i == 0 ? "" : ",", lens[i]);
  return c.params.features.has(kFeature) && !lens.empty();
}
template <auto kMember, Feature kFeature>
bool parse_literal_lens(Text value, Case* c) {
  c->params.features.set(kFeature);
  return parse_numbers(value, &(c->data.*kMember));
}

template <auto kMember>
bool parse_rows(Text value, Case* c) {
  return parse_numbers(value, &(c->data.*kMember));
}

// ---- layouts and alignment

// Whether one word for all four tensors, read back, gives these four.
bool one_layout(const AttentionParams& p, Layout layout) {
  AttentionParams read = p;
  for (const TensorLayout& tensor : kTensorLayouts) read.*tensor.order = layout;
  canonicalize(read);
  for (const TensorLayout& tensor : kTensorLayouts) {
    if (read.*tensor.order != p.*tensor.order) return false;
  }
  return true;
}
std::optional<Layout> common_layout(const AttentionParams& p) {
  for (const Layout layout : {Layout::kBhsd, Layout::kBshd, Layout::kStrided}) {
    if (one_layout(p, layout)) return layout;
  }
  return std::nullopt;
}
bool print_layout(const Case& c, std::string* out) {
  const std::optional<Layout> layout = common_layout(c.params);
  if (!layout || layout == Layout::kBhsd) return false;
  append(*out, to_string(*layout));
  return true;
}
bool parse_layout(Text value, Case* c) {
  Layout layout{};
  if (!parse_enum(value, Layout::kBhsd, Layout::kStrided, &layout)) return false;
  for (const TensorLayout& tensor : kTensorLayouts) c->params.*tensor.order = layout;
  return true;
}
void reset_layout(Case* c) {
  for (const TensorLayout& tensor : kTensorLayouts) c->params.*tensor.order = Layout::kBhsd;
}
template <auto kMember>
bool print_one_layout(const Case& c, std::string* out) {
  append(*out, to_string(c.params.*kMember));
  return c.params.*kMember != Layout::kBhsd && !common_layout(c.params);
}
template <auto kMember>
bool parse_one_layout(Text value, Case* c) {
  return parse_enum(value, Layout::kBhsd, Layout::kStrided, &(c->params.*kMember));
}

// In bytes, where it is not the best that the rest allows.
template <auto kMember>
bool print_align(const Case& c, std::string* out) {
  AttentionParams best = c.params;
  best.*kMember = kMaxAlignLog2;
  canonicalize(best);
  append(*out, 1 << c.params.*kMember);
  return best.*kMember != c.params.*kMember;
}
bool parse_bytes_log2(Text value, std::int32_t* log2) {
  int bytes = 0;
  if (!parse_number(value, &bytes)) return false;
  for (*log2 = 0; *log2 <= kMaxAlignLog2; ++*log2) {
    if (bytes == 1 << *log2) return true;
  }
  return false;
}
template <auto kMember>
bool parse_align(Text value, Case* c) {
  return parse_bytes_log2(value, &(c->params.*kMember));
}
bool parse_all_aligns(Text value, Case* c) {
  std::int32_t log2 = 0;
  if (!parse_bytes_log2(value, &log2)) return false;
  for (const TensorLayout& tensor : kTensorLayouts) c->params.*tensor.align_log2 = log2;
  return true;
}
void reset_aligns(Case* c) {
  for (const TensorLayout& tensor : kTensorLayouts) {
    c->params.*tensor.align_log2 = kMaxAlignLog2;
  }
}

// ---- outputs, data, machine

bool print_scores(const Case& c, std::string* out) {
  append(*out, to_string(c.params.scores_kind));
  return c.params.scores_kind != ScoresKind::kNone;
}
bool parse_scores(Text value, Case* c) {
  return parse_enum(value, ScoresKind::kScaled, ScoresKind::kProbs, &c->params.scores_kind);
}
bool print_seed(const Case& c, std::string* out) {
  append(*out, c.data.seed);
  return c.data.seed != 0;
}
bool parse_seed(Text value, Case* c) { return parse_number(value, &c->data.seed); }
bool print_data(const Case& c, std::string* out) {
  append(*out, to_string(c.data.kind));
  return c.data.kind != DataKind::kNormal;
}
bool parse_data(Text value, Case* c) {
  return parse_enum(value, DataKind::kNormal, DataKind::kDenormal, &c->data.kind);
}
bool print_poison(const Case& c, std::string*) { return c.data.poison; }
bool parse_poison(Text, Case* c) {
  c->data.poison = true;
  return true;
}
bool print_device(const Case& c, std::string* out) {
  const Device& device = c.params.device;
  *out += c.env.sm_version != 0 ? concat("sm", c.env.sm_version) : to_string(device.type);
  if (device.index != 0) *out += concat(":", device.index);
  return device != Device{} || c.env.sm_version != 0;
}
bool parse_device(Text value, Case* c) {
  Device& device = c->params.device;
  const std::size_t colon = value.find(':');
  if (colon != Text::npos &&
      (!parse_number(value.substr(colon + 1), &device.index) || device.index < 0)) {
    return false;
  }
  value = value.substr(0, colon);
  device.type = value == "cpu" ? DeviceType::kCpu : DeviceType::kCuda;
  if (value == "cpu" || value == "cuda") return true;
  return value.starts_with("sm") && parse_number(value.substr(2), &c->env.sm_version) &&
         c->env.sm_version > 0;
}
bool print_isa(const Case& c, std::string* out) {
  if (c.env.isa) append(*out, to_string(*c.env.isa));
  return c.env.isa.has_value();
}
bool parse_isa_word(Text value, Case* c) {
  const Expected<Isa> isa = parse_isa(std::string(value));
  if (isa) c->env.isa = *isa;
  return isa.ok();
}

using P = AttentionParams;
using F = Feature;
using enum WordForm;

constexpr CaseWord kWords[] = {
    {"b", kSize, "N", "batch (1)", print_extent<&P::batch>, parse_extent<&P::batch>},
    {"hq", kSize, "N", "query heads (1)", print_extent<&P::num_heads_q>,
     parse_extents<&P::num_heads_q, &P::num_heads_kv>},
    {"hkv", kSize, "N", "key and value heads (hq)", print_extent<&P::num_heads_kv>,
     parse_extent<&P::num_heads_kv>},
    {"sq", kSize, "N", "queries, required", print_extent<&P::seqlen_q>,
     parse_extents<&P::seqlen_q, &P::seqlen_kv>},
    {"skv", kSize, "N", "keys (sq)", print_extent<&P::seqlen_kv>, parse_extent<&P::seqlen_kv>},
    {"d", kSize, "N", "head_dim of q and k, required", print_extent<&P::head_dim_qk>,
     parse_head_dim},
    {"dv", kSize, "N", "head_dim of v and out (d)", print_head_dim_v, parse_extent<&P::head_dim_v>},
    {"dtype", kDtype, "f64|f32|bf16|f16|f8e4m3|f8e5m2|i8|...", "of q, k, v and out (f32)",
     print_dtype, parse_dtypes},
    {"kv", kValue, "DTYPE", "of k and v (q's)", print_other_dtype<&P::dtype_k, dtype_of_q>,
     parse_kv_dtype},
    {"v", kValue, "DTYPE", "of v (k's)", print_other_dtype<&P::dtype_v, dtype_of_k>,
     parse_other_dtype<&P::dtype_v>},
    {"out", kValue, "DTYPE", "of out (q's; bf16 beside f8)",
     print_other_dtype<&P::dtype_out, dtype_of_out>, parse_out_dtype},
    {"d_out", kValue, "DTYPE", "of d_out, beside f8 with grad (out's)",
     print_other_dtype<&P::dtype_d_out, dtype_of_d_out>, parse_other_dtype<&P::dtype_d_out>},
    {"gradients", kValue, "DTYPE", "of d_q, d_k and d_v, beside f8 with grad (bf16)",
     print_other_dtype<&P::dtype_gradients, dtype_of_gradients>,
     parse_other_dtype<&P::dtype_gradients>},
    {"recipe", kValue, "delayed|current|mxfp8|block", "how the scales of f8 are found",
     print_recipe, parse_recipe},
    {"packed", kFlag, "", "rows of all sequences in one, by cu_seqlens", print_feature<F::kPacked>,
     parse_packed, nullptr},
    {"total_q", kValue, "N", "packed rows of q (b * sq)", print_extent_of<&P::total_q, F::kPacked>,
     parse_extent<&P::total_q>, "packed"},
    {"total_kv", kValue, "N", "packed rows of k and v (b * skv)", print_total_kv,
     parse_extent<&P::total_kv>, "packed"},
    {"rows_q", kValue, "N,...", "rows of each packed sequence of q (drawn from the seed)",
     print_literal_lens<&DataSpec::rows_q, F::kPacked>, parse_rows<&DataSpec::rows_q>, "packed"},
    {"rows_kv", kValue, "N,...", "rows of each packed sequence of k and v",
     print_literal_lens<&DataSpec::rows_kv, F::kPacked>, parse_rows<&DataSpec::rows_kv>, "packed"},
    {"paged", kFlag, "", "k and v in pages, by a page table", print_feature<F::kPaged>,
     parse_paged},
    {"page_size", kValue, "N", "rows of a page (16)", print_extent_of<&P::page_size, F::kPaged>,
     parse_page_size, "paged"},
    {"num_pages", kValue, "N", "pages in all (enough for b * skv)",
     print_extent_of<&P::num_pages, F::kPaged>, parse_extent<&P::num_pages>, "paged"},
    {"append", kEither, "N", "N rows (1) of k_new and v_new are appended to the cache",
     print_data_of<&DataSpec::new_rows, F::kAppendKv>, parse_append},
    {"tree", kEither, "N", "a mask of the last N keys (1) of each sequence; of append's with it",
     print_data_of<&DataSpec::tree_keys, F::kTreeMask>, parse_tree},
    {"rotary", kValue, "N", "rotary embedding of the first N of d",
     print_extent_of<&P::rotary_dim, F::kRotary>, parse_rotary},
    feature_word<F::kRotaryInterleaved>("rotary_interleaved",
                                        "its pairs are neighbours (half of N apart)", "rotary"),
    feature_word<F::kPositions>("positions", "a position for each query (those that new rows have)",
                                "rotary"),
    feature_word<F::kHadamard>("hadamard", "k's rows are keys times the Walsh-Hadamard matrix"),
    feature_word<F::kCacheBatchIdx>("cache_batch_idx", "which cache entry a sequence uses"),
    {"cache_leftpad", kFlag, "", "the first rows of a sequence in k and v are no keys",
     print_feature<F::kCacheLeftpad>, parse_leftpad},
    {"descales", kEither, "all|head", "what q, k and v are multiplied by, or some of them",
     print_descales, parse_descales},
    {"scales", kEither, "token|all|1x32|1x128|128x128",
     "of k and v of 8 bits or 4: of each row, an entry, or blocks", print_scales, parse_scales},
    {"scales_q", kEither, "token|1x32|1x128|128x128",
     "of q of 8-bit floats: of each row, or blocks", print_scales_q, parse_scales_q},
    feature_word<F::kQuantizedProbs>("quantized_probs", "P and dS are rounded to 8 bits, too"),
    feature_word<F::kFutureScales>("future_scales",
                                   "scales of blocks of 128 rows although a mask is causal"),
    feature_word<F::kChannelScales>("channel_scales", "of k of 8 bits or 4: one for each column"),
    {"causal", kFlag, "", "no key after the diagonal", print_causal, parse_causal, nullptr,
     reset_causal},
    {"diag", kValue, "tl|br|N|seq", "the diagonal: top left, bottom right, offset N or one each",
     print_diagonal, parse_diagonal},
    {"window", kValue, "L,R", "keys from L before to R after the diagonal, -1: no bound",
     print_window, parse_window},
    {"softcap", kValue, "X", "X * tanh(score / X)", print_nonzero<&P::softcap>,
     parse_double<&P::softcap>},
    {"score", kValue, "FUNCTION", "an edit of each score, score_function", print_score_function,
     parse_score_function},
    feature_word<F::kScoreCallback>("callback", "a function of the host language edits scores"),
    {"scale", kValue, "X", "softmax_scale (1/sqrt(d))", print_scale,
     parse_double<&P::softmax_scale>},
    feature_word<F::kAlibi>("alibi", "-slope * distance from the diagonal"),
    {"mask", kEither, "B,H,Sq,Skv", "a boolean mask, true = may attend; 1 where it broadcasts",
     print_broadcast<&P::mask_dims, F::kAttnMask>, parse_broadcast<&P::mask_dims, F::kAttnMask>,
     nullptr, nullptr, are_dims},
    {"mask", kValue, "FUNCTION", "which keys a query may attend to, mask_function",
     print_mask_function, parse_mask_function},
    {"block_mask", kEither, "Q,KV", "what is known of mask_function in blocks of Q x KV (128,128)",
     print_block_mask, parse_block_mask},
    {"bias", kEither, "B,H,Sq,Skv", "an additive bias; 1 where it broadcasts",
     print_broadcast<&P::bias_dims, F::kAttnBias>, parse_broadcast<&P::bias_dims, F::kAttnBias>},
    {"bias_dtype", kValue, "DTYPE", "of the bias (f32)",
     print_other_dtype<&P::dtype_bias, f32_dtype>, parse_other_dtype<&P::dtype_bias>, "bias"},
    {"lens", kEither, "q|kv|both", "sequence lengths drawn from the seed", print_lens, parse_lens,
     nullptr, reset_lens},
    {"lens_q", kValue, "N,...", "the lengths of q, one a sequence",
     print_literal_lens<&DataSpec::seqlens_q, F::kSeqlensQ>,
     parse_literal_lens<&DataSpec::seqlens_q, F::kSeqlensQ>},
    {"lens_kv", kValue, "N,...", "the lengths of k and v",
     print_literal_lens<&DataSpec::seqlens_kv, F::kSeqlensKv>,
     parse_literal_lens<&DataSpec::seqlens_kv, F::kSeqlensKv>},
    {"tokens_q", kValue, "N", "the sum of the lengths of q, for predictions (not stated)",
     print_nonzero<&P::tokens_q>, parse_extent<&P::tokens_q>},
    {"tokens_kv", kValue, "N", "the sum of the lengths of k and v", print_nonzero<&P::tokens_kv>,
     parse_extent<&P::tokens_kv>},
    feature_word<F::kSegmentIds>("segments", "a query sees keys of its segment"),
    feature_word<F::kSinks>("sinks", "a logit per head joins the denominator"),
    {"dropout", kValue, "P", "probability of dropping", print_nonzero<&P::dropout_p>,
     parse_double<&P::dropout_p>},
    {"dropout_origin", kValue, "POSITION,KEY,HEAD,HEADS", "where its random numbers begin",
     print_dropout_origin, parse_dropout_origin, "dropout"},
    feature_word<F::kLse>("lse", "log-sum-exp is an output"),
    {"scores", kValue, "scaled|edited|probs", "scores are an output", print_scores, parse_scores},
    feature_word<F::kOutAmax>("amax", "out's largest magnitude is an output"),
    feature_word<F::kSavedStats>("saved", "statistics for a backward are an output"),
    feature_word<F::kNeedsGrad>("grad", "a backward follows"),
    feature_word<F::kDLse>("d_lse", "the backward is given a gradient of lse", "grad"),
    feature_word<F::kDelta>("delta", "the backward is given the sums of d_out * out", "grad"),
    {"layout", kValue, "bhsd|bshd|strided", "of q, k, v and out (bhsd)", print_layout, parse_layout,
     nullptr, reset_layout},
    {"layout_q", kValue, "LAYOUT", "of q", print_one_layout<&P::layout_q>,
     parse_one_layout<&P::layout_q>},
    {"layout_k", kValue, "LAYOUT", "of k", print_one_layout<&P::layout_k>,
     parse_one_layout<&P::layout_k>},
    {"layout_v", kValue, "LAYOUT", "of v", print_one_layout<&P::layout_v>,
     parse_one_layout<&P::layout_v>},
    {"layout_out", kValue, "LAYOUT", "of out", print_one_layout<&P::layout_out>,
     parse_one_layout<&P::layout_out>},
    {"align", kValue, "1|2|4|8|16", "bytes that rows are aligned to (the most possible)",
     [](const Case&, std::string*) { return false; }, parse_all_aligns, nullptr, reset_aligns},
    {"align_q", kValue, "BYTES", "of q", print_align<&P::align_q_log2>,
     parse_align<&P::align_q_log2>},
    {"align_k", kValue, "BYTES", "of k", print_align<&P::align_k_log2>,
     parse_align<&P::align_k_log2>},
    {"align_v", kValue, "BYTES", "of v", print_align<&P::align_v_log2>,
     parse_align<&P::align_v_log2>},
    {"align_out", kValue, "BYTES", "of out", print_align<&P::align_out_log2>,
     parse_align<&P::align_out_log2>},
    {"seed", kValue, "N", "of data, lengths and dropout (0)", print_seed, parse_seed},
    {"data", kValue, "normal|large|outlier|constant|finfo_min|denormal",
     "what q, k and v hold (normal)", print_data, parse_data},
    {"poison", kFlag, "", "NaN and inf in k and v behind masks", print_poison, parse_poison},
    {"device", kValue, "cpu|cuda|smNN", "cpu:I, cuda:I; sm90 is compute capability 9.0",
     print_device, parse_device},
    {"isa", kValue, "scalar|avx2|avx512|avx512_bf16|amx_bf16|neon|neon_bf16",
     "the instruction set (this machine's)", print_isa, parse_isa_word},
};

}  // namespace

std::span<const CaseWord> case_words() noexcept { return kWords; }

}  // namespace regard
