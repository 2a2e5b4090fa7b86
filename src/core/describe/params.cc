#include "regard/params.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>

#include "base/float_environment.h"
#include "base/hash.h"
#include "base/json_writer.h"
#include "base/message.h"
#include "core/text/broadcast_text.h"

namespace regard {
namespace {

// One word per field: what == compares and the hash mixes.
constexpr std::uint64_t word_of(FeatureSet set) noexcept { return set.bits(); }
constexpr std::uint64_t word_of(double x) noexcept { return std::bit_cast<std::uint64_t>(x); }
constexpr std::uint64_t word_of(const Device& device) noexcept {
  return (static_cast<std::uint64_t>(device.type) << 32) | static_cast<std::uint32_t>(device.index);
}
template <class T>
requires(std::is_integral_v<T> || std::is_enum_v<T>) constexpr std::uint64_t
    word_of(T value) noexcept {
  return static_cast<std::uint64_t>(value);
}

std::uint64_t word_of(const Expression& expression) noexcept { return hash_value(expression); }

/// Room for more than the fields there are: how many is known to the loop over them alone.
struct Words {
  std::uint64_t word[64];
  std::size_t count = 0;
};

// Flattened: 35 calls would cost more than the work.
[[gnu::flatten]] inline Words words_of(const AttentionParams& params) noexcept {
  Words words;
  for_each_field(params, [&words](const char*, const auto& field) {
    words.word[words.count++] = word_of(field);
  });
  return words;
}

void write_json(JsonWriter& w, const Device& device) {
  w.value(concat(to_string(device.type), ":", device.index));
}
void write_json(JsonWriter& w, FeatureSet set) {
  w.begin_array();
  for (int i = 0; i < kFeatureCount; ++i) {
    if (set.has(static_cast<Feature>(i))) w.value(to_string(static_cast<Feature>(i)));
  }
  w.end_array();
}
void write_json(JsonWriter& w, const Expression& expression) { w.value(expression.text()); }
void write_json(JsonWriter& w, BroadcastDims dims) { w.value(broadcast_text(dims)); }
template <class T>
void write_json(JsonWriter& w, T value) {
  if constexpr (std::is_enum_v<T>) {
    w.value(to_string(value));
  } else {
    w.value(value);
  }
}

}  // namespace

const char* to_string(Diagonal diagonal) noexcept {
  switch (diagonal) {
    case Diagonal::kUnnamed: return "unnamed";
    case Diagonal::kTopLeft: return "top_left";
    case Diagonal::kBottomRight: return "bottom_right";
    case Diagonal::kOffset: return "offset";
  }
  return "?";
}

const char* to_string(Layout layout) noexcept {
  switch (layout) {
    case Layout::kBhsd: return "bhsd";
    case Layout::kBshd: return "bshd";
    case Layout::kStrided: return "strided";
  }
  return "?";
}

const char* to_string(ScoresKind kind) noexcept {
  switch (kind) {
    case ScoresKind::kNone: return "none";
    case ScoresKind::kScaled: return "scaled";
    case ScoresKind::kEdited: return "edited";
    case ScoresKind::kProbs: return "probs";
  }
  return "?";
}

const char* to_string(Fp8Recipe recipe) noexcept {
  switch (recipe) {
    case Fp8Recipe::kNone: return "none";
    case Fp8Recipe::kDelayed: return "delayed";
    case Fp8Recipe::kCurrent: return "current";
    case Fp8Recipe::kMxfp8: return "mxfp8";
    case Fp8Recipe::kBlock: return "block";
  }
  return "?";
}

const char* to_string(ScaleLayout layout) noexcept {
  switch (layout) {
    case ScaleLayout::kRows: return "rows";
    case ScaleLayout::k1x32: return "1x32";
    case ScaleLayout::k1x128: return "1x128";
    case ScaleLayout::k128x128: return "128x128";
  }
  return "?";
}

bool operator==(const AttentionParams& a, const AttentionParams& b) noexcept {
  const Words words_a = words_of(a), words_b = words_of(b);
  // Texts may share a hash.
  return std::equal(words_a.word, words_a.word + words_a.count, words_b.word) &&
         a.score_function == b.score_function && a.mask_function == b.mask_function;
}

std::size_t hash_value(const AttentionParams& params) noexcept {
  // Four chains that run side by side: one alone waits 35 multiplies.
  const Words words = words_of(params);
  Hasher lanes[4];
  for (std::size_t i = 0; i < words.count; ++i) lanes[i & 3].add(words.word[i]);
  for (int i = 1; i < 4; ++i) lanes[0].add(lanes[i].value());
  return lanes[0].value();
}

std::string to_json(const AttentionParams& params) {
  JsonWriter w;
  w.begin_object();
  for_each_field(params, [&](const char* name, const auto& field) {
    w.key(name);
    write_json(w, field);
  });
  w.end_object();
  return w.str();
}

double default_softmax_scale(std::int64_t head_dim_qk) noexcept {
  const DefaultFloatEnvironment environment;
  if (head_dim_qk <= 0) return 1.0;
  // Volatile, so that the compiler computes it neither before nor after the guard's lifetime.
  const volatile double head_dim = static_cast<double>(head_dim_qk);
  const volatile double scale = 1.0 / std::sqrt(head_dim);
  return scale;
}

}  // namespace regard
