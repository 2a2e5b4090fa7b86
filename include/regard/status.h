#pragma once

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "regard/export.h"

namespace regard {

struct Selection;

enum class StatusCode {
  kOk = 0,
  kInvalidArgument,    // an argument is wrong: the message names value and expectation
  kOverflow,           // a size or stride product does not fit 64 bits
  kNoBackend,          // nothing can run it: Status::selection() carries every reason
  kWorkspace,          // the workspace is too small, misaligned or cannot be allocated
  kRefusedAtPlan,      // a backend's library refused what its record allows
  kNotFound,           // an unknown name
  kConformanceFailed,  // a backend failed the suite it was registered with
  kInternal,           // a bug in regard
  kInterrupted,        // the launch's Interrupt ended the call: outputs hold no result
  kUnavailable,        // a backend's library lacks memory or a handle now; a later call may succeed
  kOutOfMemory         // an allocation failed: outputs hold no result
};

/// "invalid_argument", ...
REGARD_EXPORT const char* to_string(StatusCode code) noexcept;

/// The outcome of a call. Messages read "[function] what (value) and what was expected".
///
/// A function of regard that returns a Status or an Expected does not throw: an allocation that
/// fails is kOutOfMemory. A function that returns anything else throws std::bad_alloc then. Neither
/// has changed anything, and outputs hold no result.
class [[nodiscard]] Status {
 public:
  Status() noexcept = default;  // ok
  REGARD_EXPORT Status(StatusCode code, std::string message);
  REGARD_EXPORT Status(StatusCode code, std::string message,
                       std::shared_ptr<const Selection> selection);
  /// kOutOfMemory of a function, "[where] out of memory", or "out of memory" where there is not
  /// even memory for that.
  REGARD_EXPORT static Status out_of_memory(const char* where) noexcept;

  bool ok() const noexcept { return detail_ == nullptr; }
  explicit operator bool() const noexcept { return ok(); }
  StatusCode code() const noexcept { return detail_ ? detail_->code : StatusCode::kOk; }
  /// Empty when ok.
  REGARD_EXPORT const std::string& message() const noexcept;
  /// Why no backend could run; null unless code() is kNoBackend.
  std::shared_ptr<const Selection> selection() const noexcept {
    return detail_ ? detail_->selection : nullptr;
  }
  /// "ok", or "invalid_argument: [describe] ...".
  REGARD_EXPORT std::string to_string() const;

 private:
  struct Detail {
    StatusCode code;
    std::string message;
    std::shared_ptr<const Selection> selection;
  };
  std::shared_ptr<const Detail> detail_;  // null: ok, so that success costs no allocation
};

/// Thrown by check() and Expected::value() only; the library itself never throws it.
class REGARD_EXPORT Error : public std::runtime_error {
 public:
  explicit Error(Status status);
  ~Error() override;
  const Status& status() const noexcept { return status_; }

 private:
  Status status_;
};

/// Turns a failed Status into an Error.
REGARD_EXPORT void check(const Status& status);

/// A T, or the Status that states why there is none.
template <class T>
class [[nodiscard]] Expected {
 public:
  Expected(T value) : value_(std::move(value)) {}  // NOLINT: implicit by design
  /// An ok Status is no reason for a missing value and becomes kInternal.
  Expected(Status status)  // NOLINT
      : status_(status.ok() ? Status(StatusCode::kInternal,
                                     "[Expected] made from an ok Status, expected a failure")
                            : std::move(status)) {}

  bool ok() const noexcept { return value_.has_value(); }
  explicit operator bool() const noexcept { return ok(); }
  const Status& status() const noexcept { return status_; }

  /// The value; undefined when !ok().
  T& operator*() & noexcept { return *value_; }
  const T& operator*() const& noexcept { return *value_; }
  T&& operator*() && noexcept { return std::move(*value_); }
  T* operator->() noexcept { return &*value_; }
  const T* operator->() const noexcept { return &*value_; }

  /// The value; throws an Error when !ok().
  T& value() & {
    check(status_);
    return *value_;
  }
  const T& value() const& {
    check(status_);
    return *value_;
  }
  T&& value() && {
    check(status_);
    return std::move(*value_);
  }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace regard
