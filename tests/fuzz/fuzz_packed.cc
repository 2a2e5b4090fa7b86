#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "regard/attention.h"
#include "regard/lengths.h"
#include "tests/fuzz/require.h"

// Sequences of several lengths, stated by cu_seqlens, seqlens or a Lengths, valid and hostile: a
// call is either refused before anything is written, which it must be where the numbers are no
// lengths, or gives what a plain loop over the sequences gives, forward and backward.

namespace {

using namespace regard;  // NOLINT

/// The input as a stream of decisions; zeros once it has ended.
class Decisions {
 public:
  Decisions(const std::uint8_t* data, std::size_t size) : data_(data), end_(data + size) {}
  std::uint8_t byte() { return data_ == end_ ? std::uint8_t{0} : *data_++; }
  std::int64_t below(std::int64_t n) { return byte() % n; }
  bool one_in(std::int64_t n) { return below(n) == n - 1; }
  /// A number that no length should be, or nearly.
  std::int64_t hostile() {
    constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
    constexpr std::int64_t kNumbers[] = {-1,
                                         kMax,
                                         -kMax - 1,
                                         kMax - 1,
                                         std::int64_t{1} << 32,
                                         (std::int64_t{1} << 31) - 1,
                                         -(std::int64_t{1} << 31),
                                         13};
    const std::uint8_t b = byte();
    return b < 128 ? b % 24 - 4 : kNumbers[b % 8];
  }

 private:
  const std::uint8_t* data_;
  const std::uint8_t* end_;
};

/// Elements with guards at both ends, which start as a pattern.
class Block {
 public:
  explicit Block(std::size_t count) : bytes_(count * 4 + 2 * kGuard, kPattern) {}
  float* data() { return reinterpret_cast<float*>(bytes_.data() + kGuard); }
  bool is_untouched() const {
    return std::all_of(bytes_.begin(), bytes_.end(), [](std::uint8_t b) { return b == kPattern; });
  }
  void check_guards() const {
    const auto is_pattern = [](std::uint8_t b) { return b == kPattern; };
    require(std::all_of(bytes_.begin(), bytes_.begin() + kGuard, is_pattern) &&
                std::all_of(bytes_.end() - kGuard, bytes_.end(), is_pattern),
            "nothing beside a tensor is written");
  }

 private:
  static constexpr std::ptrdiff_t kGuard = 64;
  static constexpr std::uint8_t kPattern = 0x5A;
  std::vector<std::uint8_t> bytes_;
};

constexpr std::int64_t kHq = 2, kHkv = 1, kDim = 4;

/// The rows of one sequence, as they lie in memory.
struct Sequence {
  std::vector<std::int64_t> q, kv;
};

/// Tensors of rows [rows, heads, head_dim], of `batch` entries; packed ones have one entry.
struct Tensors {
  Tensors(std::int64_t batch_, std::int64_t seqlen_q_, std::int64_t seqlen_kv_, bool packed_)
      : batch(batch_), seqlen_q(seqlen_q_), seqlen_kv(seqlen_kv_), packed(packed_) {
    std::uint32_t state = 7;
    for (std::vector<float>* x : {&q, &k, &v, &d_out}) {
      const bool of_q = x == &q || x == &d_out;
      x->resize(static_cast<std::size_t>(of_q ? rows_q() * kHq : rows_kv() * kHkv) * kDim + 1);
      for (float& value : *x) {
        state = state * 1664525u + 1013904223u;
        value = static_cast<float>(state >> 8) / 8388608.0f - 1.0f;
      }
    }
  }
  std::int64_t rows_q() const { return batch * seqlen_q; }
  std::int64_t rows_kv() const { return batch * seqlen_kv; }

  TensorView view(float* data, bool of_q, std::int64_t heads) const {
    const std::int64_t seqlen = of_q ? seqlen_q : seqlen_kv;
    return make_view(data, {batch, heads, seqlen, kDim},
                     {seqlen * heads * kDim, kDim, heads * kDim, 1});
  }
  /// Of [Hq, total] where packed, else [B, Hq, Sq].
  TensorView statistics(float* data) const {
    return packed ? make_view(data, {kHq, seqlen_q}) : make_view(data, {batch, kHq, seqlen_q});
  }
  std::size_t statistic_of(std::int64_t row, std::int64_t h) const {
    const std::int64_t b = row / seqlen_q, s = row % seqlen_q;
    return static_cast<std::size_t>((b * kHq + h) * seqlen_q + s);
  }
  AttentionGradRequest request() {
    AttentionGradRequest r;
    r.q = view(q.data(), true, kHq);
    r.k = view(k.data(), false, kHkv);
    r.v = view(v.data(), false, kHkv);
    r.out = view(out.data(), true, kHq);
    r.lse = statistics(lse.data());
    r.d_out = view(d_out.data(), true, kHq);
    r.d_q = view(d_q.data(), true, kHq);
    r.d_k = view(d_k.data(), false, kHkv);
    r.d_v = view(d_v.data(), false, kHkv);
    r.options.needs_grad = true;
    r.saved.stats = r.lse;
    r.saved.kind = SavedContext::Kind::kLse;
    return r;
  }
  std::vector<Block*> forward_outputs() { return {&out, &lse}; }
  std::vector<Block*> gradients() { return {&d_q, &d_k, &d_v}; }

  const std::int64_t batch, seqlen_q, seqlen_kv;
  const bool packed;
  std::vector<float> q, k, v, d_out;
  Block out{static_cast<std::size_t>(rows_q() * kHq * kDim)};
  Block lse{static_cast<std::size_t>(rows_q() * kHq)};
  Block d_q{static_cast<std::size_t>(rows_q() * kHq * kDim)};
  Block d_k{static_cast<std::size_t>(rows_kv() * kHkv * kDim)};
  Block d_v{static_cast<std::size_t>(rows_kv() * kHkv * kDim)};
};

std::size_t at(std::int64_t row, std::int64_t heads, std::int64_t h, std::int64_t d) {
  return static_cast<std::size_t>((row * heads + h) * kDim + d);
}

/// What a plain loop gives, in double precision.
struct Expected64 {
  explicit Expected64(const Tensors& t)
      : out(t.q.size(), 0.0),
        lse(t.q.size(), -std::numeric_limits<double>::infinity()),
        d_q(t.q.size(), 0.0),
        d_k(t.k.size(), 0.0),
        d_v(t.v.size(), 0.0) {}

  void add_row(const Tensors& t, const Sequence& s, std::size_t i, std::int64_t visible) {
    const double scale = 0.5;  // 1 / sqrt(kDim)
    const auto keys = static_cast<std::size_t>(visible);
    for (std::int64_t h = 0; h < kHq; ++h) {
      std::vector<double> p(keys);
      double sum = 0.0;
      for (std::size_t j = 0; j < keys; ++j) {
        double score = 0.0;
        for (std::int64_t d = 0; d < kDim; ++d) {
          score += static_cast<double>(t.q[at(s.q[i], kHq, h, d)]) *
                   static_cast<double>(t.k[at(s.kv[j], kHkv, 0, d)]);
        }
        p[j] = std::exp(score * scale);  // |score| <= 4
        sum += p[j];
      }
      lse[t.statistic_of(s.q[i], h)] = std::log(sum);
      double delta = 0.0;
      std::vector<double> d_p(keys, 0.0);
      for (std::size_t j = 0; j < keys; ++j) {
        p[j] /= sum;
        for (std::int64_t d = 0; d < kDim; ++d) {
          const double value = static_cast<double>(t.v[at(s.kv[j], kHkv, 0, d)]);
          const double d_o = static_cast<double>(t.d_out[at(s.q[i], kHq, h, d)]);
          out[at(s.q[i], kHq, h, d)] += p[j] * value;
          d_v[at(s.kv[j], kHkv, 0, d)] += p[j] * d_o;
          d_p[j] += d_o * value;
        }
        delta += p[j] * d_p[j];
      }
      for (std::size_t j = 0; j < keys; ++j) {
        const double d_s = p[j] * (d_p[j] - delta) * scale;
        for (std::int64_t d = 0; d < kDim; ++d) {
          d_q[at(s.q[i], kHq, h, d)] += d_s * static_cast<double>(t.k[at(s.kv[j], kHkv, 0, d)]);
          d_k[at(s.kv[j], kHkv, 0, d)] += d_s * static_cast<double>(t.q[at(s.q[i], kHq, h, d)]);
        }
      }
    }
  }

  std::vector<double> out, lse, d_q, d_k, d_v;
};

Expected64 loop_over(const Tensors& t, const std::vector<Sequence>& sequences,
                     const AttentionOptions& options) {
  Expected64 expected(t);
  for (const Sequence& s : sequences) {
    const auto len_q = static_cast<std::int64_t>(s.q.size());
    const auto len_kv = static_cast<std::int64_t>(s.kv.size());
    const std::int64_t shift = options.diagonal == Diagonal::kBottomRight ? len_kv - len_q : 0;
    for (std::int64_t i = 0; i < len_q; ++i) {
      const std::int64_t visible =
          options.is_causal ? std::clamp<std::int64_t>(i + shift + 1, 0, len_kv) : len_kv;
      expected.add_row(t, s, static_cast<std::size_t>(i), visible);
    }
  }
  return expected;
}

void compare(const char* name, Block& found, const std::vector<double>& expected,
             std::int64_t count) {
  found.check_guards();
  for (std::int64_t i = 0; i < count; ++i) {
    const double value = static_cast<double>(found.data()[i]);
    const double wanted = expected[static_cast<std::size_t>(i)];
    const bool same = std::isinf(wanted) ? value == wanted : std::abs(value - wanted) < 1e-4;
    require(same, name,
            std::to_string(i) + ": " + std::to_string(value) + ", not " + std::to_string(wanted));
  }
}

void check_untouched(const std::vector<Block*>& blocks, const Status& status) {
  require(!status.message().empty(), "a refusal says why");
  for (const Block* block : blocks) {
    require(block->is_untouched(), "a refused call writes nothing", status.message());
  }
}

Context& context() {
  static Context& made = *new Context;
  return made;
}

Policy any_backend(Decisions& in) {
  constexpr BackendId kIds[] = {BackendId::kMath, BackendId::kFlash, BackendId::kEfficient};
  Policy policy;
  policy.only = std::vector<BackendRef>{kIds[in.below(3)]};
  return policy;
}

void choose_diagonal(Decisions& in, AttentionOptions* options) {
  options->is_causal = in.one_in(2);
  if (options->is_causal) {
    options->diagonal = in.one_in(2) ? Diagonal::kBottomRight : Diagonal::kTopLeft;
  }
}

/// Runs forward and backward, by attention() or by a plan, and holds both to `sequences`; null: the
/// call must be refused.
void check_call(Decisions& in, Tensors& t, AttentionGradRequest r,
                const std::vector<Sequence>* sequences) {
  choose_diagonal(in, &r.options);
  const Policy policy = any_backend(in);
  Status status;
  if (in.one_in(2)) {
    const Expected<AttentionParams> params = describe(r);
    status = params.status();
    if (params) {
      const Expected<Plan> made = plan(context(), *params, policy);
      status = made.status();
      if (made) {
        const auto bytes = static_cast<std::size_t>(made->workspace_bytes()) + 64;
        const std::unique_ptr<char[]> memory(new char[bytes]);
        Launch launch;
        const auto address = reinterpret_cast<std::uintptr_t>(memory.get());
        launch.workspace = {memory.get() + (64 - address % 64) % 64, bytes - 64};
        status = execute(*made, r, launch);
      }
    }
  } else {
    status = attention(context(), r, policy);
  }
  if (sequences == nullptr) {
    require(!status.ok(), "numbers that are no lengths are refused");
    check_untouched(t.forward_outputs(), status);
    const Status backward = attention_backward(context(), r, policy);
    require(!backward.ok(), "a backward refuses what its forward refuses");
    check_untouched(t.gradients(), backward);
    return;
  }
  require(status.ok(), "lengths are accepted", status.message());
  const Expected64 expected = loop_over(t, *sequences, r.options);
  compare("out", t.out, expected.out, t.rows_q() * kHq * kDim);
  compare("lse", t.lse, expected.lse, t.rows_q() * kHq);
  const Status backward = attention_backward(context(), r, policy);
  require(backward.ok(), "the backward runs", backward.message());
  compare("d_q", t.d_q, expected.d_q, t.rows_q() * kHq * kDim);
  compare("d_k", t.d_k, expected.d_k, t.rows_kv() * kHkv * kDim);
  compare("d_v", t.d_v, expected.d_v, t.rows_kv() * kHkv * kDim);
}

std::vector<std::int64_t> range(std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> rows;
  for (std::int64_t row = begin; row < end; ++row) rows.push_back(row);
  return rows;
}

/// Integers as the input has them, in a tensor of some integer type, or of another.
struct Integers {
  std::vector<std::int64_t> values;
  std::vector<std::int32_t> narrow;
  Dtype dtype = Dtype::kI64;

  TensorView view() {
    const auto count = static_cast<std::int64_t>(values.size());
    narrow.clear();
    for (const std::int64_t value : values) narrow.push_back(static_cast<std::int32_t>(value));
    if (dtype == Dtype::kI64) return make_view(values.data(), dtype, {count});
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = narrow[i];
    return make_view(narrow.data(), dtype, {count});
  }
};

void choose_dtype(Decisions& in, Integers* integers, bool* is_valid) {
  constexpr Dtype kWrong[] = {Dtype::kF32, Dtype::kU8, Dtype::kBool, Dtype::kF16};
  integers->dtype = in.one_in(2) ? Dtype::kI32 : Dtype::kI64;
  if (!in.one_in(32)) return;
  integers->dtype = kWrong[in.below(4)];
  *is_valid = false;
}

/// cu_seqlens of `batch` sequences in `total` rows.
Integers starts_of(Decisions& in, std::int64_t batch, std::int64_t total, bool* is_valid) {
  Integers starts;
  for (std::int64_t b = 0; b < batch; ++b) starts.values.push_back(in.below(total + 1));
  std::sort(starts.values.begin(), starts.values.end());
  starts.values.insert(starts.values.begin(), 0);
  if (in.one_in(3)) {
    starts.values[static_cast<std::size_t>(in.below(batch + 1))] = in.hostile();
  }
  choose_dtype(in, &starts, is_valid);
  starts.view();  // i32 cuts the numbers
  std::int64_t before = 0;
  for (std::size_t b = 0; b < starts.values.size(); ++b) {
    const std::int64_t start = starts.values[b];
    *is_valid = *is_valid && start >= before && start <= total && (b > 0 || start == 0);
    before = start;
  }
  return starts;
}

std::int64_t longest_of(Decisions& in, const Integers& starts, std::int64_t total, bool* is_valid) {
  if (!in.one_in(3)) return 0;
  const std::int64_t stated = in.hostile();
  *is_valid = *is_valid && stated >= 0;
  for (std::size_t b = 1; *is_valid && stated > 0 && b < starts.values.size(); ++b) {
    *is_valid = starts.values[b] - starts.values[b - 1] <= std::min(stated, total);
  }
  return stated;
}

void fuzz_packed(Decisions& in) {
  const std::int64_t total_q = in.below(13), total_kv = in.below(13), batch = in.below(5);
  Tensors t(1, total_q, total_kv, true);
  bool is_valid = true;
  Integers q = starts_of(in, batch, total_q, &is_valid);
  Integers kv = starts_of(in, batch, total_kv, &is_valid);
  AttentionGradRequest r = t.request();
  r.max_seqlen_q = longest_of(in, q, total_q, &is_valid);
  r.max_seqlen_kv = longest_of(in, kv, total_kv, &is_valid);
  r.cu_seqlens_q = q.view();
  r.cu_seqlens_kv = kv.view();
  std::vector<Sequence> sequences;
  for (std::size_t b = 0; is_valid && b < static_cast<std::size_t>(batch); ++b) {
    sequences.push_back(
        {range(q.values[b], q.values[b + 1]), range(kv.values[b], kv.values[b + 1])});
  }
  switch (in.below(32)) {
    case 31:
      kv.values.push_back(kv.values.back());
      r.cu_seqlens_kv = kv.view();  // of another batch
      break;
    case 30: r.cu_seqlens_q.data = nullptr; break;
    case 29: r.cu_seqlens_q = {}; break;
    case 28: r.cu_seqlens_kv = {}; break;
    case 27: r.cu_seqlens_q.shape[0] = 0; break;
    case 26:
      r.cu_seqlens_q.rank = 2;
      r.cu_seqlens_q.shape[1] = r.cu_seqlens_q.strides[1] = 1;
      break;
    default: return check_call(in, t, r, is_valid ? &sequences : nullptr);
  }
  check_call(in, t, r, nullptr);
}

void fuzz_padded(Decisions& in) {
  const std::int64_t batch = in.below(4), seqlen_q = in.below(8), seqlen_kv = in.below(8);
  Tensors t(batch, seqlen_q, seqlen_kv, false);
  bool is_valid = true;
  Integers q, kv;
  q.dtype = kv.dtype = Dtype::kI32;
  for (std::int64_t b = 0; b < batch; ++b) {
    q.values.push_back(in.one_in(8) ? in.hostile() : in.below(seqlen_q + 1));
    kv.values.push_back(in.one_in(8) ? in.hostile() : in.below(seqlen_kv + 1));
  }
  AttentionGradRequest r = t.request();
  r.seqlens_q = q.view();
  r.seqlens_kv = kv.view();
  std::vector<Sequence> sequences;
  for (std::int64_t b = 0; b < batch; ++b) {
    const auto i = static_cast<std::size_t>(b);
    is_valid = is_valid && q.values[i] >= 0 && q.values[i] <= seqlen_q && kv.values[i] >= 0 &&
               kv.values[i] <= seqlen_kv;
    if (!is_valid) break;
    sequences.push_back({range(b * seqlen_q, b * seqlen_q + q.values[i]),
                         range(b * seqlen_kv, b * seqlen_kv + kv.values[i])});
  }
  check_call(in, t, r, is_valid ? &sequences : nullptr);
}

/// A Lengths of a mask, of lengths or of position ids, and the rows of its sequences.
struct Rows {
  Lengths lengths;
  std::vector<std::vector<std::int64_t>> sequences;
};

Rows rows_of(Decisions& in, std::int64_t batch, std::int64_t seqlen, bool one_each) {
  Rows rows;
  std::vector<std::int64_t> values;
  const std::int64_t kind = in.below(one_each ? 2 : 3);
  for (std::int64_t b = 0; b < batch; ++b) {
    if (kind != 2) rows.sequences.emplace_back();
    const std::int64_t length = kind == 1 ? in.below(seqlen + 1) : 0;
    if (kind == 1) values.push_back(length);
    for (std::int64_t s = 0, id = 0; s < seqlen; ++s, ++id) {
      const bool chosen = in.one_in(2);
      if (kind == 2 && (s == 0 || chosen)) id = 0;
      if (kind == 2 && id == 0) rows.sequences.emplace_back();
      if (kind == 0) values.push_back(chosen ? 1 : 0);
      if (kind == 2) values.push_back(id);
      if (kind == 2 || (kind == 0 && chosen) || (kind == 1 && s < length)) {
        rows.sequences.back().push_back(b * seqlen + s);
      }
    }
  }
  if (in.one_in(4) && !values.empty()) {  // hostile: refused, or other lengths
    std::vector<std::int64_t> bad = values;
    bad[static_cast<std::size_t>(in.below(static_cast<std::int64_t>(bad.size())))] = in.hostile();
    const TensorView view =
        kind == 1 ? make_view(bad.data(), {batch}) : make_view(bad.data(), {batch, seqlen});
    const Expected<Lengths> made = kind == 0   ? Lengths::from_mask(view)
                                   : kind == 1 ? Lengths::from_seqlens(view, seqlen)
                                               : Lengths::from_position_ids(view);
    require(made.ok() || !made.status().message().empty(), "a refusal says why");
    if (made) {
      for (const std::int64_t index : made->indices()) {
        require(index >= 0 && index < batch * seqlen, "indices lie in the tensor");
      }
      require(made->total() <= batch * seqlen, "no position holds two rows");
    }
  }
  const TensorView view =
      kind == 1 ? make_view(values.data(), {batch}) : make_view(values.data(), {batch, seqlen});
  const Expected<Lengths> made = kind == 0   ? Lengths::from_mask(view)
                                 : kind == 1 ? Lengths::from_seqlens(view, seqlen)
                                             : Lengths::from_position_ids(view);
  require(made.ok(), "valid rows are accepted", made.status().message());
  rows.lengths = *made;
  return rows;
}

void check_round_trip(const Rows& rows, Tensors& t) {
  std::vector<std::int64_t> all;
  for (const auto& sequence : rows.sequences)
    all.insert(all.end(), sequence.begin(), sequence.end());
  require(std::equal(all.begin(), all.end(), rows.lengths.indices().begin(),
                     rows.lengths.indices().end()),
          "indices are the rows of the sequences");
  const std::int64_t width = kHq * kDim, total = rows.lengths.total();
  Block packed(static_cast<std::size_t>(total * width));
  Block padded(static_cast<std::size_t>(t.rows_q() * width));
  const TensorView source = make_view(t.q.data(), {t.batch, t.seqlen_q, width});
  const TensorView packed_view = make_view(packed.data(), {total, width});
  require(unpad(rows.lengths, source, packed_view).ok(), "unpad runs");
  require(
      pad(rows.lengths, packed_view, make_view(padded.data(), {t.batch, t.seqlen_q, width})).ok(),
      "pad runs");
  packed.check_guards();
  padded.check_guards();
  std::vector<float> expected(static_cast<std::size_t>(t.rows_q() * width), 0.0f);
  for (const std::int64_t row : all) {
    std::copy_n(t.q.begin() + row * width, width, expected.begin() + row * width);
  }
  require(std::equal(expected.begin(), expected.end(), padded.data()), "padding is zero");
}

void fuzz_lengths(Decisions& in) {
  const bool self = in.one_in(2);
  const std::int64_t batch = in.below(4), seqlen_q = in.below(8);
  const std::int64_t seqlen_kv = self ? seqlen_q : in.below(8);
  Tensors t(batch, seqlen_q, seqlen_kv, false);
  const Rows q = rows_of(in, batch, seqlen_q, !self);
  const Rows kv = self ? q : rows_of(in, batch, seqlen_kv, true);
  check_round_trip(q, t);
  std::vector<Sequence> sequences;
  for (std::size_t b = 0; b < q.sequences.size(); ++b) {
    sequences.push_back({q.sequences[b], kv.sequences[b]});
  }
  AttentionGradRequest r = t.request();
  r.options.needs_grad = false;
  choose_diagonal(in, &r.options);
  const auto padding = static_cast<PaddingPolicy>(in.below(3));
  const Status status =
      attention_padded(context(), r, {q.lengths, kv.lengths, padding}, any_backend(in));
  if (!status.ok()) {
    require(padding == PaddingPolicy::kPadded, "packed rows compute every call", status.message());
    return check_untouched(t.forward_outputs(), status);
  }
  const Expected64 expected = loop_over(t, sequences, r.options);
  compare("out", t.out, expected.out, t.rows_q() * kHq * kDim);
  compare("lse", t.lse, expected.lse, t.rows_q() * kHq);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Decisions in(data, size);
  switch (in.below(4)) {
    case 0:
    case 1: fuzz_packed(in); break;
    case 2: fuzz_padded(in); break;
    default: fuzz_lengths(in);
  }
  return 0;
}
