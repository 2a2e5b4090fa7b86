#include "conformance/fill.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "conformance/problem.h"
#include "conformance/rng.h"
#include "oracle/number.h"
#include "oracle/rules.h"

namespace regard::conformance {
namespace {

// One stream of random numbers a tensor, so that a tensor's values do not depend on the others.
enum Stream : std::uint64_t {
  kQ = 1,
  kK,
  kV,
  kMask,
  kMaskRows,
  kBias,
  kBiasRows,
  kSinks,
  kSegments,
  kLensQ,
  kLensKv,
  kOffsets,
  kScalars,
  kDOut,
  kDLse,
  kDescaleQ,
  kDescaleK,
  kDescaleV,
  kScalesK,
  kScalesV,
  kChannelScales,
  kStartsQ,
  kStartsKv,
  kPages,
  kEntries,
  kNewK,
  kNewV,
  kAngles,
  kPositions,
  kLeftpad,
  kTree,
  kDescaleDOut,
  kGradientScales,
  kScalesQ,
  kScalesDOut,
};

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kCodesOfOne = 40.0;   // of i8
constexpr double kLargeScore = 300.0;  // deviation of scores for data=large: some reach 1e3

class Filler {
 public:
  Filler(const Case& c, AttentionGradRequest* request) : case_(c), r_(*request) {}

  void run() {
    fill_main();
    if (r_.attn_mask.present()) fill_mask();
    if (r_.tree_mask.present()) fill_tree();
    if (r_.attn_bias.present()) fill_bias();
    fill_alibi();
    fill_sinks();
    fill_segments();
    const AttentionParams& p = case_.params;
    fill_starts(r_.cu_seqlens_q, case_.data.rows_q, p.seqlen_q, p.total_q, kStartsQ);
    fill_starts(r_.cu_seqlens_kv, case_.data.rows_kv, p.seqlen_kv, p.total_kv, kStartsKv);
    fill_lengths(r_.seqlens_q, case_.data.seqlens_q, p.seqlen_q, kLensQ);
    const std::int64_t appended = r_.k_new.present() ? r_.k_new.shape[2] : 0;
    fill_lengths(r_.seqlens_kv, case_.data.seqlens_kv, p.seqlen_kv - appended, kLensKv);
    fill_new_rows(r_.k_new, kNewK);
    fill_new_rows(r_.v_new, kNewV);
    if (r_.cu_seqlens_q.present()) {
      hold_lengths(r_.seqlens_q, r_.cu_seqlens_q);
      if (r_.cu_seqlens_kv.present()) hold_lengths(r_.seqlens_kv, r_.cu_seqlens_kv);
    }
    fill_leftpad();
    fill_angles();
    fill_pages();
    fill_entries();
    fill_offsets();
    fill_scales(r_.scales_q, kScalesQ, r_.q.dtype);
    fill_scales(r_.scales_k, kScalesK, r_.k.dtype);
    fill_scales(r_.scales_v, kScalesV, r_.v.dtype);
    fill_scales(r_.channel_scales_k, kChannelScales,
                r_.scales_k.present() ? Dtype::kF8E4M3 : r_.k.dtype);
    fill_descale(r_.descale_q, kDescaleQ);
    fill_descale(r_.descale_k, kDescaleK);
    fill_descale(r_.descale_v, kDescaleV);
    const Rng rng(case_.data.seed, kScalars);
    r_.rng_seed = r_.saved.rng_seed = rng.bits_at(0);
    r_.rng_offset = r_.saved.rng_offset = rng.bits_at(1);
    fill_upstream();
    fill_captured(case_, &r_);
    fill_block_mask(case_, &r_);
  }

 private:
  DataKind kind() const { return case_.data.kind; }
  Rng stream(Stream s) const { return Rng(case_.data.seed, s); }

  /// f(index, position in the dense tensor, head) for every element of a [B,H,S,D] tensor.
  template <class F>
  void fill_rows(const TensorView& view, F&& value) {
    std::uint64_t position = 0;
    for_each_element(view, [&](const std::int64_t(&index)[kMaxRank], unsigned char* element) {
      const double number = value(index, position++);
      if (view.dtype == Dtype::kU4) return oracle::set_element(view, index, number);
      oracle::encode(number, element, view.dtype);
    });
  }

  double query_gain(std::int64_t head) const {
    if (kind() == DataKind::kOutlier) return head % 3 == 0 ? 20.0 : 1.0;
    if (kind() != DataKind::kLarge) return 1.0;
    const double deviation = std::fabs(case_.params.softmax_scale) *
                             std::sqrt(static_cast<double>(case_.params.head_dim_qk));
    return std::clamp(kLargeScore / deviation, 1.0, 1000.0);
  }

  /// A third of the elements, with data=denormal.
  bool is_denormal(const Rng& rng, std::uint64_t n) const {
    return kind() == DataKind::kDenormal && rng.uniform_at(~n) < 1.0 / 3.0;
  }

  /// A number below the smallest normal one of the tensor's type.
  static double denormal_at(const Rng& rng, std::uint64_t n, const TensorView& view) {
    const double smallest_normal =
        view.dtype == Dtype::kF64
            ? std::numeric_limits<double>::min()
            : oracle::half_of_smallest(view.dtype) / oracle::unit_roundoff(view.dtype);
    return (2.0 * rng.uniform_at(n) - 1.0) * smallest_normal;
  }

  /// 8 bits have no room for the gains of q.
  static double hold(double value, const TensorView& view) {
    const double max = -oracle::lowest(view.dtype);
    return is_f8(view.dtype) ? std::clamp(value, -max, max) : value;
  }

  /// What brings codes to numbers about 1.
  void fill_scales(const TensorView& scales, Stream s, Dtype codes) {
    if (!scales.present()) return;
    const Rng rng = stream(s);
    if (codes == Dtype::kU4) {
      fill_rows(scales, [&](const auto& at, std::uint64_t n) {
        return at[3] % 2 == 0 ? 0.05 + 0.25 * rng.uniform_at(n) : -1.0 - rng.uniform_at(n);
      });
      return;
    }
    const double unit = codes == Dtype::kI8 ? 1.0 / kCodesOfOne : 1.0;
    fill_rows(scales, [&](const auto&, std::uint64_t n) {
      return unit * (0.25 + 1.75 * rng.uniform_at(n));
    });
  }

  /// A few are 0: what a quantiser may store of a tensor of zeros.
  void fill_descale(const TensorView& scale, Stream s) {
    if (!scale.present()) return;
    const Rng rng = stream(s);
    fill_rows(scale, [&](const auto&, std::uint64_t n) {
      return rng.uniform_at(~n) < 0.05 ? 0.0 : 0.25 + 1.75 * rng.uniform_at(n);
    });
  }

  /// Integers are codes of numbers about 1.
  static double code_of(double number, Dtype dtype) {
    if (dtype == Dtype::kU4) return 7.5 + 3.5 * number;
    return dtype == Dtype::kI8 ? number * kCodesOfOne : number;
  }

  void fill_main() {
    const Rng q = stream(kQ), k = stream(kK), v = stream(kV);
    const bool constant = kind() == DataKind::kConstant;
    // The first element of a row's head and entry of the batch; pages of a head are alike.
    const auto start_of = [&](const TensorView& view, const auto& at, std::uint64_t n) {
      n -= static_cast<std::uint64_t>(at[2] * view.shape[3]);
      if (!r_.page_table.present()) return n;
      return n - static_cast<std::uint64_t>(at[0] * view.shape[1] * view.shape[2] * view.shape[3]);
    };
    // Outputs are sums of v's elements, and d_k and d_q of q's and k's. The dot product of bf16 on
    // AVX-512 takes denormals as 0, and in f64 each denormal product is rounded, which the
    // tolerance of gradients cannot count: it adds up squares of errors, and these are 0.
    const bool normal_qk =
        r_.options.needs_grad && (r_.q.dtype == Dtype::kBf16 || r_.q.dtype == Dtype::kF64);
    const bool normal_v = r_.v.dtype == Dtype::kBf16;
    fill_rows(r_.q, [&](const auto& at, std::uint64_t n) {
      // Constant rows: one number along a row of Q.
      if (constant) n -= static_cast<std::uint64_t>(at[3]);
      if (!normal_qk && is_denormal(q, n)) return denormal_at(q, n, r_.q);
      return hold(q.normal_at(n) * query_gain(at[1]), r_.q);
    });
    fill_rows(r_.k, [&](const auto& at, std::uint64_t n) {
      if (!normal_qk && is_denormal(k, n)) return denormal_at(k, n, r_.k);
      // ... the same K row for every key in even heads: all scores of a row are equal ...
      if (constant && at[1] % 2 == 0) n = start_of(r_.k, at, n);
      const bool outlier = kind() == DataKind::kOutlier && at[3] % 16 == 3;
      return code_of(k.normal_at(n) * (outlier ? 8.0 : 1.0), r_.k.dtype);
    });
    fill_rows(r_.v, [&](const auto& at, std::uint64_t n) {
      // All of V in odd heads: the output is denormal there.
      const bool whole = kind() == DataKind::kDenormal && at[1] % 2 == 1;
      if (!normal_v && (is_denormal(v, n) || whole)) {
        return denormal_at(v, n, r_.v);
      }
      // ... and the same V row in odd heads: the output is that row.
      if (constant && at[1] % 2 == 1) n = start_of(r_.v, at, n);
      return code_of(v.normal_at(n), r_.v.dtype);
    });
  }

  /// Elements at random, or runs of keys that neighbouring rows share, as padding and documents
  /// have.
  void fill_mask() {
    const TensorView& mask = r_.attn_mask;
    const Rng rows = stream(kMaskRows), elements = stream(kMask);
    const double any_true = mask.dtype == Dtype::kU8 ? 255.0 : 1.0;
    const bool has_runs = rows.uniform_at(~std::uint64_t{0}) < 0.5;
    const auto run = 1 + static_cast<std::int64_t>(rows.uniform_at(~std::uint64_t{1}) * 200.0);
    fill_rows(mask, [&](const auto& at, std::uint64_t n) {
      const double row = rows.uniform_at(n / static_cast<std::uint64_t>(mask.shape[3]));
      if (row < 0.1) return 0.0;  // sees nothing
      if (has_runs) {
        const std::int64_t block = (at[0] * mask.shape[1] + at[1]) * mask.shape[2] + at[2] / 40;
        const auto place = static_cast<std::uint64_t>(block * mask.shape[3] + at[3] / run);
        return elements.uniform_at(place) < 0.6 ? 0.0 : any_true;
      }
      if (row < 0.2) return any_true;
      const double draw = elements.uniform_at(n);
      return draw < 0.3 ? 0.0 : draw < 0.6 ? any_true : 1.0;
    });
  }

  /// Any keys, whether they make a tree or not.
  void fill_tree() {
    const Rng rng = stream(kTree);
    const double any_true = r_.tree_mask.dtype == Dtype::kU8 ? 255.0 : 1.0;
    fill_rows(r_.tree_mask, [&](const auto&, std::uint64_t n) {
      return rng.uniform_at(n) < 0.5 ? 0.0 : any_true;
    });
  }

  void fill_bias() {
    const TensorView& bias = r_.attn_bias;
    const Rng rows = stream(kBiasRows), elements = stream(kBias);
    const bool finfo = kind() == DataKind::kFinfoMin;
    // An f64 bias of an f32 problem is read as f32, where f64's least number would be -inf.
    const bool narrow = bias.dtype == Dtype::kF64 && r_.q.dtype != Dtype::kF64;
    const double lowest = oracle::lowest(narrow ? Dtype::kF32 : bias.dtype);
    fill_rows(bias, [&](const auto&, std::uint64_t n) {
      const double row = rows.uniform_at(n / static_cast<std::uint64_t>(bias.shape[3]));
      const double draw = elements.uniform_at(n);
      if (row < 0.06 || draw < 0.04) return -kInf;
      if (finfo && (row < 0.4 || draw < 0.15)) return lowest;
      return 1.5 * elements.normal_at(~n);
    });
  }

  void fill_alibi() {
    if (!r_.alibi_slopes.present()) return;
    fill_rows(r_.alibi_slopes, [&](const auto&, std::uint64_t n) {
      return std::ldexp(1.0, -1 - static_cast<int>(n % 8));
    });
  }

  void fill_sinks() {
    if (!r_.sinks.present()) return;
    const Rng rng = stream(kSinks);
    fill_rows(r_.sinks, [&](const auto&, std::uint64_t n) {
      if (rng.uniform_at(~n) < 0.1) return -kInf;
      return rng.normal_at(n) * (kind() == DataKind::kLarge ? 100.0 : 2.0);
    });
  }

  /// Runs of equal ids in most sequences; in some, ids at random.
  void fill_segments() {
    if (!r_.segment_ids_q.present()) return;
    const Rng rng = stream(kSegments);
    for (const TensorView* view : {&r_.segment_ids_q, &r_.segment_ids_kv}) {
      const auto base = static_cast<std::uint64_t>(view == &r_.segment_ids_q ? 0 : 1) << 40;
      double id = 0;
      fill_rows(*view, [&](const auto& at, std::uint64_t n) {
        const std::int64_t b = view->rank == 1 ? 0 : at[0], row = at[view->rank == 1 ? 0 : 1];
        if (row == 0) id = -1;
        const double draw = rng.uniform_at(base + n);
        if (rng.uniform_at(~static_cast<std::uint64_t>(b)) < 0.2) return std::floor(draw * 3);
        if (draw < 0.1) id += 1;
        return id;
      });
    }
  }

  /// The first sequence full, every fifth empty, or as the case states.
  void fill_lengths(const TensorView& view, const std::vector<std::int64_t>& literal,
                    std::int64_t extent, Stream s) {
    if (!view.present()) return;
    const Rng rng = stream(s);
    fill_rows(view, [&](const auto& at, std::uint64_t n) -> double {
      if (n < literal.size()) return static_cast<double>(literal[n]);
      if (n == 0) return static_cast<double>(extent);
      if (n % 5 == 4 || extent == 0) return 0.0;
      return 1.0 + std::floor(rng.uniform_at(static_cast<std::uint64_t>(at[0])) *
                              static_cast<double>(extent));
    });
  }

  /// Packed sequences: the first as long as it may be, every fifth empty, the others of any length
  /// that there is room for, or as the case states. Some rows may be left at the end.
  void fill_starts(const TensorView& view, const std::vector<std::int64_t>& literal,
                   std::int64_t longest, std::int64_t total, Stream s) {
    if (!view.present()) return;
    const Rng rng = stream(s);
    std::int64_t next = 0;
    for_each_element(view, [&](const auto& at, unsigned char* element) {
      write_index(next, element, view.dtype);
      const auto b = static_cast<std::uint64_t>(at[0]);
      const auto room = static_cast<double>(std::min(longest, total - next));
      if (b < literal.size()) {
        next += literal[b];
      } else if (b == 0) {
        next += std::min(longest, total);
      } else if (b % 5 != 4) {
        next += static_cast<std::int64_t>(std::floor(rng.uniform_at(b) * (room + 1.0)));
      }
    });
  }

  static void write_index(std::int64_t value, unsigned char* to, Dtype dtype) {
    const auto narrow = static_cast<std::int32_t>(value);
    const auto* const from = dtype == Dtype::kI64 ? reinterpret_cast<const unsigned char*>(&value)
                                                  : reinterpret_cast<const unsigned char*>(&narrow);
    std::copy_n(from, size_of(dtype), to);
  }

  /// No length beyond its packed sequence.
  static void hold_lengths(const TensorView& lengths, const TensorView& starts) {
    if (!lengths.present()) return;
    for_each_element(lengths, [&](const auto& at, unsigned char* element) {
      const double rows = oracle::element(starts, at[0] + 1) - oracle::element(starts, at[0]);
      oracle::encode(std::min(oracle::element(lengths, at[0]), rows), element, lengths.dtype);
    });
  }

  /// None, all rows, or some that a sequence has.
  void fill_leftpad() {
    if (!r_.cache_leftpad.present()) return;
    const Rng rng = stream(kLeftpad);
    fill_rows(r_.cache_leftpad, [&](const auto& at, std::uint64_t n) -> double {
      const double draw = rng.uniform_at(n), length = oracle::element(r_.seqlens_kv, at[0]);
      if (draw < 0.1) return 0.0;
      return draw < 0.2 ? length : std::floor(rng.uniform_at(~n) * (length + 1.0));
    });
  }

  void fill_new_rows(const TensorView& rows, Stream s) {
    if (!rows.present()) return;
    const Rng rng = stream(s);
    fill_rows(rows, [&](const auto&, std::uint64_t n) { return rng.normal_at(n); });
  }

  /// The usual angles of each position, and any positions.
  void fill_angles() {
    for (const TensorView* table : {&r_.rotary_cos, &r_.rotary_sin}) {
      if (!table->present()) continue;
      fill_rows(*table, [&](const auto& at, std::uint64_t) {
        const double pairs = static_cast<double>(table->shape[1]);
        const double angle =
            static_cast<double>(at[0]) * std::pow(1e4, -static_cast<double>(at[1]) / pairs);
        return table == &r_.rotary_cos ? std::cos(angle) : std::sin(angle);
      });
    }
    if (!r_.positions.present()) return;
    const Rng rng = stream(kPositions);
    const auto rows = static_cast<double>(r_.rotary_cos.shape[0]);
    fill_rows(r_.positions,
              [&](const auto&, std::uint64_t n) { return std::floor(rng.uniform_at(n) * rows); });
  }

  /// Pages in any order for the keys of each sequence, one used twice where there are too few, and
  /// some that other sequences have, unless rows are appended; -1 or any page behind its length, or
  /// before its first key.
  void fill_pages() {
    const TensorView& table = r_.page_table;
    if (!table.present()) return;
    Rng rng = stream(kPages);
    const std::int64_t pages = case_.params.num_pages;
    std::vector<std::int32_t> unused(static_cast<std::size_t>(pages));
    for (std::size_t n = 0; n < unused.size(); ++n) unused[n] = static_cast<std::int32_t>(n);
    for_each_element(table, [&](const auto& at, unsigned char* element) {
      const std::int64_t appended = r_.k_new.present() ? r_.k_new.shape[2] : 0;
      const auto length = static_cast<std::int64_t>(oracle::element(r_.seqlens_kv, at[0]));
      const auto leftpad = static_cast<std::int64_t>(
          r_.cache_leftpad.present() ? oracle::element(r_.cache_leftpad, at[0]) : 0.0);
      const bool has_keys = at[1] * case_.params.page_size < length + appended &&
                            (at[1] + 1) * case_.params.page_size > leftpad;
      std::int64_t id = -1;
      if (has_keys && !unused.empty() && (appended > 0 || !rng.chance(0.1))) {
        const auto n = static_cast<std::size_t>(rng.between(0, std::ssize(unused) - 1));
        std::swap(unused[n], unused.back());
        id = unused.back();
        unused.pop_back();
      } else if (pages > 0 && (has_keys || rng.chance(0.3))) {
        id = rng.between(0, pages - 1);
      }
      write_index(id, element, table.dtype);
    });
  }

  /// Any entries, each of one sequence in most cases.
  void fill_entries() {
    const TensorView& entries = r_.cache_batch_idx;
    if (!entries.present()) return;
    Rng rng = stream(kEntries);
    const std::int64_t count = r_.k.shape[0];
    const bool shared = rng.chance(0.2) && !r_.k_new.present();
    const std::int64_t first = rng.between(0, std::max<std::int64_t>(count - 1, 0));
    for_each_element(entries, [&](const auto& at, unsigned char* element) {
      const std::int64_t other = count - 1 - (first + at[0]) % count;
      write_index(shared ? rng.between(0, count - 1) : other, element, entries.dtype);
    });
  }

  void fill_upstream() {
    const Rng d_out = stream(kDOut), d_lse = stream(kDLse);
    if (r_.d_out.present()) {
      fill_rows(r_.d_out, [&](const auto&, std::uint64_t n) { return d_out.normal_at(n); });
    }
    fill_descale(r_.descale_d_out, kDescaleDOut);
    fill_scales(r_.scales_d_out, kScalesDOut, r_.d_out.dtype);
    if (r_.gradient_scales.present()) {
      const Rng scales = stream(kGradientScales);
      fill_rows(r_.gradient_scales, [&](const auto&, std::uint64_t n) {
        return std::exp2(std::floor(12.0 * scales.uniform_at(n)) - 4.0);
      });
    }
    if (r_.d_lse.present()) {
      fill_rows(r_.d_lse, [&](const auto&, std::uint64_t n) { return d_lse.normal_at(n); });
    }
  }

  void fill_offsets() {
    r_.dropout_origin = case_.data.dropout_origin;
    if (case_.params.diagonal == Diagonal::kOffset) r_.diagonal_offset = case_.data.diagonal_offset;
    if (!r_.diagonal_offsets.present()) return;
    r_.diagonal_offset = 0;
    Rng rng = stream(kOffsets);
    // Positions saturate: no offset may wrap. Not with ALiBi, whose rows would be all but constant.
    // Nor beside functions, whose positions have 32 bits.
    const bool extremes = !r_.alibi_slopes.present() && r_.options.score_function.empty() &&
                          r_.options.mask_function.empty();
    for_each_element(r_.diagonal_offsets, [&](const auto&, unsigned char* element) {
      std::int64_t offset = rng.between(-case_.params.seqlen_q - 1, case_.params.seqlen_kv + 1);
      const double draw = rng.uniform();
      if (extremes && draw < 0.04) offset = std::numeric_limits<std::int64_t>::max();
      if (extremes && draw > 0.96) offset = std::numeric_limits<std::int64_t>::min();
      std::copy_n(reinterpret_cast<const unsigned char*>(&offset), sizeof offset, element);
    });
  }

  const Case& case_;
  AttentionGradRequest& r_;
};

}  // namespace

void fill_inputs(const Case& c, AttentionGradRequest* request) { Filler(c, request).run(); }

}  // namespace regard::conformance
