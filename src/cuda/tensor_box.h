#pragma once

#include <cstdint>

#include "problem/problem.h"

// Boxes of rows as the tensor memory accelerator (TMA) of compute capability 9.0 copies them to
// shared memory, and the descriptors by which wgmma reads them there. A box has 64 columns of 16
// bits: rows of 128 bytes, whose chunks of 16 bytes change places by the row's number (the 128-byte
// swizzle). Wider tiles are boxes one behind the other. (PTX ISA, "Asynchronous Warpgroup Level
// Matrix Shared Memory Layout", "Tensor Copies".)

namespace regard::cuda {

inline constexpr int kBoxColumns = 64;
inline constexpr int kBoxRowBytes = kBoxColumns * 2;
inline constexpr int kBoxAlign = 1024;  // eight rows: the swizzle's period

/// A tensor [batch, heads, rows, columns] and the rows of a box of it. What lies outside of the
/// extents is copied as 0.
struct TensorBox {
  char* base = nullptr;
  std::int64_t extent[4] = {};  // columns, rows, heads, batch
  std::int64_t stride[4] = {};  // bytes, of the same
  int rows = 0;                 // of a box
};

inline TensorBox tensor_box(const problem::View& view, std::int64_t batch, std::int64_t heads,
                            std::int64_t rows, std::int64_t columns, int box_rows) {
  const std::int64_t bytes = problem::element_bytes(view.type);
  TensorBox box{view.data, {columns, rows, heads, batch}, {bytes}, box_rows};
  for (int d = 1; d < 4; ++d) {
    // The stride of a single row, head or batch entry is never used, but must be valid.
    box.stride[d] = box.extent[d] == 1 ? kBoxRowBytes : view.stride[3 - d] * bytes;
  }
  return box;
}

/// Whether TMA can address it: strides are positive multiples of 16 bytes below 2^40.
inline bool is_loadable(const TensorBox& box) {
  bool loadable = reinterpret_cast<std::uintptr_t>(box.base) % 16 == 0;
  for (int d = 0; d < 4; ++d) {
    const std::int64_t extent = box.extent[d], stride = box.stride[d];
    loadable = loadable && extent > 0 && extent < (std::int64_t{1} << 31);
    if (d == 0) continue;
    loadable = loadable && stride > 0 && stride % 16 == 0 && stride < (std::int64_t{1} << 40);
  }
  return loadable;
}

/// The first element of a box.
struct BoxPlace {
  int column, row, head, batch;
};

/// What wgmma reads from `address` of shared memory on, in the 128-byte swizzle. Of an operand
/// whose rows are summed over (K-major), `stride` is from eight rows to the next eight and
/// `leading` is not used; of one whose columns are the result's (MN-major), `stride` is from eight
/// rows to the next eight, and `leading` from 64 columns to the next 64. All in bytes.
REGARD_KERNEL_FN constexpr std::uint64_t operand_descriptor(std::uint32_t address, int leading,
                                                            int stride) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  return kSwizzle128 | static_cast<std::uint64_t>((stride >> 4) & 0x3fff) << 32 |
         static_cast<std::uint64_t>((leading >> 4) & 0x3fff) << 16 |
         static_cast<std::uint64_t>((address >> 4) & 0x3fff);
}

}  // namespace regard::cuda
