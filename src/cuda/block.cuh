#pragma once

#include <cstdint>

#include "problem/element.h"

// A kernel's view of the block of threads it runs in. Kernels are templates over a Block, which
// offers
//
//   int thread() const                      of the block's
//   std::int64_t index() const, count() const        of the grid's blocks
//   void sync() const                       a barrier of all threads; orders shared memory
//   void sync_warp() const                  loads of shared memory stay behind it: a compiler that
//                                           begins them all at once has no registers for them
//   int uniform(int value) const            value, which all lanes of a warp have: the compiler
//   then
//                                           knows that they take the same branches by it
//   T shuffle_xor(T value, int lanes) const value of the warp's lane (lane ^ lanes); all 32 take
//   part shared<T>(byte offset, elements) const  a part of the block's shared memory, indexed as an
//   array
//
// and to kernels that need compute capability 8.0 (kMinSm), on parts of 16-bit numbers,
//
//   bool sync_or(bool) const                a barrier; whether any thread passed true
//   void copy_async(part, at, from) const   16 bytes of global memory, zeros where `from` is null;
//   void copy_word_async(part, at, from) const  the same of 4 bytes, to a part of floats
//   void commit_copies() const              those since the last commit are a group
//   void wait_copies() const                all of this thread are there; others need a barrier
//                                           behind it
//   void wait_groups<n>() const             the same but for its last n groups
//   void load_matrices(part, at, to) const  a warp's four 8 x 8 matrices, whose rows begin at the
//   void load_transposed(part, at, to) const  `at` of lanes 8 m + row; see tensor.cuh
//                                           elements a lane gets
//   void multiply_add<type>(a, b, c) const  c += a b, 16 x 16 by 16 x 8, of bf16 or f16 in f32
//
// DeviceBlock is the device's; tests/cuda has one for the host, so that the same source runs there.
// No thread may end before the others have passed their last barrier.

#if defined(__CUDACC__)
#define REGARD_DEVICE_FN static __device__ __forceinline__
#define REGARD_DEVICE_UNROLL _Pragma("unroll")
#define REGARD_DEVICE_UNROLL_BY_2 _Pragma("unroll 2")
#define REGARD_DEVICE_NO_UNROLL _Pragma("unroll 1")
#else
#define REGARD_DEVICE_FN static inline
#define REGARD_DEVICE_UNROLL
#define REGARD_DEVICE_UNROLL_BY_2
#define REGARD_DEVICE_NO_UNROLL
#endif

namespace regard::cuda {

inline constexpr int kWarp = 32;

/// x, which the compiler then computes where it stands: addresses that all steps of a loop share
/// would otherwise fill registers.
REGARD_DEVICE_FN int opaque(int x) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+r"(x));
#endif
  return x;
}

/// Four neighbours, moved in one piece; their first must stand at a multiple of four.
template <class T>
struct alignas(16) Vec4 {
  T at[4];
};

#if defined(__CUDACC__)

class DeviceBlock {
 public:
  __device__ __forceinline__ explicit DeviceBlock(unsigned char* shared) : shared_(shared) {}
  __device__ __forceinline__ int thread() const { return static_cast<int>(threadIdx.x); }
  __device__ __forceinline__ std::int64_t index() const { return blockIdx.x; }
  __device__ __forceinline__ std::int64_t count() const { return gridDim.x; }
  __device__ __forceinline__ void sync() const { __syncthreads(); }
  __device__ __forceinline__ void sync_warp() const { __syncwarp(); }
  __device__ __forceinline__ int uniform(int value) const {
    return __shfl_sync(0xffffffffu, value, 0);
  }
  template <class T>
  __device__ __forceinline__ T shuffle_xor(T value, int lanes) const {
    return __shfl_xor_sync(0xffffffffu, value, lanes);
  }
  template <class T>
  __device__ __forceinline__ T* shared(int offset, int) const {
    return reinterpret_cast<T*>(shared_ + offset);
  }

  __device__ __forceinline__ bool sync_or(bool value) const { return __syncthreads_or(value) != 0; }
  __device__ __forceinline__ void copy_async(std::uint16_t* to, int at, const void* from) const {
    // The last operand is how many bytes are read; the others are zeros.
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address(to + at)), "l"(from),
                 "r"(from == nullptr ? 0 : 16)
                 : "memory");
  }
  __device__ __forceinline__ void copy_word_async(float* to, int at, const void* from) const {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address(to + at)), "l"(from),
                 "r"(from == nullptr ? 0 : 4)
                 : "memory");
  }
  __device__ __forceinline__ void commit_copies() const {
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  template <int kGroups>
  __device__ __forceinline__ void wait_groups() const {
    asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
  }
  __device__ __forceinline__ void wait_copies() const {
    asm volatile("cp.async.wait_all;" ::: "memory");
  }
  __device__ __forceinline__ void load_matrices(const std::uint16_t* from, int at,
                                                std::uint32_t (&to)[4]) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address(from + at)));
  }
  __device__ __forceinline__ void load_transposed(const std::uint16_t* from, int at,
                                                  std::uint32_t (&to)[4]) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address(from + at)));
  }
  template <problem::Element kType>
  __device__ __forceinline__ void multiply_add(const std::uint32_t (&a)[4],
                                               const std::uint32_t (&b)[2], float (&c)[4]) const {
    if constexpr (kType == problem::Element::kBf16) {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
          "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
          "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
  }

 private:
  static __device__ __forceinline__ std::uint32_t address(const void* shared) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  }

  unsigned char* shared_;
};

template <class T>
REGARD_DEVICE_FN T load_at(const T* from, int index) {
  return from[index];
}

template <class T>
REGARD_DEVICE_FN Vec4<T> load4(const T* from, int index) {
  return *reinterpret_cast<const Vec4<T>*>(from + index);
}

template <class T>
REGARD_DEVICE_FN void store4(T* to, int index, const Vec4<T>& value) {
  *reinterpret_cast<Vec4<T>*>(to + index) = value;
}

#endif

}  // namespace regard::cuda
