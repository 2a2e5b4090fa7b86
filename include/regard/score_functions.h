#pragma once

#include <initializer_list>

#include "regard/export.h"
#include "regard/expression.h"

// Expressions in C++'s operators:
//
//   using namespace regard::score_functions;
//   options.score_function = where(q_idx - kv_idx < 128, score, -inf);
//   options.mask_function = q_idx >= kv_idx;

namespace regard {

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
