#include <sys/random.h>

#include <cstdint>

// libstdc++'s random_device takes it from the C library where that is glibc 2.36 or newer; the
// program must start with 2.35, which Ubuntu 22.04 has, too.
extern "C" __attribute__((visibility("default"))) std::uint32_t arc4random() noexcept {
  std::uint32_t number = 0;
  while (getrandom(&number, sizeof(number), 0) != sizeof(number)) continue;
  return number;
}
