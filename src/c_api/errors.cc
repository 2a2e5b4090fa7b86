#include "c_api/errors.h"

#include <exception>
#include <new>

namespace regard::c_api {
namespace {

// One for each thread, empty until its first failure.
struct LastError {
  std::string text;
  const char* shown = "";  // text, or words that need no memory
};
thread_local LastError last_error;

regard_status keep(StatusCode code, const std::string& message) noexcept {
  try {
    last_error.text = message;
    last_error.shown = last_error.text.c_str();
  } catch (...) {
    last_error.shown = "[regard] out of memory while an error was reported";
  }
  return static_cast<regard_status>(code);
}

}  // namespace

static_assert(REGARD_STATUS_OK == static_cast<int>(StatusCode::kOk) &&
              REGARD_STATUS_INVALID_ARGUMENT == static_cast<int>(StatusCode::kInvalidArgument) &&
              REGARD_STATUS_OVERFLOW == static_cast<int>(StatusCode::kOverflow) &&
              REGARD_STATUS_NO_BACKEND == static_cast<int>(StatusCode::kNoBackend) &&
              REGARD_STATUS_WORKSPACE == static_cast<int>(StatusCode::kWorkspace) &&
              REGARD_STATUS_REFUSED_AT_PLAN == static_cast<int>(StatusCode::kRefusedAtPlan) &&
              REGARD_STATUS_NOT_FOUND == static_cast<int>(StatusCode::kNotFound) &&
              REGARD_STATUS_CONFORMANCE_FAILED ==
                  static_cast<int>(StatusCode::kConformanceFailed) &&
              REGARD_STATUS_INTERNAL == static_cast<int>(StatusCode::kInternal) &&
              REGARD_STATUS_INTERRUPTED == static_cast<int>(StatusCode::kInterrupted) &&
              REGARD_STATUS_UNAVAILABLE == static_cast<int>(StatusCode::kUnavailable) &&
              REGARD_STATUS_OUT_OF_MEMORY == static_cast<int>(StatusCode::kOutOfMemory));

Status invalid(const char* where, const std::string& message) {
  return Status(StatusCode::kInvalidArgument, "[" + std::string(where) + "] " + message);
}

regard_status report(const Status& failure) noexcept {
  return keep(failure.code(), failure.message());
}

regard_status report_exception(const char* where) noexcept {
  try {
    const std::string prefix = "[" + std::string(where) + "] ";
    try {
      throw;
    } catch (const std::bad_alloc&) {
      return report(Status::out_of_memory(where));
    } catch (const std::exception& error) {
      return keep(StatusCode::kInternal, prefix + error.what());
    } catch (...) {
      return keep(StatusCode::kInternal, prefix + "something was thrown that is no std::exception");
    }
  } catch (...) {
    return report(Status::out_of_memory(where));
  }
}

}  // namespace regard::c_api

const char* regard_last_error(void) { return regard::c_api::last_error.shown; }
