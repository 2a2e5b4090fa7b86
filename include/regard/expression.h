#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "regard/export.h"
#include "regard/status.h"

// Score and mask functions: expressions over a score and its place in the matrix of scores. They
// are written with C++'s operators, or parsed from text: docs/score_functions.md.
//
//   using namespace regard::score_functions;
//   options.score_function = where(q_idx - kv_idx < 128, score, -inf);
//   options.mask_function = q_idx >= kv_idx;

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

namespace score_functions {

// Defined here, so that they are there for what other files define after this header.

/// The scaled score, after softcap.
inline const Expression score = detail::variable("score");
// Indices within the sequence: its number, the query head, the query, the key.
inline const Expression b = detail::variable("b");
inline const Expression h = detail::variable("h");
inline const Expression q_idx = detail::variable("q_idx");
inline const Expression kv_idx = detail::variable("kv_idx");
/// The query's position on the diagonal: q_idx, plus kv_len - q_len for bottom_right.
inline const Expression q_pos = detail::variable("q_pos");
// The lengths of the sequence.
inline const Expression q_len = detail::variable("q_len");
inline const Expression kv_len = detail::variable("kv_len");
inline const Expression inf = detail::variable("inf");

// int with int is int, else real. / is real. Comparisons are of numbers, &, | and ! of bools.
REGARD_EXPORT Expression operator+(const Expression& x, const Expression& y);
REGARD_EXPORT Expression operator-(const Expression& x, const Expression& y);
REGARD_EXPORT Expression operator*(const Expression& x, const Expression& y);
REGARD_EXPORT Expression operator/(const Expression& x, const Expression& y);
REGARD_EXPORT Expression operator-(const Expression& x);
REGARD_EXPORT Expression operator<(const Expression& x, const Expression& y);
REGARD_EXPORT Expression operator<=(const Expression& x, const Expression& y);
REGARD_EXPORT Expression operator>(const Expression& x, const Expression& y);
REGARD_EXPORT Expression operator>=(const Expression& x, const Expression& y);
REGARD_EXPORT Expression operator&(const Expression& x, const Expression& y);
REGARD_EXPORT Expression operator|(const Expression& x, const Expression& y);
REGARD_EXPORT Expression operator!(const Expression& x);
REGARD_EXPORT Expression equal(const Expression& x, const Expression& y);      // "x==y"
REGARD_EXPORT Expression not_equal(const Expression& x, const Expression& y);  // "x!=y"
/// Integers, rounded towards minus infinity: "x//y". 0 where y is 0.
REGARD_EXPORT Expression floor_div(const Expression& x, const Expression& y);
/// What floor_div leaves, with the sign of y: "x%y". 0 where y is 0.
REGARD_EXPORT Expression operator%(const Expression& x, const Expression& y);
REGARD_EXPORT Expression min(const Expression& x, const Expression& y);
REGARD_EXPORT Expression max(const Expression& x, const Expression& y);
REGARD_EXPORT Expression abs(const Expression& x);
REGARD_EXPORT Expression exp(const Expression& x);
REGARD_EXPORT Expression log(const Expression& x);
REGARD_EXPORT Expression sqrt(const Expression& x);
REGARD_EXPORT Expression tanh(const Expression& x);
REGARD_EXPORT Expression sigmoid(const Expression& x);
/// Towards 0, within 32 bits; 0 of a NaN: "int(x)".
REGARD_EXPORT Expression to_int(const Expression& x);
/// One of two numbers, or of two bools; the other's NaN does not matter.
REGARD_EXPORT Expression where(const Expression& condition, const Expression& x,
                               const Expression& y);
/// An element of Buffers::captured0 to captured7, of real numbers ("r0[h,q_idx]") or integers
/// ("i0[kv_idx]"), with as many indices, 1 to 4, as the tensor has dimensions.
REGARD_EXPORT Expression captured(int slot, std::initializer_list<Expression> indices);
REGARD_EXPORT Expression captured_int(int slot, std::initializer_list<Expression> indices);

}  // namespace score_functions

}  // namespace regard
