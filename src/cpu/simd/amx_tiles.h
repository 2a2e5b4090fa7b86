#pragma once

#include <cstdint>

#include "cpu/simd/product.h"
#include "semantics/kernel_fn.h"

// AMX: eight registers that hold a matrix each, 16 rows of 64 bytes, and the product of two of bf16
// pairs. GCC's and Clang's functions take the number of a register as a literal; these take it as a
// constant of a template.

namespace regard::amx {

/// Bytes of a row; rows.
inline constexpr std::int64_t kRowBytes = 64;
inline constexpr std::int64_t kRows = 16;
/// bf16 of a row of the left matrix: what one product contracts.
inline constexpr std::int64_t kDepth = 32;

/// All eight registers are whole while it lives. What the thread had configured comes back: its
/// caller may multiply with AMX, too.
class Configuration {
 public:
  __attribute__((always_inline)) Configuration() {
    asm volatile("sttilecfg %0" : "=m"(before_));
    State whole{};
    whole.palette = 1;
    for (int i = 0; i < 8; ++i) {
      whole.row_bytes[i] = kRowBytes;
      whole.rows[i] = kRows;
    }
    asm volatile("ldtilecfg %0" : : "m"(whole) : "memory");
  }
  __attribute__((always_inline)) ~Configuration() {
    if (before_.palette == 0) {
      asm volatile("tilerelease" : : : "memory");
    } else {
      asm volatile("ldtilecfg %0" : : "m"(before_) : "memory");
    }
  }
  Configuration(const Configuration&) = delete;
  Configuration& operator=(const Configuration&) = delete;

 private:
  struct alignas(64) State {
    std::uint8_t palette, start_row, reserved[14];
    std::uint16_t row_bytes[16];
    std::uint8_t rows[16];
  };
  static_assert(sizeof(State) == 64);
  State before_;
};

template <int kTile>
REGARD_KERNEL_FN void clear() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}

/// The 16 rows from `first` on, `stride` bytes apart.
template <int kTile>
REGARD_KERNEL_FN void load(const void* first, std::int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(first), "r"(stride), "i"(kTile) : "memory");
}

template <int kTile>
REGARD_KERNEL_FN void store(void* first, std::int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(first), "r"(stride), "i"(kTile) : "memory");
}

/// sum [16][16] f32 += left [16][32] bf16 * right [16 pairs][16]; denormals count as 0.
template <int kSum, int kLeft, int kRight>
REGARD_KERNEL_FN void add_product() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
}

/// Calls f(Count<0>), ..., f(Count<kCount - 1>).
template <int kCount, int kAt = 0, class F>
REGARD_KERNEL_FN void for_constants(F f) {
  if constexpr (kAt < kCount) {
    f(cpu::Count<kAt>{});
    for_constants<kCount, kAt + 1>(f);
  }
}

/// Sums [16 kBlocks][16 kVectors] in the first kBlocks * kVectors registers, six at most.
template <int kBlocks, int kVectors>
struct Sums {
  static constexpr int kCount = kBlocks * kVectors;
  static_assert(kCount <= 6);
  /// A register for each vector of the right matrix, where there are so many: each is loaded once.
  static constexpr bool kHoldsRight = kCount + kVectors < 8;
  static constexpr int kLeft = kHoldsRight ? kCount + kVectors : 6;

  REGARD_KERNEL_FN void clear() {
    for_constants<kCount>([](auto x)
                              __attribute__((always_inline)) { amx::clear<decltype(x)::value>(); });
  }

  /// sums += a [16 kBlocks][32 steps] bf16 * b [16 steps][16 kVectors] pairs; rows are `a_bytes`
  /// and `b_bytes` apart.
  REGARD_KERNEL_FN void add_product(const char* a, std::int64_t a_bytes, const char* b,
                                    std::int64_t b_bytes, std::int64_t steps) {
    for (std::int64_t step = 0; step < steps; ++step) {
      if constexpr (kHoldsRight) {
        for_constants<kVectors>([&](auto vector) __attribute__((always_inline)) {
          load<kCount + decltype(vector)::value>(b + decltype(vector)::value * kRowBytes, b_bytes);
        });
      }
      for_constants<kBlocks>([&](auto block) __attribute__((always_inline)) {
        constexpr int kBlock = decltype(block)::value;
        load<kLeft>(a + kBlock * kRows * a_bytes, a_bytes);
        for_constants<kVectors>([&](auto vector) __attribute__((always_inline)) {
          constexpr int kVector = decltype(vector)::value;
          constexpr int kRight = kHoldsRight ? kCount + kVector : 7;
          if constexpr (!kHoldsRight) load<kRight>(b + kVector * kRowBytes, b_bytes);
          amx::add_product<kBlock * kVectors + kVector, kLeft, kRight>();
        });
      });
      a += kRowBytes;
      b += kRows * b_bytes;
    }
  }

  /// c [16 kBlocks][16 kVectors] = a * b, whose rows are `row_bytes` apart as those of b are.
  REGARD_KERNEL_FN void multiply(const char* a, std::int64_t a_bytes, const void* b, float* c,
                                 std::int64_t row_bytes, std::int64_t steps) {
    clear();
    add_product(a, a_bytes, static_cast<const char*>(b), row_bytes, steps);
    store(c, row_bytes);
  }

  /// c [16 kBlocks][16 kVectors], rows `c_bytes` apart.
  REGARD_KERNEL_FN void store(float* c, std::int64_t c_bytes) {
    for_constants<kCount>([&](auto x) __attribute__((always_inline)) {
      constexpr int kSum = decltype(x)::value;
      char* const row = reinterpret_cast<char*>(c) + kSum / kVectors * kRows * c_bytes;
      amx::store<kSum>(row + kSum % kVectors * kRowBytes, c_bytes);
    });
  }
};

}  // namespace regard::amx
