#pragma once

#include <cstdint>

#include "cuda/append_args.h"
#include "cuda/quantise.cuh"
#include "cuda/tasks.cuh"
#include "problem/rotary.h"

// What a call does before its attention: new rows are written to a cache, rotated, multiplied by
// the Hadamard matrix and quantised as the call states; queries are rotated and multiplied. On a
// device lengths, pages, entries and positions have not been checked: a row that has no place in
// the cache is not written, and a position outside of the tables is taken for their nearest.

namespace regard::cuda {

/// A product that no addition is fused with: docs/semantics.md states every rounding.
REGARD_DEVICE_FN float rounded_product(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

/// One row of each head, before and after.
struct HeadRows {
  Element type;
  std::int64_t heads, columns;
  const char* from;
  char* to;
  std::int64_t from_head, to_head;  // bytes from a head to the next
};

/// A block has a row of one sequence, all heads of it: those of all new rows come first.
struct AppendKernel {
  using Args = AppendArgs;
  static constexpr int kThreads = cuda::kThreads;
  static constexpr int kBlocks = 2;
  static constexpr int kAtWarps = static_cast<int>(kMaxHadamardColumns * sizeof(float));
  static constexpr int kSharedBytes = kAtWarps + kWarps * static_cast<int>(sizeof(float));
  static constexpr std::int64_t kUnrotated = -1;

  /// Packed queries have a block for each row of their tensor: how long the longest sequence is may
  /// not be known, and then stands for all rows.
  REGARD_KERNEL_FN std::int64_t count_tasks(const Args& args) {
    const Problem& p = args.problem;
    const std::int64_t queries = is_packed(p) ? p.total_q : p.batch * p.seqlen_q;
    return p.batch == 0 ? 0 : p.batch * p.seqlen_new + (args.rotated.present ? queries : 0);
  }
  REGARD_KERNEL_FN bool is_packed(const Problem& p) { return p.q.starts.data != nullptr; }

  template <class Block>
  REGARD_DEVICE_FN void run(const Block& block, const Args& args) {
    const Problem& p = args.problem;
    const std::int64_t new_rows = p.batch * p.seqlen_new;
    for_each_task(block, count_tasks(args), [&](std::int64_t task) {
      if (task < new_rows) {
        const Sequence s = problem::sequence_of(p, task / p.seqlen_new);
        return append_row(block, args, s, task % p.seqlen_new);
      }
      const std::int64_t row = task - new_rows;
      const std::int64_t b =
          is_packed(p) ? packed_sequence_of(p.q.starts, p.batch, row) : row / p.seqlen_q;
      const std::int64_t first = is_packed(p) ? problem::row_start(p.q.starts, b) : b * p.seqlen_q;
      rotate_query(block, args, problem::sequence_of(p, b), row - first);
    });
  }

  /// The last sequence that begins at or before a row; any one where cu_seqlens do not ascend.
  REGARD_DEVICE_FN std::int64_t packed_sequence_of(const problem::RowStarts& starts,
                                                   std::int64_t batch, std::int64_t row) {
    std::int64_t found = 0, end = batch;
    while (end - found > 1) {
      const std::int64_t middle = (found + end) / 2;
      (problem::row_start(starts, middle) <= row ? found : end) = middle;
    }
    return found;
  }

  /// Row i of the sequence's new keys and values.
  template <class Block>
  REGARD_DEVICE_FN void append_row(const Block& block, const Args& args, const Sequence& s,
                                   std::int64_t i) {
    const Problem& p = args.problem;
    const std::int64_t length =
        *problem::element_at<std::int32_t>(p.lens_kv, s.b * p.lens_kv.stride[0]);
    const std::int64_t row = length + i;
    // Without positions that of its place: key_position() takes lengths that the cache can hold.
    const std::int64_t stated = p.positions.present ? problem::key_position(p, s, i) : row;
    const std::int64_t position = p.rotary_cos.present ? clamp_position(args, stated) : kUnrotated;
    const Transform of_k{&p.scales_k, &p.channel_scales_k, p.scales_k_of_rows, p.hadamard};
    const Transform of_v{&p.scales_v, nullptr, p.scales_v_of_rows, false};
    write_row(block, args, s, row, {p.k_new, p.k, of_k, p.head_dim_qk, position, i});
    write_row(block, args, s, row, {p.v_new, p.v, of_v, p.head_dim_v, kUnrotated, i});
  }

  /// What becomes of a row besides its rotation.
  struct Transform {
    const View *scales, *channel_scales;  // null: none
    bool brings_scale;                    // each row has a scale of its own
    bool mixes;                           // by the Hadamard matrix

    REGARD_DEVICE_FN bool has_channels(const Transform& t) {
      return t.channel_scales != nullptr && t.channel_scales->present;
    }
    REGARD_DEVICE_FN bool quantises(const Transform& t) {
      return (t.scales != nullptr && t.scales->present) || has_channels(t);
    }
  };

  struct NewRow {
    const View &rows, &cache;
    Transform transform;
    std::int64_t columns, position, i;
  };

  template <class Block>
  REGARD_DEVICE_FN void write_row(const Block& block, const Args& args, const Sequence& s,
                                  std::int64_t row, const NewRow& new_row) {
    char* const to = place_of_row(args, s, new_row.cache, row, new_row.columns);
    if (to == nullptr) return;
    const Transform& t = new_row.transform;
    const std::int64_t bytes = problem::element_bytes(new_row.rows.type);
    const HeadRows rows{new_row.rows.type,
                        args.problem.num_heads_kv,
                        new_row.columns,
                        problem::row_address(new_row.rows, s.b, 0, new_row.i),
                        to,
                        new_row.rows.stride[1] * bytes,
                        new_row.cache.stride[1] * problem::element_bytes(new_row.cache.type)};
    if (!Transform::quantises(t) && !t.mixes) {
      return copy_heads(block, args.problem, rows, new_row.position);
    }
    char* const scales = t.scales->present ? place_of_row(args, s, *t.scales, row, 1) : nullptr;
    transform_heads(block, args, rows, new_row.position, t,
                    {new_row.cache.type, to, reinterpret_cast<float*>(scales), t.brings_scale});
  }

  /// Row `row` of the sequence in k or v, head 0; null where the cache has no such row.
  REGARD_DEVICE_FN char* place_of_row(const Args& args, const Sequence& s, const View& cache,
                                      std::int64_t row, std::int64_t columns) {
    const Problem& p = args.problem;
    if (row < 0 || row >= p.seqlen_kv) return nullptr;
    const KeyPlace place = place_of_keys(p, s, args.kv_entries);
    if (place.ids == nullptr) {
      return place.entry < 0 ? nullptr : problem::row_address(cache, place.entry, 0, row);
    }
    const KeyPages pages = pages_of(p, place, args.kv_entries);
    const auto rows = paged_rows(cache, cache.data, pages, {row, 1}, columns);
    return PagedRows::row(rows, 0);
  }

  /// Query i of the sequence, if it has that. Rows past its length may be read, and change nothing.
  template <class Block>
  REGARD_DEVICE_FN void rotate_query(const Block& block, const Args& args, const Sequence& s,
                                     std::int64_t i) {
    const Problem& p = args.problem;
    if (i < 0 || i >= s.rows_q) return;
    const std::int64_t bytes = problem::element_bytes(p.q.type);
    const HeadRows rows{p.q.type,
                        p.num_heads_q,
                        p.head_dim_qk,
                        problem::row_address(p.q, s.b, 0, i),
                        problem::row_address(args.rotated, s.b, 0, i),
                        p.q.stride[1] * bytes,
                        args.rotated.stride[1] * bytes};
    if (i >= s.len_q) return copy_heads(block, p, rows, kUnrotated);
    const std::int64_t position = clamp_position(args, problem::query_position(p, s, i));
    if (!p.hadamard) return copy_heads(block, p, rows, position);
    transform_heads(block, args, rows, position, {nullptr, nullptr, false, true}, {});
  }

  /// kUnrotated where the tables are empty.
  REGARD_DEVICE_FN std::int64_t clamp_position(const Args& args, std::int64_t position) {
    if (args.angles == 0) return kUnrotated;
    return semantics::clamp(position, 0, args.angles - 1);
  }

  /// Rotates the rows for a position that the tables have.
  template <class Block>
  REGARD_DEVICE_FN void copy_heads(const Block& block, const Problem& p, const HeadRows& rows,
                                   std::int64_t position) {
    const std::int64_t rotated = position == kUnrotated ? 0 : 2 * p.rotary_half;
    for (std::int64_t n = block.thread(); n < rows.heads * rows.columns; n += kThreads) {
      const std::int64_t head = quotient(n, rows.columns), d = n - head * rows.columns;
      const char* const from = rows.from + head * rows.from_head;
      char* const to = rows.to + head * rows.to_head;
      if (d < rotated) {
        store_element(rows.type, to, d, rotated_element(p, rows.type, from, position, d));
      } else {
        copy_element(rows.type, from, to, d);
      }
    }
  }

  /// The same for rows that are mixed or quantised, one head after another. `first`: the codes of
  /// head 0.
  template <class Block>
  REGARD_DEVICE_FN void transform_heads(const Block& block, const Args& args, const HeadRows& rows,
                                        std::int64_t position, const Transform& t,
                                        const Codes& first) {
    const Problem& p = args.problem;
    const auto mixed = block.template shared<float>(0, static_cast<int>(kMaxHadamardColumns));
    const auto of_warps = block.template shared<float>(kAtWarps, kWarps);
    const std::int64_t rotated = position == kUnrotated ? 0 : 2 * p.rotary_half;
    for (std::int64_t head = 0; head < rows.heads; ++head) {
      const char* const from = rows.from + head * rows.from_head;
      const auto rotated_number = [&](std::int64_t d) {
        if (d >= rotated) return load_element<float>(rows.type, from, d);
        return rounded_to(rows.type, rotated_element(p, rows.type, from, position, d));
      };
      if (t.mixes) {
        multiply_hadamard(block, rows.type, static_cast<int>(rows.columns), args.mix_unit,
                          rotated_number, mixed);
      }
      const auto number = [&](std::int64_t d) {
        const float own = t.mixes ? static_cast<float>(mixed[d]) : rotated_number(d);
        if (!Transform::has_channels(t)) return own;
        const View& channels = *t.channel_scales;
        return own / *problem::element_at<float>(
                         channels, head * channels.stride[0] + d * channels.stride[1]);
      };
      Codes codes = first;
      if (Transform::quantises(t)) {
        codes.to = rows.to + head * rows.to_head;
        if (codes.scales != nullptr) codes.scales += head * t.scales->stride[1];
        write_codes(block, codes, rows.columns, number, of_warps);
        continue;
      }
      for (std::int64_t d = block.thread(); d < rows.columns; d += kThreads) {
        store_element(rows.type, rows.to + head * rows.to_head, d, number(d));
      }
    }
  }

  /// As it is, even a NaN.
  REGARD_DEVICE_FN void copy_element(Element type, const char* from, char* to, std::int64_t d) {
    with_stored(type, [&](auto stored) {
      using Bits = typename decltype(stored)::Bits;
      reinterpret_cast<Bits*>(to)[d] = reinterpret_cast<const Bits*>(from)[d];
    });
  }

  /// Element d of a rotated row. Each product and each sum is rounded.
  REGARD_DEVICE_FN float rotated_element(const Problem& p, Element type, const char* from,
                                         std::int64_t position, std::int64_t d) {
    const std::int64_t half = p.rotary_half;
    const bool is_second = p.rotary_interleaved ? d % 2 != 0 : d >= half;
    const std::int64_t apart = p.rotary_interleaved ? 1 : half;
    const std::int64_t pair = p.rotary_interleaved ? d / 2 : is_second ? d - half : d;
    const auto angle = [&](const View& table) {
      return load_element<float>(table.type, table.data,
                                 position * table.stride[0] + pair * table.stride[1]);
    };
    const auto own = load_element<float>(type, from, d);
    const auto other = load_element<float>(type, from, is_second ? d - apart : d + apart);
    const float a = rounded_product(own, angle(p.rotary_cos));
    const float b = rounded_product(other, angle(p.rotary_sin));
    return is_second ? a + b : a - b;
  }
};

/// Before the attention, on the same stream.
template <class Runner>
void run_append(Runner& run, const AppendArgs& args) {
  run.template launch<AppendKernel>(args, AppendKernel::count_tasks(args));
}

}  // namespace regard::cuda
