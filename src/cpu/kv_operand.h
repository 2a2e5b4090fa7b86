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
  std::int64_t keys;         // rows in the tensor
  double descale;            // factor of every element: K's belongs to q, V's to the output
  Element type;
};

REGARD_KERNEL_FN KvOperand k_operand(const Problem& p, std::int64_t b, std::int64_t head_kv) {
  const std::int64_t bytes = element_bytes(p.k.type);
  return {row_address(p.k, b, head_kv, 0),
          p.k.stride[2] * bytes,
          p.k.stride[1] * bytes,
          p.head_dim_qk,
          p.seqlen_kv,
          descale_of(p.descale_k, b, head_kv),
          p.k.type};
}

REGARD_KERNEL_FN KvOperand v_operand(const Problem& p, std::int64_t b, std::int64_t head_kv) {
  const std::int64_t bytes = element_bytes(p.v.type);
  return {row_address(p.v, b, head_kv, 0),
          p.v.stride[2] * bytes,
          p.v.stride[1] * bytes,
          p.head_dim_v,
          p.seqlen_kv,
          descale_of(p.descale_v, b, head_kv),
          p.v.type};
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
