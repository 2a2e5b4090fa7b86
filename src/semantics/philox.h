#pragma once

#include <cstdint>

#include "semantics/kernel_fn.h"

// Dropout's random stream: a function of the element's logical place alone, so that every backend,
// tile and thread count, and every chunk of a prefill, draws the same mask.

namespace regard::semantics {

struct PhiloxBlock {
  std::uint32_t word[4];
};

struct PhiloxKey {
  std::uint32_t word[2];
};

/// The halves of products of 32-bit words.
struct WordArithmetic {
  REGARD_KERNEL_FN constexpr void multiply_wide(std::uint32_t x, std::uint32_t by,
                                                std::uint32_t* high, std::uint32_t* low) {
    const std::uint64_t product = std::uint64_t{x} * by;
    *high = static_cast<std::uint32_t>(product >> 32);
    *low = static_cast<std::uint32_t>(product);
  }
};

/// Philox4x32 with 7 rounds (Salmon et al. 2011; the fewest that pass BigCrush), on words or on
/// vectors of them.
template <class Arithmetic, class Word>
REGARD_KERNEL_FN constexpr void philox_rounds(PhiloxKey key, Word* c) {
  std::uint32_t k0 = key.word[0], k1 = key.word[1];
  for (int round = 0; round < 7; ++round) {
    Word high_a{}, low_a{}, high_b{}, low_b{};
    Arithmetic::multiply_wide(c[0], 0xD2511F53u, &high_a, &low_a);
    Arithmetic::multiply_wide(c[2], 0xCD9E8D57u, &high_b, &low_b);
    c[0] = high_b ^ c[1] ^ k0;
    c[1] = low_b;
    c[2] = high_a ^ c[3] ^ k1;
    c[3] = low_a;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

REGARD_KERNEL_FN constexpr PhiloxBlock philox4x32_7(PhiloxBlock counter, PhiloxKey key) {
  philox_rounds<WordArithmetic>(key, counter.word);
  return counter;
}

/// One call's stream and threshold.
struct Dropout {
  PhiloxKey key{};
  std::uint32_t offset_lo = 0;
  std::uint32_t threshold = 0;  // kept iff draw < threshold; 0: no dropout at all
  // Added to the words of the counter, where the call is part of a greater one
  std::uint32_t key_block = 0;
  std::uint32_t position = 0;
  std::uint32_t batch_head = 0;
  std::uint32_t heads = 0;  // query heads of the greater call; 0: those of this one
};

inline constexpr std::int64_t kDropoutKeysPerBlock = 8;

/// floor((1 - p) * 65536 + 0.5); p > 0 is served for 1..65535.
REGARD_KERNEL_FN constexpr std::uint32_t dropout_threshold(double p) {
  return static_cast<std::uint32_t>((1.0 - p) * 65536.0 + 0.5);
}

REGARD_KERNEL_FN constexpr Dropout make_dropout(double p, std::uint64_t seed,
                                                std::uint64_t offset) {
  Dropout d{};
  if (p <= 0.0) return d;
  d.key.word[0] = static_cast<std::uint32_t>(seed);
  d.key.word[1] = static_cast<std::uint32_t>(seed >> 32) ^ static_cast<std::uint32_t>(offset >> 32);
  d.offset_lo = static_cast<std::uint32_t>(offset);
  d.threshold = dropout_threshold(p);
  return d;
}

/// Where a call's first row, key and head lie in the greater call; `key` is a multiple of 8.
REGARD_KERNEL_FN constexpr void begin_dropout_at(Dropout* d, std::int64_t position,
                                                 std::int64_t key, std::int64_t head,
                                                 std::int64_t heads) {
  d->key_block = static_cast<std::uint32_t>(static_cast<std::uint64_t>(key) >> 3);
  d->position = static_cast<std::uint32_t>(static_cast<std::uint64_t>(position));
  d->batch_head = static_cast<std::uint32_t>(static_cast<std::uint64_t>(head));
  d->heads = static_cast<std::uint32_t>(heads);
}

/// The row's words of the counter: its position on the diagonal mod 2^32, and b * num_heads_q + h;
/// what they count from added.
struct DropoutRow {
  std::uint32_t position = 0;
  std::uint32_t batch_head = 0;
};

REGARD_KERNEL_FN constexpr DropoutRow dropout_row(const Dropout& d, std::int64_t i,
                                                  std::int64_t shift, std::int64_t b,
                                                  std::int64_t h, std::int64_t num_heads_q) {
  const std::uint64_t position =
      static_cast<std::uint64_t>(i) + static_cast<std::uint64_t>(shift);  // exact mod 2^32
  const std::int64_t heads = d.heads != 0 ? std::int64_t{d.heads} : num_heads_q;
  return {static_cast<std::uint32_t>(position) + d.position,
          static_cast<std::uint32_t>(b * heads + h) + d.batch_head};
}

/// The word of the counter for keys 8 * (j / 8) ... + 7.
REGARD_KERNEL_FN constexpr std::uint32_t dropout_key_word(const Dropout& d, std::int64_t j) {
  return static_cast<std::uint32_t>(static_cast<std::uint64_t>(j) >> 3) + d.key_block;
}

/// The draws of keys 8 * (j / 8) ... + 7.
REGARD_KERNEL_FN constexpr PhiloxBlock dropout_block(const Dropout& d, DropoutRow row,
                                                     std::int64_t j) {
  return philox4x32_7({{dropout_key_word(d, j), row.position, row.batch_head, d.offset_lo}}, d.key);
}

/// The 16-bit draw of key j within its block.
REGARD_KERNEL_FN constexpr std::uint32_t dropout_draw(const PhiloxBlock& block, std::int64_t j) {
  return (block.word[(j & 7) >> 1] >> (16 * (j & 1))) & 0xffffu;
}

REGARD_KERNEL_FN constexpr bool dropout_keeps(const Dropout& d, DropoutRow row, std::int64_t j) {
  return dropout_draw(dropout_block(d, row, j), j) < d.threshold;
}

}  // namespace regard::semantics
