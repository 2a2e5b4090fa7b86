#pragma once

// Headers of this room are for kernels too: no library but <cstddef> and <cstdint>, no state.

#if defined(__CUDACC__)
#define REGARD_KERNEL_FN static __forceinline__ __host__ __device__
#else
/// Internal linkage and always inlined: a unit compiled for one instruction set must not leave a
/// shared copy that replaces another unit's.
#define REGARD_KERNEL_FN static inline __attribute__((always_inline))
#endif
