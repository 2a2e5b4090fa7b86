#include "oracle/padded.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "oracle/blocks.h"
#include "oracle/hadamard.h"
#include "oracle/number.h"
#include "oracle/rules.h"

namespace regard::oracle {
namespace {

constexpr std::int64_t kMaxPaddedElements = std::int64_t{1} << 40;

Status refused(const std::string& text) {
  return Status(StatusCode::kInvalidArgument, "[oracle] " + text);
}

std::int64_t integer(const TensorView& view, std::int64_t index) {
  const std::int64_t at = index * view.strides[0] * size_of(view.dtype);
  const char* const from = static_cast<const char*>(view.data) + at;
  if (view.dtype == Dtype::kI64) {
    std::int64_t value = 0;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  std::int32_t value = 0;
  std::memcpy(&value, from, sizeof value);
  return value;
}

std::size_t offset_of(const TensorView& view, const std::int64_t (&index)[kMaxRank]) {
  std::int64_t at = 0;
  for (int dim = 0; dim < view.rank; ++dim) at += index[dim] * view.strides[dim];
  return static_cast<std::size_t>(at * size_of(view.dtype));
}

/// Calls f(index) for every index of the shape.
template <class F>
void for_each_index(const TensorView& view, F f) {
  std::int64_t extent[kMaxRank] = {1, 1, 1, 1};
  std::copy(view.shape, view.shape + view.rank, extent);
  std::int64_t at[kMaxRank];
  for (at[0] = 0; at[0] < extent[0]; ++at[0]) {
    for (at[1] = 0; at[1] < extent[1]; ++at[1]) {
      for (at[2] = 0; at[2] < extent[2]; ++at[2]) {
        for (at[3] = 0; at[3] < extent[3]; ++at[3]) f(at);
      }
    }
  }
}

/// Rows [1,H,longest,D] of each sequence in the places of [1,H,total,D]; `behind` in rows of none.
template <class T>
std::vector<T> pack_rows(const std::vector<T>& padded, const Starts& starts, std::int64_t total,
                         std::int64_t heads, std::int64_t longest, std::int64_t size,
                         const T& behind) {
  std::vector<T> packed(static_cast<std::size_t>(heads * total * size), behind);
  for (std::int64_t row = 0; row < total; ++row) {
    const PackedRow at = starts.find(row);
    for (std::int64_t h = 0; h < heads && at.b >= 0; ++h) {
      const std::int64_t from = ((at.b * heads + h) * longest + at.position) * size;
      std::copy_n(padded.begin() + from, size, packed.begin() + (h * total + row) * size);
    }
  }
  return packed;
}

Gradient pack_gradient(const Gradient& padded, const Starts& starts, std::int64_t total) {
  if (padded.exact.empty() && total == 0) return padded;
  const std::int64_t heads = padded.shape[1], longest = padded.shape[2], size = padded.shape[3];
  Gradient packed;
  const std::int64_t shape[] = {1, heads, total, size};
  std::copy(shape, shape + kMaxRank, packed.shape);
  packed.exact = pack_rows(padded.exact, starts, total, heads, longest, size, 0.0L);
  packed.ideal = pack_rows(padded.ideal, starts, total, heads, longest, size, 0.0);
  packed.sizes = pack_rows(padded.sizes, starts, total, heads, longest, size, Conditioning{});
  return packed;
}

}  // namespace

Expected<Starts> Starts::read(const TensorView& cu_seqlens, std::int64_t total, const char* name) {
  const bool is_index = cu_seqlens.dtype == Dtype::kI32 || cu_seqlens.dtype == Dtype::kI64;
  if (cu_seqlens.rank != 1 || cu_seqlens.shape[0] < 1 || !is_index) {
    return refused(std::string(name) + " (" + to_string(cu_seqlens) + ") must be i32 or i64 [B+1]");
  }
  Starts made;
  std::int64_t before = 0;
  for (std::int64_t b = 0; b < cu_seqlens.shape[0]; ++b) {
    const std::int64_t start = integer(cu_seqlens, b);
    if (start < before || start > total || (b == 0 && start != 0)) {
      return refused(std::string(name) + "[" + std::to_string(b) + "] (" + std::to_string(start) +
                     "): starts ascend from 0 to at most " + std::to_string(total));
    }
    made.starts_.push_back(before = start);
  }
  return made;
}

std::int64_t Starts::longest() const {
  std::int64_t longest = 0;
  for (std::int64_t b = 0; b < count(); ++b) longest = std::max(longest, length(b));
  return longest;
}

PackedRow Starts::find(std::int64_t row) const {
  // Empty sequences begin where the next one does.
  const auto after = std::upper_bound(starts_.begin(), starts_.end(), row);
  if (after == starts_.end()) return {};
  const std::int64_t b = after - starts_.begin() - 1;
  return {b, row - begin(b)};
}

PackedRow Padded::query_of(std::int64_t b, std::int64_t row) const {
  return is_packed_ ? q_.find(row) : PackedRow{b, row};
}

KeyPlace Padded::place_of_key(std::int64_t b, std::int64_t j) const {
  if (leftpad_.present()) {
    j += integer(leftpad_, b);
    if (j >= rows_) return {};
  }
  if (page_table_.present()) {
    const std::int64_t at[kMaxRank] = {b, j / page_size_};
    std::int32_t id = 0;
    std::memcpy(&id, static_cast<const char*>(page_table_.data) + offset_of(page_table_, at),
                sizeof id);
    return {id, j % page_size_};
  }
  if (entries_.present()) return {integer(entries_, b), j};
  if (is_packed_) return {0, kv_.begin(b) + j};
  return {b, j};
}

Expected<Padded> Padded::make(const AttentionGradRequest& given) {
  Padded made;
  const AttentionGradRequest request = with_spread_scales(given, &made.memory_);
  made.padded_ = request;
  if (request.cu_seqlens_q.present()) {
    if (Status status = made.pad_all(request); !status.ok()) return status;
  }
  if (request.page_table.present() || request.cache_batch_idx.present() ||
      request.k_new.present() || request.cache_leftpad.present()) {
    if (Status status = made.pad_cache(request); !status.ok()) return status;
  }
  if (request.rotary_cos.present()) {
    if (Status status = made.rotate(request); !status.ok()) return status;
  }
  if (request.options.hadamard) {
    if (Status status = made.mix(); !status.ok()) return status;
  }
  if (request.cache_leftpad.present()) {
    if (Status status = made.skip_leftpad(); !status.ok()) return status;
  }
  if (request.k_new.present()) {
    if (Status status = made.append(); !status.ok()) return status;
  }
  return made;
}

Status Padded::pad_all(const AttentionGradRequest& packed) {
  if (packed.q.rank != 4 || packed.q.shape[0] != 1 || !is_known(packed.q.dtype)) {
    return refused("packed q needs the shape [1,H,total,D], it is " + to_string(packed.q));
  }
  is_packed_ = true;
  total_q_ = packed.q.shape[2];
  Expected<Starts> q = Starts::read(packed.cu_seqlens_q, total_q_, "cu_seqlens_q");
  if (!q) return q.status();
  q_ = std::move(*q);
  if (!packed.page_table.present()) {
    if (Status status = pad_packed_keys(packed); !status.ok()) return status;
  }
  const std::int64_t longest = std::max(q_.longest(), kv_.longest());
  const std::int64_t widest = std::max(packed.q.shape[3], packed.v.shape[3]);
  const double elements = static_cast<double>(q_.count()) * static_cast<double>(longest) *
                          static_cast<double>(packed.q.shape[1]) * static_cast<double>(widest);
  if (elements > static_cast<double>(kMaxPaddedElements))
    return refused("packed sequences are too many, too long or too uneven to be padded");
  AttentionGradRequest& p = padded_;
  p.q = pad_rows(packed.q, q_, 2);
  p.segment_ids_q = pad_rows(packed.segment_ids_q, q_, 0);
  p.positions = pad_rows(packed.positions, q_, 0);
  p.scales_q = pad_packed_scales(packed.scales_q, q_, total_q_);
  p.d_out = pad_rows(packed.d_out, q_, 2);
  p.scales_d_out = pad_packed_scales(packed.scales_d_out, q_, total_q_);
  p.d_lse = pad_rows(packed.d_lse, q_, 1);
  p.seqlens_q = pad_lengths(packed.seqlens_q, q_);
  if (!packed.page_table.present()) {
    p.k = pad_rows(packed.k, kv_, 2);
    p.v = pad_rows(packed.v, kv_, 2);
    p.segment_ids_kv = pad_rows(packed.segment_ids_kv, kv_, 0);
    p.scales_k = pad_packed_scales(packed.scales_k, kv_, total_kv_);
    p.scales_v = pad_packed_scales(packed.scales_v, kv_, total_kv_);
    p.seqlens_kv = pad_lengths(packed.seqlens_kv, kv_);
  }
  p.cu_seqlens_q = p.cu_seqlens_kv = TensorView{};
  return {};
}

/// [1,H,total] becomes [B,H,longest]; one for all rows stays.
TensorView Padded::pad_packed_scales(TensorView scales, const Starts& starts, std::int64_t total) {
  if (!scales.present() || scales.shape[2] != total) return scales;
  if (scales.rank == kMaxRank) return pad_rows(scales, starts, 2);
  scales.rank = kMaxRank;
  scales.shape[3] = scales.strides[3] = 1;
  TensorView padded = pad_rows(scales, starts, 2);
  padded.rank = 3;
  return padded;
}

Status Padded::pad_packed_keys(const AttentionGradRequest& packed) {
  for (const TensorView* view : {&packed.k, &packed.v}) {
    if (view->rank != 4 || view->shape[0] != 1 || !is_known(view->dtype)) {
      return refused("packed k and v need the shape [1,H,total,D], one is " + to_string(*view));
    }
  }
  total_kv_ = packed.k.shape[2];
  Expected<Starts> kv = Starts::read(packed.cu_seqlens_kv, total_kv_, "cu_seqlens_kv");
  if (!kv) return kv.status();
  kv_ = std::move(*kv);
  if (q_.count() != kv_.count() || packed.v.shape[2] != total_kv_) {
    return refused("cu_seqlens_q, cu_seqlens_kv, k and v must have as many sequences and rows");
  }
  return {};
}

/// K and V [B,H,Skv,D], 0 where a key lies in no page; the seqlens_kv given say how many are keys.
Status Padded::pad_cache(const AttentionGradRequest& cached) {
  const TensorView& table = cached.page_table;
  if (Status status = check_cache(cached); !status.ok()) return status;
  page_table_ = table;
  entries_ = cached.cache_batch_idx;
  page_size_ = cached.k.shape[2];
  const std::int64_t batch = padded_.q.shape[0];
  const std::int64_t seqlen = page_size_ * (table.present() ? table.shape[1] : 1);
  rows_ = seqlen;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t j = 0; j < seqlen; j += page_size_) {
      const std::int64_t entry = place_of_key(b, j).entry;
      if (entry >= (table.present() ? -1 : 0) && entry < cached.k.shape[0]) continue;
      return refused("an entry of page_table or cache_batch_idx (" + std::to_string(entry) +
                     ") must be one of k, " + std::to_string(cached.k.shape[0]));
    }
  }
  leftpad_ = cached.cache_leftpad;
  padded_.k = pad_cached_rows(cached.k, batch, seqlen);
  padded_.v = pad_cached_rows(cached.v, batch, seqlen);
  const auto has_scale_a_row = [&](const TensorView& scales) {
    return scales.present() && scales.shape[2] == cached.k.shape[2];
  };
  scale_a_row_k_ = has_scale_a_row(cached.scales_k);
  scale_a_row_v_ = has_scale_a_row(cached.scales_v);
  padded_.scales_k = pad_scales(cached.scales_k, batch, seqlen);
  padded_.scales_v = pad_scales(cached.scales_v, batch, seqlen);
  padded_.page_table = padded_.cache_batch_idx = TensorView{};
  return {};
}

Status Padded::check_cache(const AttentionGradRequest& cached) const {
  const TensorView& table = cached.page_table;
  if (table.present() && cached.cache_batch_idx.present()) {
    return refused("page_table and cache_batch_idx exclude each other");
  }
  if (cached.k.rank != 4 || cached.v.rank != 4 || (table.present() && cached.k.shape[2] < 1)) {
    return refused("k and v of a cache must have rank 4, and pages at least one row");
  }
  const TensorView& index = table.present() ? table : cached.cache_batch_idx;
  const int rank = table.present() ? 2 : 1;
  if (!index.present()) return {};
  if (index.dtype == Dtype::kI32 && index.rank == rank && index.shape[0] == padded_.q.shape[0]) {
    return {};
  }
  return refused("page_table must be i32 [B,pages], cache_batch_idx i32 [B]");
}

/// RoFormer's rotation of one row. Each product, each sum and the result are rounded as
/// docs/semantics.md states: to f32 (f64 for f64), then to the row's type.
void Padded::rotate_row(const TensorView& cos, const TensorView& sin, std::int64_t position,
                        const TensorView& from, const TensorView& to,
                        const std::int64_t (&row)[3]) const {
  const Dtype of_sums = from.dtype == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32;
  const bool is_f8 = from.dtype == Dtype::kF8E4M3 || from.dtype == Dtype::kF8E5M2;
  const std::int64_t half = cos.shape[1];
  const auto rounded = [&](double value) { return round_to(value, of_sums); };
  const auto put = [&](std::int64_t d, double value) {
    const std::int64_t place[kMaxRank] = {row[0], row[1], row[2], d};
    const double max = -lowest(to.dtype);  // 8 bits saturate
    const double held = is_f8 && !std::isnan(value) ? std::clamp(value, -max, max) : value;
    encode(held, static_cast<char*>(to.data) + offset_of(to, place), to.dtype);
  };
  for (std::int64_t x = 0; x < half; ++x) {
    const std::int64_t first = padded_.options.rotary_interleaved ? 2 * x : x;
    const std::int64_t second = padded_.options.rotary_interleaved ? first + 1 : half + x;
    const double c = element(cos, position, x), s = element(sin, position, x);
    const double u = element(from, row[0], row[1], row[2], first),
                 w = element(from, row[0], row[1], row[2], second);
    put(first, rounded(rounded(u * c) - rounded(w * s)));
    put(second, rounded(rounded(w * c) + rounded(u * s)));
  }
}

/// Queries and new keys at the positions given, or behind the rows that a sequence has; without a
/// causal mask and a window all queries stand at the first of them.
Status Padded::rotate(const AttentionGradRequest& cached) {
  AttentionGradRequest& r = padded_;
  const TensorView &cos = cached.rotary_cos, &sin = cached.rotary_sin;
  const AttentionOptions& options = cached.options;
  const bool ascends = options.is_causal || options.window_left >= 0 || options.window_right >= 0;
  const bool stated = r.positions.present() || (r.k_new.present() && r.seqlens_kv.present());
  if (!sin.present() || cos.rank != 2 || sin.rank != 2 || 2 * cos.shape[1] > r.q.shape[3] ||
      !stated) {
    return refused("rotary_cos and rotary_sin must be [positions,x] beside k_new or positions");
  }
  for (TensorView* const rows : {&r.q, &r.k_new}) {
    if (!rows->present()) continue;
    const TensorView before = *rows;
    *rows = add_copy(before);
    for (std::int64_t b = 0; b < before.shape[0]; ++b) {
      const bool has_length = rows == &r.q && r.seqlens_q.present();
      const std::int64_t count = has_length ? integer(r.seqlens_q, b) : before.shape[2];
      for (std::int64_t i = 0; i < std::min(count, before.shape[2]); ++i) {
        const bool is_next = rows == &r.k_new || ascends;
        const std::int64_t position = r.positions.present()
                                          ? static_cast<std::int64_t>(element(r.positions, b, i))
                                          : integer(r.seqlens_kv, b) + (is_next ? i : 0);
        if (position < 0 || position >= cos.shape[0]) {
          return refused("position " + std::to_string(position) + " is past rotary_cos");
        }
        for (std::int64_t h = 0; h < before.shape[1]; ++h) {
          rotate_row(cos, sin, position, before, *rows, {b, h, i});
        }
      }
    }
  }
  r.rotary_cos = r.rotary_sin = r.positions = TensorView{};
  r.options.rotary_interleaved = false;
  return {};
}

/// Keys are those behind the rows that cache_leftpad states, which seqlens_kv count.
Status Padded::skip_leftpad() {
  if (leftpad_.dtype != Dtype::kI32 || leftpad_.rank != 1 ||
      leftpad_.shape[0] != padded_.q.shape[0] || !padded_.seqlens_kv.present()) {
    return refused("cache_leftpad must be i32 [B] beside seqlens_kv");
  }
  const TensorView lengths = add_dense(padded_.seqlens_kv);
  for (std::int64_t b = 0; b < leftpad_.shape[0]; ++b) {
    const std::int64_t length = integer(padded_.seqlens_kv, b), leftpad = integer(leftpad_, b);
    if (leftpad < 0 || leftpad > length) {
      return refused("cache_leftpad (" + std::to_string(leftpad) + ") must be 0 to " +
                     std::to_string(length));
    }
    static_cast<std::int32_t*>(lengths.data)[b] = static_cast<std::int32_t>(length - leftpad);
  }
  padded_.seqlens_kv = lengths;
  padded_.cache_leftpad = TensorView{};
  return {};
}

/// Queries and new keys times the orthonormal Walsh-Hadamard matrix.
Status Padded::mix() {
  AttentionGradRequest& r = padded_;
  const std::int64_t dim = r.q.shape[3];
  if (dim < 1 || (dim & (dim - 1)) != 0) {
    return refused("head_dim " + std::to_string(dim) + " must be a power of two with hadamard");
  }
  for (TensorView* const rows : {&r.q, &r.k_new}) {
    if (!rows->present()) continue;
    *rows = add_copy(*rows);
    TensorView heads = *rows;
    heads.shape[3] = 1;
    for_each_index(heads, [&](const std::int64_t(&at)[kMaxRank]) {
      const bool has_length = rows == &r.q && r.seqlens_q.present();
      if (has_length && at[2] >= integer(r.seqlens_q, at[0])) return;
      mix_row(*rows, at[0], at[1], at[2]);
    });
  }
  r.options.hadamard = false;
  return {};
}

/// Rows of k_new and v_new follow those that seqlens_kv say, which grow.
Status Padded::append() {
  const TensorView k_new = padded_.k_new, v_new = padded_.v_new;
  const bool fits = k_new.rank == 4 && v_new.rank == 4 && k_new.shape[2] == v_new.shape[2] &&
                    k_new.shape[0] == padded_.q.shape[0] && padded_.seqlens_kv.present();
  if (!fits) return refused("k_new and v_new must be [B,Hkv,Snew,D] beside seqlens_kv");
  TensorView lengths = add_dense(padded_.seqlens_kv);
  for (std::int64_t b = 0; b < k_new.shape[0]; ++b) {
    const std::int64_t before = integer(padded_.seqlens_kv, b), after = before + k_new.shape[2];
    if (before < 0 || after > padded_.k.shape[2]) {
      return refused("new rows must fit the cache of " + std::to_string(padded_.k.shape[2]));
    }
    static_cast<std::int32_t*>(lengths.data)[b] = static_cast<std::int32_t>(after);
    for (std::int64_t h = 0; h < k_new.shape[1]; ++h) {
      for (std::int64_t i = 0; i < k_new.shape[2]; ++i) {
        append_row(k_new, true, b, h, i, before + i);
        append_row(v_new, false, b, h, i, before + i);
      }
    }
  }
  padded_.seqlens_kv = lengths;
  padded_.k_new = padded_.v_new = TensorView{};
  return {};
}

/// A row as it is, or quantised: divided by the scales of columns, then by the row's, which is its
/// greatest magnitude over the type's, or the entry's own. Each quotient is rounded to f32.
void Padded::append_row(const TensorView& rows, bool of_k, std::int64_t b, std::int64_t h,
                        std::int64_t i, std::int64_t key) {
  const TensorView& cache = of_k ? padded_.k : padded_.v;
  const TensorView& scales = of_k ? padded_.scales_k : padded_.scales_v;
  const bool by_channel = of_k && padded_.channel_scales_k.present();
  const auto code_at = [&](std::int64_t d) {
    const std::int64_t place[kMaxRank] = {b, h, key, d};
    return static_cast<char*>(cache.data) + offset_of(cache, place);
  };
  std::vector<double> numbers;
  for (std::int64_t d = 0; d < rows.shape[3]; ++d) {
    const double number = element(rows, b, h, i, d);
    const double column = by_channel ? element(padded_.channel_scales_k, h, d) : 1.0;
    numbers.push_back(by_channel ? round_to(number / column, Dtype::kF32) : number);
  }
  if (!scales.present() && !by_channel) {
    for (std::int64_t d = 0; d < rows.shape[3]; ++d) {
      const std::int64_t source[kMaxRank] = {b, h, i, d};
      std::memcpy(code_at(d), static_cast<const char*>(rows.data) + offset_of(rows, source),
                  static_cast<std::size_t>(size_of(rows.dtype)));
    }
    return;
  }
  if (cache.dtype == Dtype::kU4) return append_groups(cache, scales, numbers, b, h, key);
  const double greatest = cache.dtype == Dtype::kI8       ? 127.0
                          : cache.dtype == Dtype::kF8E4M3 ? 448.0
                                                          : 57344.0;
  double scale = scales.present() ? element(scales, b, h, key) : 1.0;
  if (scales.present() && (of_k ? scale_a_row_k_ : scale_a_row_v_)) {
    double max = 0.0;
    for (const double number : numbers) max = std::max(max, std::fabs(number));
    scale = std::max(round_to(max / greatest, Dtype::kF32), 0x1p-126);
    const std::int64_t place[kMaxRank] = {b, h, key};
    encode(scale, static_cast<char*>(scales.data) + offset_of(scales, place), Dtype::kF32);
  }
  for (std::int64_t d = 0; d < rows.shape[3]; ++d) {
    const double quotient = round_to(numbers[static_cast<std::size_t>(d)] / scale, Dtype::kF32);
    encode(std::clamp(quotient, -greatest, greatest), code_at(d), cache.dtype);
  }
}

/// Codes 0 to 15 of each group of 32, from its least number to its greatest.
void Padded::append_groups(const TensorView& cache, const TensorView& scales,
                           const std::vector<double>& numbers, std::int64_t b, std::int64_t h,
                           std::int64_t key) {
  const auto dim = static_cast<std::int64_t>(numbers.size());
  for (std::int64_t begin = 0; begin < dim; begin += 32) {
    const auto first = numbers.begin() + begin;
    const auto last = numbers.begin() + std::min<std::int64_t>(begin + 32, dim);
    const double min = *std::min_element(first, last), max = *std::max_element(first, last);
    const double scale = std::max(round_to((max - min) / 15.0, Dtype::kF32), 0x1p-126);
    set_element(scales, {b, h, key, begin / 16}, scale);
    set_element(scales, {b, h, key, begin / 16 + 1}, min);
    for (std::int64_t d = begin; d < begin + (last - first); ++d) {
      const double number = numbers[static_cast<std::size_t>(d)];
      set_element(cache, {b, h, key, d}, round_to((number - min) / scale, Dtype::kF32));
    }
  }
}

/// [B,Hkv,Skv] of the keys' places, of u4 [B,Hkv,Skv,2*groups]; an entry without a scale of each
/// row has one for all.
TensorView Padded::pad_scales(const TensorView& scales, std::int64_t batch, std::int64_t seqlen) {
  if (!scales.present()) return {};
  TensorView padded = scales;
  padded.shape[0] = batch;
  padded.shape[2] = seqlen;
  padded = add_dense(padded);
  for_each_index(padded, [&](const std::int64_t(&at)[kMaxRank]) {
    const KeyPlace place = place_of_key(at[0], at[2]);
    if (place.entry < 0) return;
    set_element(padded, at, element(scales, place.entry, at[1], place.row, at[3]));
  });
  return padded;
}

TensorView Padded::pad_cached_rows(const TensorView& rows, std::int64_t batch,
                                   std::int64_t seqlen) {
  if (rows.dtype == Dtype::kU4) return as_codes(pad_cached_rows(as_bytes(rows), batch, seqlen));
  TensorView padded = rows;
  padded.shape[0] = batch;
  padded.shape[2] = seqlen;
  padded = add_dense(padded);
  const auto bytes = static_cast<std::size_t>(size_of(rows.dtype));
  for_each_index(padded, [&, place = KeyPlace{}](const std::int64_t(&at)[kMaxRank]) mutable {
    if (at[3] == 0) place = place_of_key(at[0], at[2]);
    if (place.entry < 0) return;
    const std::int64_t from[kMaxRank] = {place.entry, at[1], place.row, at[3]};
    std::memcpy(static_cast<char*>(padded.data) + offset_of(padded, at),
                static_cast<const char*>(rows.data) + offset_of(rows, from), bytes);
  });
  return padded;
}

TensorView Padded::add_copy(const TensorView& view) {
  const TensorView copy = add_dense(view);
  const auto bytes = static_cast<std::size_t>(size_of(view.dtype));
  for_each_index(copy, [&](const std::int64_t(&at)[kMaxRank]) {
    std::memcpy(static_cast<char*>(copy.data) + offset_of(copy, at),
                static_cast<const char*>(view.data) + offset_of(view, at), bytes);
  });
  return copy;
}

/// The same shape in memory of its own, dense and of zeros.
TensorView Padded::add_dense(TensorView view) {
  std::int64_t stride = 1;
  for (int dim = view.rank - 1; dim >= 0; --dim) {
    view.strides[dim] = stride;
    stride *= view.shape[dim];
  }
  memory_.emplace_back(static_cast<std::size_t>(stride * size_of(view.dtype)) + 1);
  view.data = memory_.back().data();
  return view;
}

/// Dimension `row_dim` of packed rows becomes [B, ..., longest, ...]; a leading 1 becomes B.
TensorView Padded::pad_rows(const TensorView& rows, const Starts& starts, int row_dim) {
  if (!rows.present()) return {};
  if (rows.dtype == Dtype::kU4) return as_codes(pad_rows(as_bytes(rows), starts, row_dim));
  const bool leads = rows.rank == kMaxRank;  // [1,H,total,D]
  TensorView padded;
  padded.dtype = rows.dtype;
  padded.rank = leads ? kMaxRank : rows.rank + 1;
  padded.shape[0] = starts.count();
  for (int dim = 1; dim < padded.rank; ++dim) padded.shape[dim] = rows.shape[leads ? dim : dim - 1];
  const int padded_dim = leads ? row_dim : row_dim + 1;
  padded.shape[padded_dim] = starts.longest();
  const auto bytes = static_cast<std::size_t>(size_of(rows.dtype));
  padded = add_dense(padded);
  for_each_index(padded, [&](const std::int64_t(&at)[kMaxRank]) {
    if (at[padded_dim] >= starts.length(at[0])) return;
    std::int64_t from[kMaxRank] = {};
    for (int dim = 1; dim < padded.rank; ++dim) from[leads ? dim : dim - 1] = at[dim];
    from[row_dim] += starts.begin(at[0]);
    std::memcpy(static_cast<char*>(padded.data) + offset_of(padded, at),
                static_cast<const char*>(rows.data) + offset_of(rows, from), bytes);
  });
  return padded;
}

/// i32 [B]: the lengths given, or those of the sequences.
TensorView Padded::pad_lengths(const TensorView& given, const Starts& starts) {
  if (given.present()) return given;
  TensorView lengths;
  lengths.dtype = Dtype::kI32;
  lengths.rank = 1;
  lengths.shape[0] = starts.count();
  lengths.strides[0] = 1;
  memory_.emplace_back(static_cast<std::size_t>(starts.count()) * sizeof(std::int32_t) + 1);
  lengths.data = memory_.back().data();
  for (std::int64_t b = 0; b < starts.count(); ++b) {
    static_cast<std::int32_t*>(lengths.data)[b] = static_cast<std::int32_t>(starts.length(b));
  }
  return lengths;
}

Truth Padded::pack(Truth padded) const {
  if (!is_packed_) return padded;
  Truth packed = std::move(padded);
  const std::int64_t longest = packed.seqlen_q, heads = packed.num_heads;
  const auto pack = [&](auto* values, std::int64_t size, auto behind) {
    *values = pack_rows(*values, q_, total_q_, heads, longest, size, behind);
  };
  RowFacts padding;
  padding.padding = true;
  pack(&packed.out, packed.head_dim_v, 0.0L);
  pack(&packed.out_ideal, packed.head_dim_v, 0.0);
  pack(&packed.lse, 1, -HUGE_VALL);
  pack(&packed.lse_ideal, 1, -HUGE_VAL);
  pack(&packed.rows, 1, padding);
  packed.batch = 1;
  packed.seqlen_q = total_q_;
  if (!page_table_.present()) packed.seqlen_kv = total_kv_;
  return packed;
}

GradTruth Padded::pack(GradTruth padded) const {
  if (!is_packed_) return padded;
  padded.d_q = pack_gradient(padded.d_q, q_, total_q_);
  padded.d_k = pack_gradient(padded.d_k, kv_, total_kv_);
  padded.d_v = pack_gradient(padded.d_v, kv_, total_kv_);
  return padded;
}

}  // namespace regard::oracle
