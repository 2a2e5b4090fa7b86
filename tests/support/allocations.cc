#include "tests/support/allocations.h"

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <new>

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
std::atomic<std::uint64_t> freed{0};      // blocks

inline void count_one(std::size_t bytes) {
  if (counters.load(std::memory_order_relaxed) > 0) {
    allocations.fetch_add(1, std::memory_order_relaxed);
    allocated.fetch_add(bytes, std::memory_order_relaxed);
  }
}

inline void count_free(const volatile void* block) {
  if (block != nullptr && counters.load(std::memory_order_relaxed) > 0) {
    freed.fetch_add(1, std::memory_order_relaxed);
  }
}

// Which allocations of this thread fail. No constructor: malloc reads it.
struct Failing {
  std::uint64_t left;  // allocations until the one that fails; 0: none shall fail
  bool goes_on;
  bool happened;
};
thread_local Failing failing;

// Whether the allocation at hand fails.
bool must_fail() {
  if (failing.left == 0) return false;
  if (failing.left > 1) {
    --failing.left;
    return false;
  }
  failing.happened = true;
  if (!failing.goes_on) failing.left = 0;
  return true;
}

}  // namespace

#if defined(REGARD_SANITIZED)

extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void*,
                                                                             std::size_t),
                                                         void (*free_hook)(const volatile void*));

namespace {

// The hooks see malloc and operator new alike.
const int installed = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void*, std::size_t bytes) { count_one(bytes); }, count_free);

bool hooks_are_there() { return installed > 0; }

void* allocate(std::size_t bytes) noexcept { return must_fail() ? nullptr : std::malloc(bytes); }
void* allocate(std::size_t bytes, std::align_val_t align) noexcept {
  const auto unit = static_cast<std::size_t>(align);
  return must_fail() ? nullptr : std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
}
void* or_throw(void* block) {
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

}  // namespace

// malloc cannot be made to fail here; the other forms of operator new and delete call these.
void* operator new(std::size_t bytes) { return or_throw(allocate(bytes)); }
void* operator new(std::size_t bytes, std::align_val_t align) {
  return or_throw(allocate(bytes, align));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }
void operator delete(void* block, std::align_val_t) noexcept { std::free(block); }
void operator delete(void* block, std::size_t, std::align_val_t) noexcept { std::free(block); }
void operator delete(void* block, const std::nothrow_t&) noexcept { std::free(block); }
void* operator new[](std::size_t bytes) { return or_throw(allocate(bytes)); }
void* operator new[](std::size_t bytes, std::align_val_t align) {
  return or_throw(allocate(bytes, align));
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void operator delete[](void* block) noexcept { std::free(block); }
void operator delete[](void* block, std::size_t) noexcept { std::free(block); }
void operator delete[](void* block, std::align_val_t) noexcept { std::free(block); }
void operator delete[](void* block, std::size_t, std::align_val_t) noexcept { std::free(block); }
void operator delete[](void* block, const std::nothrow_t&) noexcept { std::free(block); }

#else

// glibc's own names for what is replaced below; operator new calls malloc or aligned_alloc.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void __libc_free(void*);

void* malloc(std::size_t bytes) noexcept {
  if (must_fail()) return nullptr;
  count_one(bytes);
  return __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) noexcept {
  count_one(count * bytes);
  return __libc_calloc(count, bytes);
}
void* realloc(void* block, std::size_t bytes) noexcept {
  if (must_fail()) return nullptr;
  count_one(bytes);
  count_free(block);
  return __libc_realloc(block, bytes);
}
void* memalign(std::size_t align, std::size_t bytes) noexcept {
  if (must_fail()) return nullptr;
  count_one(bytes);
  return __libc_memalign(align, bytes);
}
void* aligned_alloc(std::size_t align, std::size_t bytes) noexcept {
  if (must_fail()) return nullptr;
  count_one(bytes);
  return __libc_memalign(align, bytes);
}
int posix_memalign(void** block, std::size_t align, std::size_t bytes) noexcept {
  if (must_fail()) return ENOMEM;
  count_one(bytes);
  *block = __libc_memalign(align, bytes);
  return *block == nullptr ? ENOMEM : 0;
}
void free(void* block) noexcept {
  count_free(block);
  __libc_free(block);
}
}  // extern "C"

namespace {

bool hooks_are_there() { return true; }

}  // namespace

#endif

namespace regard::test {

AllocationCounter::AllocationCounter() : start_(0), start_bytes_(0), start_freed_(0) {
  if (!hooks_are_there()) std::abort();
  counters.fetch_add(1, std::memory_order_relaxed);
  start_ = allocations.load(std::memory_order_relaxed);
  start_bytes_ = allocated.load(std::memory_order_relaxed);
  start_freed_ = freed.load(std::memory_order_relaxed);
}

AllocationCounter::~AllocationCounter() { counters.fetch_sub(1, std::memory_order_relaxed); }

std::uint64_t AllocationCounter::count() const {
  return allocations.load(std::memory_order_relaxed) - start_;
}

std::uint64_t AllocationCounter::bytes() const {
  return allocated.load(std::memory_order_relaxed) - start_bytes_;
}

std::int64_t AllocationCounter::live() const {
  const std::uint64_t blocks = freed.load(std::memory_order_relaxed) - start_freed_;
  return static_cast<std::int64_t>(count()) - static_cast<std::int64_t>(blocks);
}

AllocationFailure::AllocationFailure(std::uint64_t n, Extent extent) {
  failing = {n, extent == kAllFromThere, false};
}

AllocationFailure::~AllocationFailure() { failing = {}; }

bool AllocationFailure::happened() const { return failing.happened; }

}  // namespace regard::test
