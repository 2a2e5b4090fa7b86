#include "regard/isa.h"
#include "core/text/thrown_by.h"

#include <iterator>

namespace regard {
namespace {

constexpr Isa kNamed[] = {Isa::kScalar,  Isa::kAvx2, Isa::kAvx512,  Isa::kAvx512Bf16,
                          Isa::kAmxBf16, Isa::kNeon, Isa::kNeonBf16};
constexpr const char* kIsaNames[] = {"scalar",   "avx2", "avx512",   "avx512_bf16",
                                     "amx_bf16", "neon", "neon_bf16"};
static_assert(std::size(kNamed) == std::size(kIsaNames));

}  // namespace

const char* to_string(Architecture architecture) noexcept {
  switch (architecture) {
    case Architecture::kPortable: return "portable";
    case Architecture::kX86_64: return "x86_64";
    case Architecture::kAarch64: return "aarch64";
  }
  return "?";
}

std::span<const Isa> named_isas() noexcept { return kNamed; }

const char* to_string(Isa isa) noexcept {
  const char* name = kIsaNames[0];
  for (std::size_t i = 0; i < std::size(kNamed); ++i) {
    if (isa.includes(kNamed[i])) name = kIsaNames[i];
  }
  return name;
}

Expected<Isa> parse_isa(const std::string& name) try {
  std::string known;
  for (std::size_t i = 0; i < std::size(kNamed); ++i) {
    if (name == kIsaNames[i]) return kNamed[i];
    known += (i == 0 ? "" : i + 1 == std::size(kNamed) ? " or " : ", ") + std::string(kIsaNames[i]);
  }
  return Status(StatusCode::kNotFound,
                "[parse_isa] unknown instruction set \"" + name + "\"; expected " + known);
} catch (...) {
  return status_of_exception("parse_isa");
}

Isa isa_without(Isa isa, Isa excluded) noexcept {
  Isa best;
  for (const Isa& named : kNamed) {
    if (isa.includes(named) && !named.includes(excluded)) best = named;
  }
  return best;
}

}  // namespace regard
