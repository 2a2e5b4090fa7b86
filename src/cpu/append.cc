#include "cpu/append.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "cpu/kv_operand.h"
#include "cpu/threads/run_tasks.h"
#include "problem/codes.h"
#include "problem/make_problem.h"
#include "problem/rotary.h"

namespace regard::cpu {
namespace {

constexpr std::int64_t kBlockRows = 64;  // rows of one sequence, all heads, that a task takes
constexpr std::int64_t kPairs = 64;      // that are rotated at a time

/// A row before and after.
struct RowCopy {
  const char* from;
  char* to;
};

/// Rotates the rows of all heads at one position; rows(head) is a RowCopy of `dim` elements. Each
/// product and each sum is rounded by itself, in T.
template <class T, Element kType, class Rows>
void rotate_heads(const Problem& p, std::int64_t position, std::int64_t heads, std::int64_t dim,
                  Rows rows) {
  constexpr std::int64_t kBytes = element_bytes(kType);
  const std::int64_t half = p.rotary_half;
  const std::int64_t step = p.rotary_interleaved ? 2 : 1;
  const std::int64_t apart = p.rotary_interleaved ? 1 : half;  // the elements of a pair
  T cos[kPairs], sin[kPairs], a[kPairs], b[kPairs], turned[2 * kPairs];
  for (std::int64_t x = 0; x < half; x += kPairs) {
    const std::int64_t n = std::min(half - x, kPairs);
    const auto load = [&](const View& table, T* to) {
      const std::int64_t at = position * table.stride[0] + x * table.stride[1];
      load_row(table.type, table.data + at * element_bytes(table.type), table.stride[1], n, to);
    };
    load(p.rotary_cos, cos);
    load(p.rotary_sin, sin);
    for (std::int64_t h = 0; h < heads; ++h) {
      const RowCopy row = rows(h);
      const char* const from = row.from + x * step * kBytes;
      char* const to = row.to + x * step * kBytes;
      load_row(kType, from, step, n, a);
      load_row(kType, from + apart * kBytes, step, n, b);
      T* const second = p.rotary_interleaved ? turned + 1 : turned + kPairs;
      for (std::int64_t y = 0; y < n; ++y) {
        turned[y * step] = a[y] * cos[y] - b[y] * sin[y];
        second[y * step] = b[y] * cos[y] + a[y] * sin[y];
      }
      if (p.rotary_interleaved) {
        store_row(kType, to, turned, 1, 2 * n);
      } else {
        store_row(kType, to, turned, 1, n);
        store_row(kType, to + half * kBytes, second, 1, n);
      }
    }
  }
  for (std::int64_t h = 0; h < heads && 2 * half < dim; ++h) {
    const RowCopy row = rows(h);
    std::memcpy(row.to + 2 * half * kBytes, row.from + 2 * half * kBytes,
                static_cast<std::size_t>((dim - 2 * half) * kBytes));
  }
}

template <class Rows>
void rotate(const Problem& p, Element type, std::int64_t position, std::int64_t heads,
            std::int64_t dim, Rows rows) {
  switch (type) {
    case Element::kF64: return rotate_heads<double, Element::kF64>(p, position, heads, dim, rows);
    case Element::kF32: return rotate_heads<float, Element::kF32>(p, position, heads, dim, rows);
    case Element::kBf16: return rotate_heads<float, Element::kBf16>(p, position, heads, dim, rows);
    case Element::kF16: return rotate_heads<float, Element::kF16>(p, position, heads, dim, rows);
    case Element::kF8E4M3:
      return rotate_heads<float, Element::kF8E4M3>(p, position, heads, dim, rows);
    case Element::kF8E5M2:
      return rotate_heads<float, Element::kF8E5M2>(p, position, heads, dim, rows);
    default: return;  // no queries have another type
  }
}

/// A row times the orthonormal Walsh-Hadamard matrix, `dim` a power of two: sums and differences of
/// elements 1, 2, 4, ... apart, each rounded in T. `work` [dim] is used up.
template <class T>
void mix_row(const Problem& p, Element type, const RowCopy& row, void* work) {
  const std::int64_t dim = p.head_dim_qk;
  T* const x = static_cast<T*>(work);
  load_row(type, row.from, 1, dim, x);
  for (std::int64_t step = 1; step < dim; step *= 2) {
    for (std::int64_t begin = 0; begin < dim; begin += 2 * step) {
      for (std::int64_t d = begin; d < begin + step; ++d) {
        const T a = x[d], b = x[d + step];
        x[d] = a + b;
        x[d + step] = a - b;
      }
    }
  }
  const T unit = static_cast<T>(1.0 / std::sqrt(static_cast<double>(dim)));
  for (std::int64_t d = 0; d < dim; ++d) x[d] *= unit;
  store_row(type, row.to, x, 1, dim);
}

void multiply_hadamard(const Problem& p, Element type, const RowCopy& row, void* work) {
  return type == Element::kF64 ? mix_row<double>(p, type, row, work)
                               : mix_row<float>(p, type, row, work);
}

/// Rows of all heads as the scores take them: rotated, then mixed. `work`: a row in the type of the
/// arithmetic.
template <class Rows>
void transform(const Problem& p, const View& view, std::int64_t position, std::int64_t heads,
               Rows rows, void* work) {
  if (p.rotary_cos.present) rotate(p, view.type, position, heads, p.head_dim_qk, rows);
  for (std::int64_t h = 0; p.hadamard && h < heads; ++h) {
    const RowCopy row = rows(h);
    multiply_hadamard(p, view.type, {p.rotary_cos.present ? row.to : row.from, row.to}, work);
  }
}

bool transforms(const Problem& p) { return p.rotary_cos.present || p.hadamard; }

/// Where a row of K or V goes that is quantised.
struct QuantisedRow {
  char* to;
  Element type;
  float* scale;       // null: all elements are divided by 1; of u4 the first group's
  bool brings_scale;  // else it is given
};

/// Codes 0 to 15 of each group, from its least number to its greatest. Computed in f64, where the
/// difference of two numbers of f32 neither overflows nor loses what decides a code.
void quantise_groups(const QuantisedRow& quantised, const float* row, std::int64_t dim) {
  float codes[kGroup];
  for (std::int64_t begin = 0, g = 0; begin < dim; begin += kGroup, ++g) {
    const std::int64_t size = std::min(kGroup, dim - begin);
    const float* const numbers = row + begin;
    const auto [least, most] = std::minmax_element(numbers, numbers + size);
    const double min = *least, range = static_cast<double>(*most) - min;
    const float scale = normal_scale(static_cast<float>(range / kMaxU4));
    for (std::int64_t d = 0; d < size; ++d) {
      codes[d] = static_cast<float>((static_cast<double>(numbers[d]) - min) / scale);
    }
    store_row(quantised.type, quantised.to + bytes_of(quantised.type, begin), codes, 1, size);
    quantised.scale[2 * g] = scale;
    quantised.scale[2 * g + 1] = *least;
  }
}

/// `row` [dim] is used up. Each quotient is rounded to f32, then to the nearest code; what lies
/// beyond the greatest becomes that.
void quantise(const QuantisedRow& quantised, float* row, std::int64_t dim) {
  if (quantised.type == Element::kU4) return quantise_groups(quantised, row, dim);
  if (quantised.brings_scale) {
    float max = 0.0f;
    for (std::int64_t d = 0; d < dim; ++d) max = std::max(max, std::abs(row[d]));
    *quantised.scale = normal_scale(max / max_code(quantised.type));
  }
  if (quantised.scale != nullptr) {
    const float scale = *quantised.scale;
    for (std::int64_t d = 0; d < dim; ++d) row[d] /= scale;
  }
  store_row(quantised.type, quantised.to, row, 1, dim);
}

struct AppendArgs {
  const Problem* problem;
  View rotated;               // q's copy
  std::int64_t blocks_q = 0;  // of the longest sequence
  std::int64_t blocks_new = 0;
};

/// A new row, the i-th of its sequence, which becomes key `key`.
struct NewRow {
  const Sequence& s;
  std::int64_t i;
  std::int64_t key;

  /// K and V are in-out here.
  RowCopy of(const View& rows, const KvOperand& cache, std::int64_t head) const {
    return {row_address(rows, s.b, head, i), const_cast<char*>(row_of(cache, key))};
  }
  float* scale_in(const KvOperand& cache) const {
    return cache.scales.first != nullptr ? const_cast<float*>(scale_at(cache, key)) : nullptr;
  }
};

bool quantises_k(const Problem& p) { return p.scales_k.present || p.channel_scales_k.present; }

/// `scratch`: two rows of f32.
void append_quantised_k(const Problem& p, const NewRow& row, char* scratch) {
  float* const numbers = reinterpret_cast<float*>(scratch);
  char* const rotated = scratch + p.head_dim_qk * std::int64_t{sizeof(float)};
  for (std::int64_t head = 0; head < p.num_heads_kv; ++head) {
    const KvOperand cache = k_operand(p, row.s.b, head);
    const RowCopy copy = row.of(p.k_new, cache, head);
    const char* from = copy.from;
    if (transforms(p)) {
      const auto place = [&](std::int64_t) { return RowCopy{copy.from, rotated}; };
      const std::int64_t position = p.rotary_cos.present ? key_position(p, row.s, row.i) : 0;
      transform(p, p.k_new, position, 1, place, numbers);
      from = rotated;
    }
    load_row(p.k_new.type, from, 1, p.head_dim_qk, numbers);
    for (std::int64_t d = 0; d < p.head_dim_qk && p.channel_scales_k.present; ++d) {
      numbers[d] /= channel_scale(p, head, d);
    }
    quantise({copy.to, cache.type, row.scale_in(cache), p.scales_k_of_rows}, numbers,
             p.head_dim_qk);
  }
}

void append_v(const Problem& p, const NewRow& row, char* scratch) {
  float* const numbers = reinterpret_cast<float*>(scratch);
  for (std::int64_t head = 0; head < p.num_heads_kv; ++head) {
    const KvOperand cache = v_operand(p, row.s.b, head);
    const RowCopy copy = row.of(p.v_new, cache, head);
    if (p.scales_v.present) {
      load_row(p.v_new.type, copy.from, 1, p.head_dim_v, numbers);
      quantise({copy.to, cache.type, row.scale_in(cache), p.scales_v_of_rows}, numbers,
               p.head_dim_v);
    } else {
      std::memcpy(copy.to, copy.from,
                  static_cast<std::size_t>(cache.dim * element_bytes(cache.type)));
    }
  }
}

/// Row i of the new keys and values of sequence b, all heads.
void append_row(const Problem& p, const Sequence& s, std::int64_t i, char* scratch) {
  const NewRow row{s, i, s.band.len_kv - p.seqlen_new + i};
  append_v(p, row, scratch);
  if (quantises_k(p)) return append_quantised_k(p, row, scratch);
  const auto place = [&](std::int64_t head) {
    return row.of(p.k_new, k_operand(p, s.b, head), head);
  };
  if (transforms(p)) {
    const std::int64_t position = p.rotary_cos.present ? key_position(p, s, i) : 0;
    return transform(p, p.k_new, position, p.num_heads_kv, place, scratch);
  }
  const auto bytes = static_cast<std::size_t>(p.head_dim_qk * element_bytes(p.k_new.type));
  for (std::int64_t head = 0; head < p.num_heads_kv; ++head) {
    std::memcpy(place(head).to, place(head).from, bytes);
  }
}

/// Query i of sequence b, all heads. Rows past its length may be read, and change nothing.
void rotate_query(const Problem& p, const View& rotated, const Sequence& s, std::int64_t i,
                  char* scratch) {
  const auto copy_of = [&](std::int64_t head) {
    return RowCopy{row_address(p.q, s.b, head, i), row_address(rotated, s.b, head, i)};
  };
  if (i < s.len_q) {
    const std::int64_t position = p.rotary_cos.present ? query_position(p, s, i) : 0;
    return transform(p, p.q, position, p.num_heads_q, copy_of, scratch);
  }
  const auto bytes = static_cast<std::size_t>(p.head_dim_qk * element_bytes(p.q.type));
  for (std::int64_t head = 0; head < p.num_heads_q; ++head) {
    std::memcpy(copy_of(head).to, copy_of(head).from, bytes);
  }
}

/// Task (b, block of its new rows, then of its queries).
void append_block(const void* args, std::int64_t task, char* scratch) {
  const AppendArgs& a = *static_cast<const AppendArgs*>(args);
  const Problem& p = *a.problem;
  const std::int64_t blocks = a.blocks_new + a.blocks_q;
  const Sequence s = sequence_of(p, task / blocks);
  const bool is_new = task % blocks < a.blocks_new;
  const std::int64_t first = (task % blocks - (is_new ? 0 : a.blocks_new)) * kBlockRows;
  const std::int64_t end = std::min(first + kBlockRows, is_new ? p.seqlen_new : s.rows_q);
  for (std::int64_t i = first; i < end; ++i) {
    if (is_new) {
      append_row(p, s, i, scratch);
    } else {
      rotate_query(p, a.rotated, s, i, scratch);
    }
  }
}

}  // namespace

std::int64_t append_scratch_bytes(const AttentionParams& params) noexcept {
  const FeatureSet& f = params.features;
  if (!f.has(Feature::kAppendKv) && !f.has(Feature::kRotary) && !f.has(Feature::kHadamard))
    return 0;
  // append_quantised_k() has two rows of K.
  const std::int64_t numbers = std::max(saturating_mul(2, params.head_dim_qk), params.head_dim_v);
  return saturating_mul(numbers, params.dtype_q == Dtype::kF64 ? 8 : 4);
}

Launch behind_rotated_queries(const AttentionParams& params, const Launch& launch) noexcept {
  return behind(launch, problem::rotated_queries_bytes(params));
}

void append_and_rotate(Problem* problem, void* rotated_queries, const AppendWorkers& workers) {
  const Problem& p = *problem;
  const bool rotates = transforms(p);
  if (p.seqlen_new == 0 && !rotates) return;
  AppendArgs args{problem, problem::rotated_view(p, rotated_queries)};
  args.blocks_new = ceil_div(p.seqlen_new, kBlockRows);
  args.blocks_q = rotates ? ceil_div(p.seqlen_q, kBlockRows) : 0;
  const std::int64_t of_new = p.num_heads_kv * (p.head_dim_qk + p.head_dim_v);
  const std::int64_t of_q = rotates ? p.num_heads_q * p.head_dim_qk : 0;
  const std::int64_t elements = p.batch * (p.seqlen_new * of_new + p.seqlen_q * of_q);
  constexpr std::int64_t kWorthWorkers = 1 << 19;  // fewer are written before workers are up
  const std::int64_t tasks = p.batch * (args.blocks_new + args.blocks_q);
  run_tasks({append_block, &args, tasks, workers.scratch_bytes},
            elements < kWorthWorkers ? 1 : workers.count, workers.launch);
  if (rotates) problem->q = args.rotated;
}

void rotate_queries(Problem* problem, const QueryRange& queries, void* copies, void* row) {
  const Problem& p = *problem;
  if (!transforms(p)) return;
  View rotated = problem::rotated_view(p, copies);
  // As if all queries before these had copies, too.
  const std::int64_t first = sequence_row(rotated, queries.b, queries.begin);
  rotated.data =
      reinterpret_cast<char*>(reinterpret_cast<std::uintptr_t>(copies) -
                              static_cast<std::uintptr_t>(first * element_bytes(rotated.type)));
  const Sequence s = sequence_of(p, queries.b);
  for (std::int64_t i = queries.begin; i < queries.end; ++i) {
    rotate_query(p, rotated, s, i, static_cast<char*>(row));
  }
  problem->q = rotated;
}

}  // namespace regard::cpu
