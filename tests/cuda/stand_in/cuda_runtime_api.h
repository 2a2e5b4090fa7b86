#pragma once

#include <cstddef>

// What src/platform/cuda_memory.cc takes of the CUDA runtime, for a program without a device
// (device_guard.cc). As there, cudaGetDevice() binds no context to the calling thread, and
// cudaSetDevice() does.

using cudaStream_t = void*;
using cudaMemPool_t = void*;

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidDevice = 101 };
enum cudaMemcpyKind { cudaMemcpyDeviceToHost };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };
enum cudaMemAllocationType { cudaMemAllocationTypePinned };
enum cudaMemLocationType { cudaMemLocationTypeDevice };
enum cudaMemPoolAttr { cudaMemPoolAttrReleaseThreshold, cudaMemPoolAttrReservedMemCurrent };

struct cudaMemLocation {
  cudaMemLocationType type;
  int id;
};
struct cudaMemPoolProps {
  cudaMemAllocationType allocType;
  cudaMemLocation location;
};

cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);

inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "stand-in"; }
inline cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus*) {
  return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void*, const void*, std::size_t, cudaMemcpyKind, cudaStream_t) {
  return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaMemPoolCreate(cudaMemPool_t*, const cudaMemPoolProps*) {
  return cudaSuccess;
}
inline cudaError_t cudaMemPoolDestroy(cudaMemPool_t) { return cudaSuccess; }
inline cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  return cudaSuccess;
}
inline cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  return cudaSuccess;
}
inline cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, std::size_t) { return cudaSuccess; }
inline cudaError_t cudaMallocAsync(void**, std::size_t, cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaMallocFromPoolAsync(void**, std::size_t, cudaMemPool_t, cudaStream_t) {
  return cudaSuccess;
}
inline cudaError_t cudaFreeAsync(void*, cudaStream_t) { return cudaSuccess; }
