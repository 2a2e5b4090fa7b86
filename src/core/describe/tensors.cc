#include "regard/tensors.h"

#include <cstddef>
#include <iterator>
#include <string_view>

#include "base/message.h"

namespace regard {
namespace {

static_assert(std::size(kTensors) <= kMaxTensors);
static_assert(std::size(kTensorLayouts) == kMainTensors &&
              kTensors[kMainTensors - 1].layout == &kTensorLayouts[kMainTensors - 1]);

// A field without a row does not compile: the structs hold what rows name, and these.
constexpr std::size_t rows_of_buffers() {
  std::size_t rows = 0;
  while (kTensors[rows].buffer != nullptr) ++rows;
  return rows;
}
constexpr std::size_t kRowsOfGradients = std::size(kTensors) - rows_of_buffers();
static_assert(sizeof(Buffers) ==
              rows_of_buffers() * sizeof(TensorView) + sizeof(Buffers::max_seqlen_q) +
                  sizeof(Buffers::max_seqlen_kv) + sizeof(Buffers::diagonal_offset) +
                  sizeof(Buffers::rng_seed) + sizeof(Buffers::rng_offset) +
                  sizeof(Buffers::dropout_origin) + sizeof(Buffers::score_callback));
static_assert(sizeof(GradBuffers) ==
              sizeof(SavedContext) + (kRowsOfGradients - 1) * sizeof(TensorView));
static_assert(offsetof(regard_request, diagonal_offset) ==
              offsetof(regard_request, q) + rows_of_buffers() * sizeof(void*));
static_assert(offsetof(regard_gradients, plan) ==
              offsetof(regard_gradients, saved) + kRowsOfGradients * sizeof(void*));

/// A shape as code in a table's cell, where a tolerance of its own needs a backslash.
std::string code(std::string_view shape) {
  std::string text = "`";
  for (const char c : shape) {
    if (c == '|') text += '\\';
    text += c;
  }
  return text + "`";
}

std::string shape_cell(const TensorSpec& spec) {
  if (spec.shape.any()) {
    return spec.like == nullptr ? "any" : concat("of `", tensor_at(spec.like).name, "`");
  }
  std::string text = code(spec.shape.text());
  if (!spec.packed_shape.any()) append(text, "; packed " + code(spec.packed_shape.text()));
  return text;
}

std::string features_cell(const TensorSpec& spec) {
  std::string text;
  for (int i = 0; i < kFeatureCount; ++i) {
    const auto feature = static_cast<Feature>(i);
    const bool first = spec.features.has(feature);
    if (!first && !spec.second_shape_features.has(feature)) continue;
    append(text, concat(text.empty() ? "`" : ", `", to_string(feature), "`"));
    if (!first) append(text, " where " + code(spec.shape.alternatives()[1].text));
  }
  return text;
}

std::string forward_cell(const TensorSpec& spec) {
  std::string text = to_string(spec.forward);
  for (int i = 0; i < kFeatureCount; ++i) {
    const auto feature = static_cast<Feature>(i);
    if (!spec.written_with.has(feature)) continue;
    append(text, concat("; in-out with `", to_string(feature), "`"));
  }
  return text;
}

}  // namespace

const char* to_string(TensorRole role) noexcept {
  switch (role) {
    case TensorRole::kNone: return "-";
    case TensorRole::kIn: return "in";
    case TensorRole::kOut: return "out";
    case TensorRole::kInOut: return "in-out";
  }
  return "?";
}

const char* to_string(DtypeRule rule) noexcept {
  switch (rule) {
    case DtypeRule::kAny: return "any that a backend claims";
    case DtypeRule::kLike: return "the same";
    case DtypeRule::kStatistics: return "f32 (f64 for f64)";
    case DtypeRule::kMask: return "bool or u8";
    case DtypeRule::kBias: return "f32, f64 or q's, not of 8 bits";
    case DtypeRule::kF32: return "f32";
    case DtypeRule::kU8: return "u8";
    case DtypeRule::kCaptured: return "f32, f64, bf16, f16; i32, i64, bool, u8";
    case DtypeRule::kI32: return "i32";
    case DtypeRule::kI64: return "i64";
    case DtypeRule::kAngle: return "f32 or q's, not of 8 bits";
    case DtypeRule::kNewRow: return "the same, or q's";
    case DtypeRule::kIndex: return "i32 or i64";
    case DtypeRule::kOutGradient:
    case DtypeRule::kGradient: return "the same; beside 8-bit floats any of 8, 16 or 32 bits";
  }
  return "?";
}

std::string tensor_table(TensorSpecs specs) {
  std::string table =
      "| tensor | forward | backward | shape | type | features |\n"
      "|---|---|---|---|---|---|\n";
  for (const TensorSpec& spec : specs) {
    std::string dtype = to_string(spec.dtype);
    if (spec.dtype == DtypeRule::kLike) dtype = concat(tensor_at(spec.like).name, "'s");
    if (spec.dtype == DtypeRule::kNewRow) {
      dtype = concat(tensor_at(spec.like).name, "'s; q's where that has scales");
    }
    if (spec.dtype == DtypeRule::kOutGradient || spec.dtype == DtypeRule::kGradient) {
      dtype =
          concat(tensor_at(spec.like).name, "'s; beside q of 8-bit floats one of 8, 16 or 32 bits");
    }
    append(table,
           concat("| `", spec.name, "` | ", forward_cell(spec), " | ", to_string(spec.backward),
                  " | ", shape_cell(spec), " | ", dtype, " | ", features_cell(spec), " |\n"));
  }
  return table;
}

}  // namespace regard
