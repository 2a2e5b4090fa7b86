#include "regard/status.h"

namespace regard {

const char* to_string(StatusCode code) noexcept {
  switch (code) {
    case StatusCode::kOk: return "ok";
    case StatusCode::kInvalidArgument: return "invalid_argument";
    case StatusCode::kOverflow: return "overflow";
    case StatusCode::kNoBackend: return "no_backend";
    case StatusCode::kWorkspace: return "workspace";
    case StatusCode::kRefusedAtPlan: return "refused_at_plan";
    case StatusCode::kNotFound: return "not_found";
    case StatusCode::kConformanceFailed: return "conformance_failed";
    case StatusCode::kInternal: return "internal";
    case StatusCode::kInterrupted: return "interrupted";
    case StatusCode::kUnavailable: return "unavailable";
    case StatusCode::kOutOfMemory: return "out_of_memory";
  }
  return "?";
}

Status::Status(StatusCode code, std::string message) : Status(code, std::move(message), nullptr) {}

Status::Status(StatusCode code, std::string message, std::shared_ptr<const Selection> selection)
    : detail_(code == StatusCode::kOk ? nullptr
                                      : std::make_shared<const Detail>(Detail{
                                            code, std::move(message), std::move(selection)})) {}

Status Status::out_of_memory(const char* where) noexcept {
  try {
    return Status(StatusCode::kOutOfMemory, "[" + std::string(where) + "] out of memory");
  } catch (...) {
    // Both need no allocation: the words fit into the string, and the pointer owns nothing.
    static const Detail kWords{StatusCode::kOutOfMemory, "out of memory", nullptr};
    Status status;
    status.detail_ = std::shared_ptr<const Detail>(std::shared_ptr<const Detail>(), &kWords);
    return status;
  }
}

const std::string& Status::message() const noexcept {
  static const std::string kEmpty;
  return detail_ ? detail_->message : kEmpty;
}

std::string Status::to_string() const {
  if (ok()) return "ok";
  return std::string(regard::to_string(code())) + ": " + message();
}

Error::Error(Status status) : std::runtime_error(status.to_string()), status_(std::move(status)) {}
Error::~Error() = default;

void check(const Status& status) {
  if (!status.ok()) throw Error(status);
}

}  // namespace regard
