#include "core/text/case_words.h"

namespace regard {
namespace {

struct DtypeAlias {
  const char* name;
  Dtype dtype;
};
constexpr DtypeAlias kDtypeAliases[] = {
    {"float64", Dtype::kF64},   {"double", Dtype::kF64},  {"fp64", Dtype::kF64},
    {"float32", Dtype::kF32},   {"float", Dtype::kF32},   {"fp32", Dtype::kF32},
    {"bfloat16", Dtype::kBf16}, {"float16", Dtype::kF16}, {"half", Dtype::kF16},
    {"fp16", Dtype::kF16},      {"int8", Dtype::kI8},     {"uint8", Dtype::kU8},
    {"int32", Dtype::kI32},     {"int64", Dtype::kI64},   {"int4", Dtype::kU4}};

}  // namespace

std::optional<Dtype> parse_dtype_word(std::string_view name) noexcept {
  for (const DtypeAlias& alias : kDtypeAliases) {
    if (name == alias.name) return alias.dtype;
  }
  return parse_dtype(name);
}

}  // namespace regard
