#include "tools/gpu_check/json_line.h"

#include <cmath>
#include <utility>

namespace regard::gpu_check {

JsonLine& JsonLine::add(const std::string& name, std::string_view text) {
  object_[name] = text;
  return *this;
}

JsonLine& JsonLine::add(const std::string& name, double number, int decimals) {
  const double unit = std::pow(10.0, decimals);
  object_[name] = std::round(number * unit) / unit;  // dumped as null where it is not finite
  return *this;
}

JsonLine& JsonLine::add(const std::string& name, long number) {
  object_[name] = number;
  return *this;
}

JsonLine& JsonLine::add(const JsonLine& other) {
  object_.update(other.object_);
  return *this;
}

std::string JsonLine::text(const std::string& name) const {
  const auto found = object_.find(name);
  if (found == object_.end()) return "";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

double JsonLine::number(const std::string& name) const {
  const auto found = object_.find(name);
  return found != object_.end() && found->is_number() ? found->get<double>() : 0.0;
}

std::vector<std::string> JsonLine::names() const {
  std::vector<std::string> names;
  for (const auto& member : object_.items()) names.push_back(member.key());
  return names;
}

std::string JsonLine::dump() const {
  return object_.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::optional<JsonLine> JsonLine::parse(std::string_view text) {
  nlohmann::ordered_json object = nlohmann::ordered_json::parse(text, nullptr, false);
  if (!object.is_object()) return std::nullopt;
  for (const auto& value : object) {
    if (value.is_structured()) return std::nullopt;
  }
  JsonLine line;
  line.object_ = std::move(object);
  return line;
}

}  // namespace regard::gpu_check
