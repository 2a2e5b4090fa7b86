#include "platform/cpu_info.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include <cstring>
#include <string>

#include "platform/cpu_count.h"
#if defined(__aarch64__)
#include "platform/read_file.h"
#endif

namespace regard {
namespace {

#if defined(__x86_64__)

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(unsigned leaf, unsigned subleaf = 0) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d);
  return r;
}

/// Linux enlarges the signal frames of a process that requests AMX's registers, and refuses where
/// an alternative stack is too small for them.
[[maybe_unused]] bool has_amx() {
#if defined(REGARD_HAS_AMX) && defined(__linux__)
  constexpr unsigned kTileBit = 1u << 24, kBf16Bit = 1u << 22;  // leaf 7, edx
  if ((cpuid(7).d & (kTileBit | kBf16Bit)) != (kTileBit | kBf16Bit)) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

// Each level is gated by exactly the bits its kernels use. __builtin_cpu_supports also reads XGETBV
// whether the system saves the registers.
Isa detect_isa() {
#if defined(REGARD_EMULATE_AVX512)  // the kernels are in portable notation
                                    // (src/cpu/simd/simd_avx512.h)
  return Isa::kAvx512Bf16;
#endif
  __builtin_cpu_init();
  if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))) return Isa::kScalar;
  constexpr unsigned kF16cBit = 1u << 29;
  if ((cpuid(1).c & kF16cBit) == 0) return Isa::kScalar;
  if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))) {
    return Isa::kAvx2;
  }
#if defined(REGARD_NO_AVX512_BF16)  // its kernels are not built (cmake/isa.cmake)
  return Isa::kAvx512;
#else
  constexpr unsigned kBf16Bit = 1u << 5;  // leaf 7, subleaf 1, eax
  if ((cpuid(7, 1).a & kBf16Bit) == 0 || !__builtin_cpu_supports("avx512vnni") ||
      !__builtin_cpu_supports("avx512vbmi")) {
    return Isa::kAvx512;
  }
  return has_amx() ? Isa::kAmxBf16 : Isa::kAvx512Bf16;
#endif
}

std::string model_text() {
  char brand[49] = {};
  for (unsigned i = 0; i < 3; ++i) {
    const Registers r = cpuid(0x80000002u + i);
    std::memcpy(brand + 16 * i, &r, 16);
  }
  const unsigned signature = cpuid(1).a;
  unsigned family = (signature >> 8) & 0xfu;
  unsigned model = (signature >> 4) & 0xfu;
  if (family == 15) family += (signature >> 20) & 0xffu;
  if (family >= 6) model |= ((signature >> 16) & 0xfu) << 4;
  std::string name(brand);
  name.erase(0, name.find_first_not_of(' ') == std::string::npos ? 0 : name.find_first_not_of(' '));
  while (!name.empty() && name.back() == ' ') name.pop_back();
  if (name.empty()) name = "x86-64";
  return name + " (family " + std::to_string(family) + " model " + std::to_string(model) + ")";
}

std::string vendor_text() {
  char vendor[13] = {};
  const Registers id = cpuid(0);
  std::memcpy(vendor, &id.b, 4);
  std::memcpy(vendor + 4, &id.d, 4);
  std::memcpy(vendor + 8, &id.c, 4);
  return vendor;
}

/// Unless AMX multiplies bf16: VDPBF16PS starts every second cycle on Intel's cores, where two f32
/// multiply-adds start each cycle: 178 and 356 GFLOP/s of two Emerald Rapids cores. An AMD Zen 4
/// has twice f32's rate in pairs.
Isa without_slow_pairs(Isa isa) {
  const bool is_slow = vendor_text() == "GenuineIntel" && !isa.includes(Isa::kAmxBf16);
  return is_slow ? isa_without(isa, Isa::kAvx512Bf16) : isa;
}

// Leaf 4 (Intel) and 0x8000001d (AMD) share one layout, a cache per subleaf.
void read_caches(CpuInfo* info) {
  const unsigned leaf = vendor_text() == "AuthenticAMD" ? 0x8000001du : 4u;
  for (unsigned i = 0; i < 16; ++i) {
    const Registers r = cpuid(leaf, i);
    const unsigned type = r.a & 0x1fu;
    if (type == 0) break;
    if (type == 2) continue;  // instructions
    const std::int64_t ways = (r.b >> 22) + 1, partitions = ((r.b >> 12) & 0x3ffu) + 1;
    const std::int64_t line = (r.b & 0xfffu) + 1, sets = static_cast<std::int64_t>(r.c) + 1;
    const std::int64_t bytes = ways * partitions * line * sets;
    switch ((r.a >> 5) & 7u) {
      case 1: info->l1d_bytes = bytes; break;
      case 2: info->l2_bytes = bytes; break;
      case 3: info->l3_bytes = bytes; break;
      default: break;
    }
  }
}

#elif defined(__aarch64__)

Isa without_slow_pairs(Isa isa) { return isa; }

Isa detect_isa() {
#if defined(__linux__)
  constexpr unsigned long kBf16Bit = 1ul << 14;  // HWCAP2_BF16
  if ((getauxval(AT_HWCAP2) & kBf16Bit) != 0) return Isa::kNeonBf16;
#endif
  return Isa::kNeon;  // part of the base architecture
}

/// The first line of a file below the first CPU's folder in sysfs; "" where there is none.
std::string read_sysfs(const std::string& name) {
  const std::string text = read_system_file("/sys/devices/system/cpu/cpu0/" + name);
  return text.substr(0, text.find('\n'));
}

std::string model_text() {
  const std::string midr = read_sysfs("regs/identification/midr_el1");
  return midr.empty() ? "AArch64" : "AArch64 (MIDR " + midr + ")";
}

/// "64K" or "1M" in bytes; 0 where it is neither.
std::int64_t size_of_text(const std::string& text) {
  std::size_t digits = 0;
  std::int64_t value = 0;
  while (digits < text.size() && digits < 9 && text[digits] >= '0' && text[digits] <= '9') {
    value = value * 10 + (text[digits++] - '0');
  }
  if (text.substr(digits) == "K") return value << 10;
  return text.substr(digits) == "M" ? value << 20 : 0;
}

void read_caches(CpuInfo* info) {
  for (int i = 0; i < 8; ++i) {
    const std::string folder = "cache/index" + std::to_string(i) + "/";
    const std::int64_t bytes = size_of_text(read_sysfs(folder + "size"));
    if (bytes == 0 || read_sysfs(folder + "type") == "Instruction") continue;
    const std::string level = read_sysfs(folder + "level");
    if (level == "1") info->l1d_bytes = bytes;
    if (level == "2") info->l2_bytes = bytes;
    if (level == "3") info->l3_bytes = bytes;
  }
}

#else
Isa detect_isa() { return Isa::kScalar; }
Isa without_slow_pairs(Isa isa) { return isa; }
std::string model_text() { return "unknown CPU"; }
void read_caches(CpuInfo*) {}
#endif

CpuInfo read_processor() {
  CpuInfo info;
  info.isa = detect_isa();
  info.default_isa = without_slow_pairs(info.isa);
  info.model = model_text();
  read_caches(&info);
  return info;
}

}  // namespace

CpuInfo read_cpu_info() {
  // CPUID leaves a virtual machine, some 3 us each: they took half of the time of a Context.
  static const CpuInfo processor = read_processor();
  CpuInfo info = processor;
  info.num_cpus = count_cpus();  // which a quota or an affinity changes
  return info;
}

}  // namespace regard
