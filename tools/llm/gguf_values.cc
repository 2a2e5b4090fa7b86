#include <variant>

#include "tools/llm/gguf.h"
#include "tools/llm/messages.h"

// What a file says by key: every failure names the key, what it holds and what was expected.

namespace llm {
namespace {

using regard::Expected;
using regard::Status;

struct Describe {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(std::int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return std::to_string(value); }
  std::string operator()(const std::string& value) const { return "the string " + quote(value); }
  std::string operator()(const std::vector<std::int64_t>& v) const { return array(v, "integers"); }
  std::string operator()(const std::vector<double>& v) const { return array(v, "numbers"); }
  std::string operator()(const std::vector<std::string>& v) const { return array(v, "strings"); }

 private:
  template <class T>
  std::string array(const std::vector<T>& v, const char* of) const {
    return "an array of " + std::to_string(v.size()) + " " + of;
  }
};

Status missing(std::string_view key, const char* expected) {
  return invalid("gguf", "key " + quote(key) + " is missing, expected " + expected);
}

Status of_another_type(std::string_view key, const GgufValue& value, const char* expected) {
  return invalid("gguf", "key " + quote(key) + " is " + std::visit(Describe{}, value) +
                             ", expected " + expected);
}

}  // namespace

bool GgufContents::has(std::string_view key) const noexcept {
  return values_.find(key) != values_.end();
}

Expected<std::int64_t> GgufContents::integer(std::string_view key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return missing(key, "an integer");
  const auto* value = std::get_if<std::int64_t>(&found->second);
  if (value == nullptr) return of_another_type(key, found->second, "an integer");
  return *value;
}

Expected<double> GgufContents::number(std::string_view key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return missing(key, "a number");
  if (const auto* value = std::get_if<double>(&found->second)) return *value;
  if (const auto* value = std::get_if<std::int64_t>(&found->second)) {
    return static_cast<double>(*value);
  }
  return of_another_type(key, found->second, "a number");
}

Expected<bool> GgufContents::flag(std::string_view key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return missing(key, "true or false");
  const auto* value = std::get_if<bool>(&found->second);
  if (value == nullptr) return of_another_type(key, found->second, "true or false");
  return *value;
}

Expected<std::string_view> GgufContents::text(std::string_view key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return missing(key, "a string");
  const auto* value = std::get_if<std::string>(&found->second);
  if (value == nullptr) return of_another_type(key, found->second, "a string");
  return std::string_view(*value);
}

Expected<std::span<const std::string>> GgufContents::texts(std::string_view key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return missing(key, "an array of strings");
  const auto* value = std::get_if<std::vector<std::string>>(&found->second);
  if (value == nullptr) return of_another_type(key, found->second, "an array of strings");
  return std::span<const std::string>(*value);
}

Expected<std::span<const std::int64_t>> GgufContents::integers(std::string_view key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return missing(key, "an array of integers");
  const auto* value = std::get_if<std::vector<std::int64_t>>(&found->second);
  if (value == nullptr) return of_another_type(key, found->second, "an array of integers");
  return std::span<const std::int64_t>(*value);
}

const GgufTensor* GgufContents::find(std::string_view name) const noexcept {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace llm
