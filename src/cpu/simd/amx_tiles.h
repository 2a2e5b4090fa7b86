#pragma once

#include <cstdint>

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

}  // namespace regard::amx
