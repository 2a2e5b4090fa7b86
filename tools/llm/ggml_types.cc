#include "tools/llm/ggml_types.h"

#include <algorithm>
#include <array>

namespace llm {
namespace {

struct TypeEntry {
  GgmlType type;
  const char* name;
  BlockFormat format;
};

constexpr std::array<TypeEntry, 11> kTypes = {{
    {GgmlType::kF32, "F32", {1, 4}},
    {GgmlType::kF16, "F16", {1, 2}},
    {GgmlType::kBF16, "BF16", {1, 2}},
    {GgmlType::kQ8_0, "Q8_0", {32, 2 + 32}},             // scale, 32 int8
    {GgmlType::kQ4_0, "Q4_0", {32, 2 + 16}},             // scale, 32 nibbles
    {GgmlType::kQ4_1, "Q4_1", {32, 2 + 2 + 16}},         // scale, minimum, nibbles
    {GgmlType::kQ5_0, "Q5_0", {32, 2 + 4 + 16}},         // scale, fifth bits, nibbles
    {GgmlType::kQ5_1, "Q5_1", {32, 2 + 2 + 4 + 16}},     // scale, minimum, fifth bits, nibbles
    {GgmlType::kQ4_K, "Q4_K", {256, 2 + 2 + 12 + 128}},  // scales of scales and of minima, both
    {GgmlType::kQ5_K,
     "Q5_K",
     {256, 2 + 2 + 12 + 32 + 128}},                       // packed in 6 bits, high bits, nibbles
    {GgmlType::kQ6_K, "Q6_K", {256, 128 + 64 + 16 + 2}},  // nibbles, 2 high bits, scales, scale
}};

const TypeEntry* entry_of(GgmlType type) noexcept {
  const auto found = std::find_if(kTypes.begin(), kTypes.end(),
                                  [&](const TypeEntry& e) { return e.type == type; });
  return found == kTypes.end() ? nullptr : &*found;
}

/// Names that ggml has for numbers that are not read here; those without one were withdrawn.
const char* other_name(std::uint32_t number) noexcept {
  switch (number) {
    case 9: return "Q8_1";
    case 10: return "Q2_K";
    case 11: return "Q3_K";
    case 15: return "Q8_K";
    case 16: return "IQ2_XXS";
    case 17: return "IQ2_XS";
    case 18: return "IQ3_XXS";
    case 19: return "IQ1_S";
    case 20: return "IQ4_NL";
    case 21: return "IQ3_S";
    case 22: return "IQ2_S";
    case 23: return "IQ4_XS";
    case 24: return "I8";
    case 25: return "I16";
    case 26: return "I32";
    case 27: return "I64";
    case 28: return "F64";
    case 29: return "IQ1_M";
    case 34: return "TQ1_0";
    case 35: return "TQ2_0";
    case 39: return "MXFP4";
    default: return nullptr;
  }
}

}  // namespace

const char* to_string(GgmlType type) noexcept {
  const TypeEntry* entry = entry_of(type);
  return entry == nullptr ? "?" : entry->name;
}

BlockFormat block_format(GgmlType type) noexcept {
  const TypeEntry* entry = entry_of(type);
  return entry == nullptr ? BlockFormat{} : entry->format;
}

std::optional<GgmlType> known_type(std::uint32_t number) noexcept {
  const TypeEntry* entry = entry_of(static_cast<GgmlType>(number));
  return entry == nullptr ? std::nullopt : std::optional(entry->type);
}

std::string type_text(std::uint32_t number) {
  const std::optional<GgmlType> known = known_type(number);
  const char* name = known ? to_string(*known) : other_name(number);
  return "type " + std::to_string(number) + (name ? " (" + std::string(name) + ")" : "");
}

const char* known_types() noexcept {
  return "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K";
}

}  // namespace llm
