#include "tools/llm/messages.h"

namespace llm {

regard::Status invalid(const char* where, const std::string& message) {
  return {regard::StatusCode::kInvalidArgument, std::string("[") + where + "] " + message};
}

}  // namespace llm
