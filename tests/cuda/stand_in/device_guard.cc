#include <cuda_runtime_api.h>

#include <cstdio>
#include <thread>

#include "platform/device_memory.h"

// DeviceGuard of CUDA builds on a runtime with two devices that exists in this file alone.
// tests/cuda/test_device_guard.py compiles and runs it.

namespace {

constexpr int kDevices = 2;
thread_local int current = 0;
thread_local int bound = -1;  // the device whose context the thread has

int failures = 0;

void expect_equal(int actual, int expected, const char* what) {
  if (actual == expected) return;
  std::printf("%s: %d, expected %d\n", what, actual, expected);
  ++failures;
}

/// In a thread that has not called CUDA before.
template <class F>
void in_fresh_thread(F f) {
  std::thread(f).join();
}

regard::Device cuda_device(int index) {
  regard::Device device;
  device.type = regard::DeviceType::kCuda;
  device.index = index;
  return device;
}

}  // namespace

cudaError_t cudaGetDevice(int* device) {
  *device = current;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kDevices) return cudaErrorInvalidDevice;
  current = bound = device;
  return cudaSuccess;
}

int main() {
  in_fresh_thread([] {
    const regard::DeviceGuard guard("execute", cuda_device(0));
    expect_equal(guard.status().ok() ? 1 : 0, 1, "status of device 0");
    expect_equal(bound, 0, "the context of a fresh thread on its current device");
  });
  in_fresh_thread([] {
    {
      const regard::DeviceGuard guard("execute", cuda_device(1));
      expect_equal(bound, 1, "the context on another device");
    }
    expect_equal(current, 0, "the current device afterwards");
  });
  in_fresh_thread([] {
    const regard::DeviceGuard guard("execute", cuda_device(kDevices));
    expect_equal(guard.status().ok() ? 1 : 0, 0, "status of a device that is not there");
    expect_equal(current, 0, "the current device after an error");
  });
  in_fresh_thread([] {
    const regard::DeviceGuard guard("execute", regard::Device{});
    expect_equal(bound, -1, "the context of a call on a CPU");
  });
  return failures == 0 ? 0 : 1;
}
