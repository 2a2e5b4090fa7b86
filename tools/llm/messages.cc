#include "tools/llm/messages.h"

namespace llm {

regard::Status invalid(const char* where, const std::string& message) {
  return {regard::StatusCode::kInvalidArgument, std::string("[") + where + "] " + message};
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape) {
    if (text.size() > 1) text += ',';
    text += std::to_string(extent);
  }
  return text + ']';
}

}  // namespace llm
