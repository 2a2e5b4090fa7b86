#pragma once

#include <cstdint>

#include "cpu/problem.h"

// Where the keys of K and V lie: in the batch, in an entry of a cache, in packed rows or in pages,
// the first of them behind rows that are no keys.
// The address of key j is computed here and nowhere else in the CPU kernels.

namespace regard::cpu {

/// Pages of a sequence: key j lies in row r % size of page ids[r / size], r = j + skipped.
struct KvPages {
  const std::int32_t* ids = nullptr;  // null: keys follow one another
  std::int64_t id_step = 0;           // from one id to the next
  std::int64_t size = 0;              // keys of a page
  std::int64_t stride = 0;            // bytes from one page to the next
  std::int64_t skipped = 0;           // rows before key 0
};

/// What rows are multiplied by, f32. A row of u4 has a scale and a minimum for each group, beside
/// one another.
struct KvScales {
  const char* first = nullptr;  // key 0's, or page 0's first; null: nothing
  std::int64_t stride = 0;  // bytes from one key's to the next; 0: all keys of an entry have one
  std::int64_t page_stride = 0;  // bytes from one page to the next
  // Of blocks: columns of one, and log2 of its rows. Where that is not 0, `first` is that of the
  // entry's row 0 and key 0 lies in row `row`.
  std::int64_t columns = 0;
  std::int64_t rows_log2 = 0;
  std::int64_t row = 0;
};

/// The rows of K, or of V, of one (b, kv head); row j belongs to key j.
struct KvOperand {
  const char* first;         // row of key 0, or of page 0
  std::int64_t stride;       // bytes from one key's row to the next
  std::int64_t head_stride;  // bytes from this kv head's rows to those of the next
  std::int64_t dim;          // elements in a row
  std::int64_t keys;         // rows that the sequence has in memory
  double descale;            // factor of every element: K's belongs to q, V's to the output
  Element type;
  KvPages pages{};
  KvScales scales{};
};

/// What K's, or V's, elements are multiplied by: all, and row by row.
struct KvFactors {
  const View& descale;
  const View& scales;
};

/// The rows of `view`, K or V.
REGARD_KERNEL_FN KvOperand kv_operand(const Problem& p, const View& view, const KvFactors& factors,
                                      std::int64_t dim, std::int64_t b, std::int64_t head_kv) {
  const std::int64_t bytes = element_bytes(view.type);
  std::int64_t entry = b;  // of the view's first dimension
  const std::int64_t leftpad = leftpad_of(p, b);
  const std::int64_t first = p.pages.ids != nullptr ? 0 : leftpad;
  KvPages pages{};
  if (p.pages.ids != nullptr) {
    entry = 0;
    pages = {p.pages.ids + b * p.pages.stride[0], p.pages.stride[1], p.pages.page_size,
             view.stride[0] * bytes, leftpad};
  } else if (p.cache_entries.present) {
    entry = *element_at<std::int32_t>(p.cache_entries, b * p.cache_entries.stride[0]);
  }
  KvScales scales{};
  if (factors.scales.present) {
    constexpr std::int64_t kBytes = sizeof(float);
    scales = {row_address(factors.scales, entry, head_kv, first), factors.scales.stride[2] * kBytes,
              factors.scales.stride[0] * kBytes};
    if (view.type != Element::kU4 && p.scale_columns != 0) {
      scales.columns = p.scale_columns;
      scales.rows_log2 = p.scale_rows_log2;
    }
    if (scales.rows_log2 != 0) {
      const View& of = factors.scales;
      scales.row = first + (of.starts.data != nullptr ? row_start(of.starts, b) : 0);
      scales.first = of.data + (entry * of.stride[0] + head_kv * of.stride[1]) * kBytes;
    }
  }
  return {row_address(view, entry, head_kv, first),
          view.stride[2] * bytes,
          view.stride[1] * bytes,
          dim,
          sequence_rows(view.starts, p.seqlen_kv, b) - leftpad,
          descale_of(factors.descale, b, head_kv),
          view.type,
          pages,
          scales};
}

/// Where the keys of packed sequences begin.
REGARD_KERNEL_FN RowStarts key_starts(const Problem& p) { return p.k.starts; }

REGARD_KERNEL_FN KvOperand k_operand(const Problem& p, std::int64_t b, std::int64_t head_kv) {
  return kv_operand(p, p.k, {p.descale_k, p.scales_k}, p.head_dim_qk, b, head_kv);
}

REGARD_KERNEL_FN KvOperand v_operand(const Problem& p, std::int64_t b, std::int64_t head_kv) {
  return kv_operand(p, p.v, {p.descale_v, p.scales_v}, p.head_dim_v, b, head_kv);
}

/// The type of K in memory, whoever its rows are.
REGARD_KERNEL_FN Element type_of_keys(const Problem& p) { return p.k.type; }

/// What column d of K is multiplied by, 1 without scales of columns: kernels multiply q's element.
REGARD_KERNEL_FN float channel_scale(const Problem& p, std::int64_t head_kv, std::int64_t d) {
  const View& scales = p.channel_scales_k;
  if (!scales.present) return 1.0f;
  return *element_at<float>(scales, head_kv * scales.stride[0] + d * scales.stride[1]);
}

/// Of q or d_out.
struct QueryRow {
  std::int64_t b, h, i;
};

/// What element d of a row is multiplied by besides its descale, 1 without `scales`, of q or d_out.
REGARD_KERNEL_FN float row_scale(const Problem& p, const View& scales, const QueryRow& of,
                                 std::int64_t d) {
  if (!scales.present) return 1.0f;
  std::int64_t row = of.i, at = of.h * scales.stride[1];
  if (scales.starts.data != nullptr) {
    row += row_start(scales.starts, of.b);
  } else {
    at += of.b * scales.stride[0];
  }
  at += (row >> p.scale_rows_log2) * scales.stride[2];
  if (p.scale_columns != 0) at += d / p.scale_columns * scales.stride[3];
  return *element_at<float>(scales, at);
}

/// A copy of `keys` rows without gaps, [keys][dim].
REGARD_KERNEL_FN KvOperand copied_operand(const void* rows, Element type, std::int64_t dim,
                                          std::int64_t keys) {
  const std::int64_t stride = bytes_of(type, dim);
  return {static_cast<const char*>(rows), stride, 0, dim, keys, 1.0, type};
}

/// The row of key j in its page. Where there is no page, keys that nobody sees may be loaded beside
/// those of a tile: they are read from page 0. Not inline, nor is run_in_pages: beside more code
/// GCC 12 spills the sums of products.
[[maybe_unused]] static __attribute__((noinline)) const char* row_in_page(const char* first,
                                                                          std::int64_t stride,
                                                                          KvPages pages,
                                                                          std::int64_t j) {
  j += pages.skipped;
  const std::int64_t index = j / pages.size;
  const std::int64_t id = pages.ids[index * pages.id_step];
  return first + (id > 0 ? id : 0) * pages.stride + (j - index * pages.size) * stride;
}

[[maybe_unused]] static __attribute__((noinline)) std::int64_t run_in_pages(
    const char* first, std::int64_t stride, KvPages pages, semantics::KeyRange keys) {
  const char* const begin = row_in_page(first, stride, pages, keys.lo);
  std::int64_t next = keys.lo;
  do {
    next += pages.size - (next + pages.skipped) % pages.size;
  } while (next < keys.hi &&
           row_in_page(first, stride, pages, next) == begin + (next - keys.lo) * stride);
  return (next < keys.hi ? next : keys.hi) - keys.lo;
}

/// The address of row j.
REGARD_KERNEL_FN const char* row_of(const KvOperand& x, std::int64_t j) {
  if (x.pages.ids == nullptr) return x.first + j * x.stride;
  return row_in_page(x.first, x.stride, x.pages, j);
}

/// Where the scale of row j lies, or those of its blocks; x has scales.
REGARD_KERNEL_FN const float* scale_at(const KvOperand& x, std::int64_t j) {
  const char* at = x.scales.first + ((x.scales.row + j) >> x.scales.rows_log2) * x.scales.stride;
  if (x.pages.ids != nullptr) {
    KvPages pages = x.pages;
    pages.stride = x.scales.page_stride;
    at = row_in_page(x.scales.first, x.scales.stride, pages, j);
  }
  return reinterpret_cast<const float*>(at);
}

/// Rows of keys that follow one another in a page, from `row` of page `page` on.
struct PageRun {
  std::int32_t page;
  std::int32_t row;
};

/// The address of a run's first row.
REGARD_KERNEL_FN const char* row_of(const KvOperand& x, PageRun run) {
  return x.first + run.page * x.pages.stride + run.row * x.stride;
}

/// Where its scale lies, or those of its groups.
REGARD_KERNEL_FN const char* scale_at(const KvOperand& x, PageRun run) {
  return x.scales.first + run.page * x.scales.page_stride + run.row * x.scales.stride;
}

/// How many of the keys [begin, end) follow one another in memory, from `begin` on, and their
/// scales as well: pages may be neighbours while their scales are none.
REGARD_KERNEL_FN std::int64_t run_of(const KvOperand& x, std::int64_t begin, std::int64_t end) {
  if (x.pages.ids == nullptr) return end - begin;
  const std::int64_t run = run_in_pages(x.first, x.stride, x.pages, {begin, end});
  if (x.scales.first == nullptr) return run;
  KvPages pages = x.pages;
  pages.stride = x.scales.page_stride;
  return run_in_pages(x.scales.first, x.scales.stride, pages, {begin, begin + run});
}

REGARD_KERNEL_FN bool is_one_run(const KvOperand& x, std::int64_t begin, std::int64_t end) {
  return run_of(x, begin, end) == end - begin;
}

}  // namespace regard::cpu
