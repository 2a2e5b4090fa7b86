#pragma once

#include <cstdint>

// What a kernel knows of the block of threads it runs in. Kernels are templates over a Block, which
// offers
//
//   int thread() const                      of the block's
//   std::int64_t index() const, count() const        of the grid's blocks
//   void sync() const                       a barrier of all threads; orders shared memory
//   T shuffle_xor(T value, int lanes) const value of the warp's lane (lane ^ lanes); all 32 take
//   part shared<T>(byte offset, elements) const  a part of the block's shared memory, indexed as an
//   array
//
// DeviceBlock is the device's; tests/cuda has one for the host, so that the same source runs there.
// No thread may end before the others have passed their last barrier.

#if defined(__CUDACC__)
#define REGARD_DEVICE_FN static __device__ __forceinline__
#define REGARD_DEVICE_UNROLL _Pragma("unroll")
#define REGARD_DEVICE_UNROLL_BY_2 _Pragma("unroll 2")
#else
#define REGARD_DEVICE_FN static inline
#define REGARD_DEVICE_UNROLL
#define REGARD_DEVICE_UNROLL_BY_2
#endif

namespace regard::cuda {

inline constexpr int kWarp = 32;

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
  template <class T>
  __device__ __forceinline__ T shuffle_xor(T value, int lanes) const {
    return __shfl_xor_sync(0xffffffffu, value, lanes);
  }
  template <class T>
  __device__ __forceinline__ T* shared(int offset, int) const {
    return reinterpret_cast<T*>(shared_ + offset);
  }

 private:
  unsigned char* shared_;
};

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
