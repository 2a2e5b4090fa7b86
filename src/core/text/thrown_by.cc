#include "core/text/thrown_by.h"

namespace regard {

Status status_of_exception(const char* where) noexcept {
  try {
    const auto thrown = thrown_by([] { throw; });
    return Status(StatusCode::kInternal, "[" + std::string(where) + "] threw: " + *thrown);
  } catch (...) {
    return Status::out_of_memory(where);
  }
}

}  // namespace regard
