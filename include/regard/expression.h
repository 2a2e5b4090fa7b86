#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "regard/export.h"
#include "regard/status.h"

// Score and mask functions: expressions over a score and its place in the matrix of scores. They
// are parsed from text (docs/score_functions.md), or written with C++'s operators
// (regard/score_functions.h).

namespace regard {

enum class ValueType : std::uint8_t { kBool = 0, kInt, kReal };
REGARD_EXPORT const char* to_string(ValueType type) noexcept;  // "bool", "int", "real"

inline constexpr int kMaxCaptured = 8;                   // tensors that a call's functions read
inline constexpr int kMaxExpressionSize = 256;           // operators and operands of an expression
inline constexpr int kMaxExpressionDepth = 64;           // of operators within operators
inline constexpr std::size_t kMaxExpressionText = 4096;  // characters

namespace detail {
struct ExpressionData;
}

/// A value: copies share what they hold, and equal texts are equal expressions. Operators never
/// fail; an expression whose types do not fit remembers the first error, which status() and every
/// function that takes the expression report.
class Expression {
 public:
  Expression() noexcept = default;  // none
  REGARD_EXPORT Expression(bool value);
  REGARD_EXPORT Expression(int value);  // within 32 bits
  REGARD_EXPORT Expression(std::int64_t value);
  REGARD_EXPORT Expression(double value);
  explicit Expression(std::shared_ptr<const detail::ExpressionData> data) noexcept
      : data_(std::move(data)) {}

  /// Errors show the text and point at the place.
  REGARD_EXPORT static Expected<Expression> parse(std::string_view text);

  bool empty() const noexcept { return data_ == nullptr; }
  /// Without spaces; parse(text()) gives an equal expression. Empty for none.
  REGARD_EXPORT const std::string& text() const noexcept;
  /// kReal for none.
  REGARD_EXPORT ValueType type() const noexcept;
  REGARD_EXPORT Status status() const;
  const std::shared_ptr<const detail::ExpressionData>& data() const noexcept { return data_; }

  REGARD_EXPORT friend bool operator==(const Expression& a, const Expression& b) noexcept;

 private:
  std::shared_ptr<const detail::ExpressionData> data_;
};

namespace detail {
REGARD_EXPORT Expression variable(const char* name);  // or inf
}

REGARD_EXPORT std::size_t hash_value(const Expression& expression) noexcept;
inline const std::string& to_string(const Expression& expression) noexcept {
  return expression.text();
}

}  // namespace regard
