#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "regard/export.h"
#include "regard/status.h"

namespace regard {

enum class Architecture : std::uint8_t { kPortable, kX86_64, kAarch64 };
REGARD_EXPORT const char* to_string(Architecture architecture) noexcept;  // "x86_64", ...

/// Groups of instructions that kernels use, each present or absent as a whole.
enum class CpuExtension : std::uint8_t {
  kAvx2,        // AVX2, FMA and F16C
  kAvx512,      // AVX-512 F, BW, DQ and VL
  kAvx512Bf16,  // AVX512_BF16, VNNI and VBMI
  kAmxBf16,     // AMX-TILE and AMX-BF16, which the system lets the process use
  kNeon,        // Advanced SIMD with fused multiply-add: every AArch64 processor
  kNeonBf16,    // BFDOT and BFCVT
};
constexpr Architecture architecture_of(CpuExtension extension) noexcept {
  return extension < CpuExtension::kNeon ? Architecture::kX86_64 : Architecture::kAarch64;
}

/// The instructions that a machine has or that a kernel needs: an architecture and a set of its
/// extensions. Sets are only partly ordered: neither of two may include the other.
class Isa {
 public:
  constexpr Isa() noexcept = default;  // portable code: every machine includes it
  constexpr Isa(std::initializer_list<CpuExtension> extensions) noexcept {
    for (CpuExtension extension : extensions) {
      bits_ |= 1u << static_cast<int>(extension);
      architecture_ = architecture_of(extension);
    }
  }

  constexpr Architecture architecture() const noexcept { return architecture_; }
  constexpr std::uint32_t extension_bits() const noexcept { return bits_; }
  constexpr bool has(CpuExtension extension) const noexcept {
    return (bits_ >> static_cast<int>(extension) & 1u) != 0;
  }
  /// Whether a machine with this set runs kernels that need `other`.
  constexpr bool includes(const Isa& other) const noexcept { return (other.bits_ & ~bits_) == 0; }
  /// The extensions of both.
  friend constexpr Isa operator&(Isa a, const Isa& b) noexcept {
    a.bits_ &= b.bits_;
    if (a.bits_ == 0) a.architecture_ = Architecture::kPortable;
    return a;
  }
  friend constexpr bool operator==(const Isa&, const Isa&) noexcept = default;

  static const Isa kScalar, kAvx2, kAvx512, kAvx512Bf16, kAmxBf16, kNeon, kNeonBf16;

 private:
  Architecture architecture_ = Architecture::kPortable;
  std::uint32_t bits_ = 0;
};

inline constexpr Isa Isa::kScalar{};
inline constexpr Isa Isa::kAvx2{CpuExtension::kAvx2};
inline constexpr Isa Isa::kAvx512{CpuExtension::kAvx2, CpuExtension::kAvx512};
inline constexpr Isa Isa::kAvx512Bf16{CpuExtension::kAvx2, CpuExtension::kAvx512,
                                      CpuExtension::kAvx512Bf16};
inline constexpr Isa Isa::kAmxBf16{CpuExtension::kAvx2, CpuExtension::kAvx512,
                                   CpuExtension::kAvx512Bf16, CpuExtension::kAmxBf16};
inline constexpr Isa Isa::kNeon{CpuExtension::kNeon};
inline constexpr Isa Isa::kNeonBf16{CpuExtension::kNeon, CpuExtension::kNeonBf16};

/// The sets with a name, each after those that it includes: "scalar", "avx2", "avx512",
/// "avx512_bf16", "amx_bf16", "neon", "neon_bf16".
REGARD_EXPORT std::span<const Isa> named_isas() noexcept;
/// The name of the last named set that `isa` includes.
REGARD_EXPORT const char* to_string(Isa isa) noexcept;
REGARD_EXPORT Expected<Isa> parse_isa(const std::string& name);

/// The last named set that `isa` includes and that does not include `excluded`; kScalar if there is
/// none.
REGARD_EXPORT Isa isa_without(Isa isa, Isa excluded) noexcept;

}  // namespace regard
