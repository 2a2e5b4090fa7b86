#pragma once

#include <cstdint>

// An instruction set's vector vocabulary as plain functions over arrays, so that tests are compiled
// for the baseline: shared inline functions of the library must not carry an instruction set's
// code.

namespace regard::test {

/// a [m][k] and b [k][W] of a product; c is [m][W], max and carry are [W].
struct ProductCall {
  const float* a;
  const float* b;
  float* c;
  std::int64_t m;
  std::int64_t k;
  int vectors;  // of a row of W that are computed
};

struct Vocabulary {
  int lanes;
  int vectors;  // W / lanes
  // One vector each.
  void (*exp2)(const float* t, float* to);
  void (*tanh)(const float* x, float* to);
  void (*scaled_tanh)(const float* x, float* to);  // 30 * tanh(x / -240)
  void (*exp)(const float* x, float* to);
  void (*log)(const float* x, float* to);
  void (*sqrt)(const float* x, float* to);
  void (*sigmoid)(const float* x, float* to);
  void (*max)(const float* a, const float* b, float* to);
  void (*load_bf16)(const std::uint16_t* from, float* to);
  void (*load_f16)(const std::uint16_t* from, float* to);
  void (*load_f8e4m3)(const std::uint8_t* from, float* to);
  void (*load_f8e5m2)(const std::uint8_t* from, float* to);
  void (*load_u4)(const std::uint8_t* from, float* to);  // lanes / 2 bytes
  void (*store_bf16)(const float* from, std::uint16_t* to);
  // Pairs of bf16, those of `low` first.
  void (*bf16_pairs)(const float* low, const float* high, std::uint16_t* to);
  void (*store_f16)(const float* from, std::uint16_t* to);
  void (*transpose)(float* square);  // [lanes][lanes]
  void (*sum_rows)(const float* square, float* to);
  void (*scores)(const ProductCall& call, float* max);
  void (*add_product)(const ProductCall& call, const float* rescale, bool select);
  // Pairs of bf16, or null: a pair is two uint16, b [k][W] pairs.
  void (*to_pairs)(const float* low, const float* high, std::uint16_t* to);
  void (*dot)(const std::uint16_t* a, const std::uint16_t* b, bool visible, float* sum);
  // Vectors of 64 bytes, or null: codes of 8-bit floats as bf16; products of four bytes a lane;
  // bytes 4 quad and on of each quarter of four vectors; words [4][16] as bytes with signs.
  void (*bf16_of_f8)(bool is_e5m2, const std::uint8_t* codes, std::uint16_t* to) = nullptr;
  void (*add_bytes)(const std::uint8_t* codes, const std::int8_t* numbers,
                    std::int32_t* sum) = nullptr;
  void (*join_quads)(int quad, const std::uint8_t* from, std::uint8_t* to) = nullptr;
  void (*join_bytes)(const std::int32_t* words, std::int8_t* high, std::int8_t* low) = nullptr;
  // Or null: 32 codes of 8-bit floats as f16, of e4m3 a 256th; whether e4m3 had a NaN.
  bool (*f16_of_f8)(bool is_e5m2, const std::uint8_t* codes, std::uint16_t* to) = nullptr;
};

extern const Vocabulary kScalarVocabulary;
extern const Vocabulary kAvx2Vocabulary;  // x86-64 only
extern const Vocabulary kAvx512Vocabulary;
extern const Vocabulary kAvx512Bf16Vocabulary;
// AArch64:
extern const Vocabulary kNeonVocabulary;
extern const Vocabulary kNeonBf16Vocabulary;

}  // namespace regard::test
