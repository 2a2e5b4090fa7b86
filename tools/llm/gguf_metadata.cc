#include "tools/llm/gguf_metadata.h"

#include <limits>
#include <type_traits>
#include <utility>

#include "tools/llm/messages.h"

namespace llm {
namespace {

using regard::Expected;
using regard::Status;

constexpr std::uint64_t kMaxKeyBytes = 65535;  // as the format says

/// Types of values by their numbers in files.
enum class ValueType : std::uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12
};

/// How a C++ type is held in a GgufValue.
template <class T>
using Held = std::conditional_t<
    std::is_same_v<T, std::string>, std::string,
    std::conditional_t<std::is_same_v<T, bool>, bool,
                       std::conditional_t<std::is_floating_point_v<T>, double, std::int64_t>>>;

template <class T>
Expected<Held<T>> read_value(ByteReader& reader, const Item& item) {
  if constexpr (std::is_same_v<T, std::string>) {
    Expected<std::string_view> text = reader.text(item);
    if (!text) return text.status();
    return std::string(*text);
  } else if constexpr (std::is_same_v<T, bool>) {
    const Expected<std::uint8_t> byte = reader.read<std::uint8_t>(item);
    if (!byte) return byte.status();
    if (*byte > 1) {
      return invalid("gguf", item.text() + " is a bool of value " + std::to_string(*byte) +
                                 ", expected 0 or 1");
    }
    return *byte == 1;
  } else {
    const Expected<T> value = reader.read<T>(item);
    if (!value) return value.status();
    if constexpr (std::is_same_v<T, std::uint64_t>) {
      if (*value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        return invalid(
            "gguf", item.text() + " is " + std::to_string(*value) + ", expected at most 2^63 - 1");
      }
    }
    return static_cast<Held<T>>(*value);
  }
}

/// Calls f with a value of the C++ type that a number of a file names; an error for other numbers
/// and for arrays.
template <class F>
Expected<GgufValue> with_type(std::uint32_t number, const Item& item, F&& f) {
  switch (static_cast<ValueType>(number)) {
    case ValueType::kU8: return f(std::uint8_t{});
    case ValueType::kI8: return f(std::int8_t{});
    case ValueType::kU16: return f(std::uint16_t{});
    case ValueType::kI16: return f(std::int16_t{});
    case ValueType::kU32: return f(std::uint32_t{});
    case ValueType::kI32: return f(std::int32_t{});
    case ValueType::kF32: return f(float{});
    case ValueType::kBool: return f(bool{});
    case ValueType::kString: return f(std::string{});
    case ValueType::kU64: return f(std::uint64_t{});
    case ValueType::kI64: return f(std::int64_t{});
    case ValueType::kF64: return f(double{});
    case ValueType::kArray:
      return invalid("gguf", item.text() + " is an array of arrays, which is not read here");
  }
  return invalid(
      "gguf", item.text() + " has the value type " + std::to_string(number) + ", expected 0 to 12");
}

template <class T>
Expected<GgufValue> read_array_of(ByteReader& reader, const Item& item) {
  constexpr std::uint64_t kBytesEach = std::is_same_v<T, std::string> ? 8 : sizeof(T);
  const Expected<std::uint64_t> count = reader.count(item, "elements", kBytesEach);
  if (!count) return count.status();
  using Element = std::conditional_t<std::is_same_v<T, bool>, std::int64_t, Held<T>>;
  std::vector<Element> out;
  out.reserve(*count);
  for (std::uint64_t i = 0; i < *count; ++i) {
    Expected<Held<T>> element = read_value<T>(reader, item.element(i));
    if (!element) return element.status();
    out.push_back(*std::move(element));
  }
  return GgufValue(std::move(out));
}

Expected<GgufValue> read_typed(ByteReader& reader, const Item& item) {
  const Expected<std::uint32_t> type = reader.read<std::uint32_t>(item);
  if (!type) return type.status();
  if (*type != static_cast<std::uint32_t>(ValueType::kArray)) {
    return with_type(*type, item, [&]<class T>(const T&) -> Expected<GgufValue> {
      Expected<Held<T>> value = read_value<T>(reader, item);
      if (!value) return value.status();
      return GgufValue(*std::move(value));
    });
  }
  const Expected<std::uint32_t> of = reader.read<std::uint32_t>(item);
  if (!of) return of.status();
  return with_type(*of, item, [&]<class T>(const T&) { return read_array_of<T>(reader, item); });
}

}  // namespace

Status read_metadata(ByteReader& reader, std::uint64_t count, Metadata& out) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const Expected<std::string_view> key =
        reader.text(Item::counted("key", i, count), kMaxKeyBytes);
    if (!key) return key.status();
    Expected<GgufValue> value = read_typed(reader, Item::named("key", *key));
    if (!value) return value.status();
    if (!out.emplace(*key, *std::move(value)).second) {
      return invalid("gguf", "the key " + quote(*key) + " comes twice");
    }
  }
  return {};
}

Expected<std::uint64_t> alignment_of(const Metadata& values) {
  constexpr std::int64_t kDefault = 32;
  constexpr std::int64_t kMin = 8;  // so that elements of every type are aligned
  const auto found = values.find("general.alignment");
  if (found == values.end()) return static_cast<std::uint64_t>(kDefault);
  const auto* value = std::get_if<std::int64_t>(&found->second);
  if (value == nullptr) {
    return invalid("gguf", "key 'general.alignment' is not an integer");
  }
  if (*value < kMin || (*value & (*value - 1)) != 0) {
    return invalid("gguf", "key 'general.alignment' is " + std::to_string(*value) +
                               ", expected a power of two of at least " + std::to_string(kMin));
  }
  return static_cast<std::uint64_t>(*value);
}

}  // namespace llm
