#pragma once

#include <cstdint>

namespace regard {

/// While it lives, floating-point arithmetic of this thread is the language's default: rounding to
/// nearest, denormals kept, exceptions masked (a caller may have called feenableexcept). Without
/// it, FTZ, DAZ or a rounding mode that the caller sets would hold for the workers on the caller's
/// thread alone, and bits would differ by worker. Restores all of what was set; flags that were
/// raised meanwhile are dropped.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() noexcept : saved_(read()) {
    if (saved_ != kDefault) write(kDefault);
  }
  ~DefaultFloatEnvironment() { write(saved_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
#if defined(__x86_64__)
  using Word = std::uint32_t;
  static constexpr Word kDefault = 0x1f80;  // MXCSR at a program's start: all exceptions masked
  static Word read() noexcept { return __builtin_ia32_stmxcsr(); }
  static void write(Word word) noexcept { __builtin_ia32_ldmxcsr(word); }
#elif defined(__aarch64__)
  using Word = std::uint64_t;
  static constexpr Word kDefault = 0;  // FPCR at a program's start
  static Word read() noexcept {
    Word word = 0;
    __asm__ volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void write(Word word) noexcept { __asm__ volatile("msr fpcr, %0" : : "r"(word)); }
#else
  using Word = std::uint32_t;
  static constexpr Word kDefault = 0;
  static Word read() noexcept { return kDefault; }
  static void write(Word) noexcept {}
#endif

  const Word saved_;
};

}  // namespace regard
