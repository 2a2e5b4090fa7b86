#pragma once

#include <cstdint>

namespace probe {

/// One head of K and V and the query rows of its group.
struct HeadCall {
  const float* q;  // [rows][dim]
  const void* keys;
  const void* values;
  float* out;  // [rows][dim]
  std::int64_t rows, dim, length;
  std::int64_t stride;  // elements between keys
  float scale;          // to powers of two
};

// x86-64:
void decode_f32_avx2(const HeadCall& call);
void decode_bf16_avx2(const HeadCall& call);
void decode_f32_avx512(const HeadCall& call);
void decode_bf16_avx512(const HeadCall& call);

}  // namespace probe
