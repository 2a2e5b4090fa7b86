#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace regard::gpu_check {

/// One line of results: a JSON object whose values are strings, numbers, true, false or null.
class JsonLine {
 public:
  JsonLine& add(const std::string& name, std::string_view text);
  JsonLine& add(const std::string& name, double number, int decimals);  // null: not finite
  JsonLine& add(const std::string& name, long number);
  /// Appends the members of another line.
  JsonLine& add(const JsonLine& other);

  /// The value's text, without the quotes of a string; "" where there is no such member.
  std::string text(const std::string& name) const;
  /// 0 where there is no such member or it is no number.
  double number(const std::string& name) const;
  bool has(const std::string& name) const { return object_.contains(name); }
  std::vector<std::string> names() const;

  std::string dump() const;
  /// Nothing where the text is no such object.
  static std::optional<JsonLine> parse(std::string_view text);

 private:
  nlohmann::ordered_json object_ = nlohmann::ordered_json::object();
};

}  // namespace regard::gpu_check
