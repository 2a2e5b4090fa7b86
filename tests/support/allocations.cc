#include "tests/support/allocations.h"

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define REGARD_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define REGARD_SANITIZED 1
#endif

namespace {

std::atomic<int> counters{0};
std::atomic<std::uint64_t> allocations{0};
std::atomic<std::uint64_t> allocated{0};  // bytes

inline void count_one(std::size_t bytes) {
  if (counters.load(std::memory_order_relaxed) > 0) {
    allocations.fetch_add(1, std::memory_order_relaxed);
    allocated.fetch_add(bytes, std::memory_order_relaxed);
  }
}

}  // namespace

#if defined(REGARD_SANITIZED)

extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void*,
                                                                             std::size_t),
                                                         void (*free_hook)(const volatile void*));

namespace {

// The hooks see malloc and operator new alike.
const int installed = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void*, std::size_t bytes) { count_one(bytes); }, [](const volatile void*) {});

bool hooks_are_there() { return installed > 0; }

}  // namespace

#else

// glibc's own names for what is replaced below; operator new calls malloc or aligned_alloc.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void __libc_free(void*);

void* malloc(std::size_t bytes) noexcept {
  count_one(bytes);
  return __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) noexcept {
  count_one(count * bytes);
  return __libc_calloc(count, bytes);
}
void* realloc(void* block, std::size_t bytes) noexcept {
  count_one(bytes);
  return __libc_realloc(block, bytes);
}
void* memalign(std::size_t align, std::size_t bytes) noexcept {
  count_one(bytes);
  return __libc_memalign(align, bytes);
}
void* aligned_alloc(std::size_t align, std::size_t bytes) noexcept {
  count_one(bytes);
  return __libc_memalign(align, bytes);
}
int posix_memalign(void** block, std::size_t align, std::size_t bytes) noexcept {
  count_one(bytes);
  *block = __libc_memalign(align, bytes);
  return *block == nullptr ? ENOMEM : 0;
}
void free(void* block) noexcept { __libc_free(block); }
}  // extern "C"

namespace {

bool hooks_are_there() { return true; }

}  // namespace

#endif

namespace regard::test {

AllocationCounter::AllocationCounter() : start_(0), start_bytes_(0) {
  if (!hooks_are_there()) std::abort();
  counters.fetch_add(1, std::memory_order_relaxed);
  start_ = allocations.load(std::memory_order_relaxed);
  start_bytes_ = allocated.load(std::memory_order_relaxed);
}

AllocationCounter::~AllocationCounter() { counters.fetch_sub(1, std::memory_order_relaxed); }

std::uint64_t AllocationCounter::count() const {
  return allocations.load(std::memory_order_relaxed) - start_;
}

std::uint64_t AllocationCounter::bytes() const {
  return allocated.load(std::memory_order_relaxed) - start_bytes_;
}

}  // namespace regard::test
