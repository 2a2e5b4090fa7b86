#pragma once

#include <cstdint>

#include "cpu/problem.h"

// Where the keys of K and V lie. The address of key j is computed here and nowhere else in the CPU
// kernels: a cache in pages, packed sequences and scales of 8-bit elements need to change this file
// and kv_tiles.h alone.

namespace regard::cpu {

/// The rows of K, or of V, of one (b, kv head); row j belongs to key j.
struct KvOperand {
  const char* first;         // row of key 0
  std::int64_t stride;       // bytes from one key's row to the next
  std::int64_t head_stride;  // bytes from this kv head's rows to those of the next
  std::int64_t dim;          // elements in a row
  std::int64_t keys;         // rows that the sequence has in memory
  double descale;            // factor of every element: K's belongs to q, V's to the output
  Element type;
};

/// The rows of `view`, K or V, with elements that `descale` holds a factor of.
REGARD_KERNEL_FN KvOperand kv_operand(const View& view, const View& descale, std::int64_t keys,
                                      std::int64_t dim, std::int64_t b, std::int64_t head_kv) {
  const std::int64_t bytes = element_bytes(view.type);
  return {row_address(view, b, head_kv, 0),
          view.stride[2] * bytes,
          view.stride[1] * bytes,
          dim,
          keys,
          descale_of(descale, b, head_kv),
          view.type};
}

/// Where the keys of packed sequences begin.
REGARD_KERNEL_FN RowStarts key_starts(const Problem& p) { return p.k.starts; }

REGARD_KERNEL_FN KvOperand k_operand(const Problem& p, std::int64_t b, std::int64_t head_kv) {
  const std::int64_t keys = sequence_rows(p.k.starts, p.seqlen_kv, b);
  return kv_operand(p.k, p.descale_k, keys, p.head_dim_qk, b, head_kv);
}

REGARD_KERNEL_FN KvOperand v_operand(const Problem& p, std::int64_t b, std::int64_t head_kv) {
  const std::int64_t keys = sequence_rows(p.v.starts, p.seqlen_kv, b);
  return kv_operand(p.v, p.descale_v, keys, p.head_dim_v, b, head_kv);
}

/// A copy of `keys` rows without gaps, [keys][dim].
REGARD_KERNEL_FN KvOperand copied_operand(const void* rows, Element type, std::int64_t dim,
                                          std::int64_t keys) {
  const std::int64_t stride = dim * element_bytes(type);
  return {static_cast<const char*>(rows), stride, 0, dim, keys, 1.0, type};
}

/// The address of row j.
REGARD_KERNEL_FN const char* row_of(const KvOperand& x, std::int64_t j) {
  return x.first + j * x.stride;
}

/// The same rows from key j on: row 0 is key j's.
REGARD_KERNEL_FN KvOperand from_key(const KvOperand& x, std::int64_t j) {
  KvOperand rest = x;
  rest.first = row_of(x, j);
  rest.keys = x.keys - j;
  return rest;
}

}  // namespace regard::cpu
