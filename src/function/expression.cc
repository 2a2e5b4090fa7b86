#include "regard/score_functions.h"

#include <cmath>
#include <initializer_list>
#include <limits>
#include <new>
#include <utility>

#include "base/hash.h"
#include "base/message.h"
#include "function/node.h"

namespace regard {
namespace {

using detail::ExpressionData;
using function::FunctionOp;
using function::NodePtr;

std::size_t hash_of(const std::string& text) {
  Hasher hasher;
  for (const char c : text) hasher.add(static_cast<unsigned char>(c));
  return hasher.value();
}

}  // namespace

Expression function::make_expression(NodePtr root) {
  auto data = std::make_shared<ExpressionData>();
  data->text = function::print(*root);
  data->hash = hash_of(data->text);
  data->root = std::move(root);
  return Expression(std::move(data));
}

Expression function::make_failed(std::string text, Status status) {
  auto data = std::make_shared<ExpressionData>();
  data->status = std::move(status);
  data->text = std::move(text);
  data->hash = hash_of(data->text);
  return Expression(std::move(data));
}

namespace {

Expression make_failure(std::string text, std::string error) {
  Status status = invalid("Expression", error, " in ", text);
  return function::make_failed(std::move(text), std::move(status));
}

/// One column a character: nothing that a terminal would obey.
std::string printable(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c < ' ' || c > '~' ? '?' : c;
  return out;
}

std::string shown(const Expression& x) { return x.empty() ? "(none)" : x.text(); }

/// What an operator would print, with operands that may be no trees.
std::string written(FunctionOp op, std::initializer_list<Expression> operands, int slot) {
  const std::string name =
      op == FunctionOp::kGather ? concat("captured(", slot, ")") : function::operator_text(op);
  std::string text = name + "(";
  for (const Expression& operand : operands) {
    text += concat(text.back() == '(' ? "" : ",", shown(operand));
  }
  return text + ")";
}

Expression apply(FunctionOp op, std::initializer_list<Expression> operands, int slot = 0,
                 ValueType gathered = ValueType::kReal) {
  std::vector<NodePtr> args;
  for (const Expression& operand : operands) {
    if (operand.empty()) return make_failure(written(op, operands, slot), "an operand is missing");
    if (operand.data()->root == nullptr) return operand;
    args.push_back(operand.data()->root);
  }
  function::Made made = function::make_node(op, std::move(args), slot, gathered);
  if (made.node == nullptr) return make_failure(written(op, operands, slot), std::move(made.error));
  if (made.node->size > kMaxExpressionSize || made.node->depth > kMaxExpressionDepth) {
    const std::string text = function::print(*made.node);
    return make_failure(text.substr(0, 60) + "...",
                        concat("more than ", kMaxExpressionSize, " operators and operands, or ",
                               kMaxExpressionDepth, " deep,"));
  }
  return function::make_expression(std::move(made.node));
}

Expression gather(int slot, std::initializer_list<Expression> indices, ValueType type) {
  if (slot < 0 || slot >= kMaxCaptured || indices.size() < 1 || indices.size() > 4) {
    return make_failure(
        written(FunctionOp::kGather, indices, slot),
        concat("captured tensors are 0 to ", kMaxCaptured - 1, " with 1 to 4 indices; not so"));
  }
  return apply(FunctionOp::kGather, indices, slot, type);
}

}  // namespace

const char* to_string(ValueType type) noexcept {
  switch (type) {
    case ValueType::kBool: return "bool";
    case ValueType::kInt: return "int";
    case ValueType::kReal: return "real";
  }
  return "?";
}

Expression::Expression(bool value)
    : Expression(
          function::make_expression(function::make_constant(ValueType::kBool, value ? 1.0 : 0.0))) {
}
Expression::Expression(int value) : Expression(static_cast<std::int64_t>(value)) {}
Expression::Expression(std::int64_t value) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  *this =
      value < -kMax || value > kMax
          ? make_failure(concat(value), "an int must be within 32 bits; not so")
          : make_expression(function::make_constant(ValueType::kInt, static_cast<double>(value)));
}
Expression::Expression(double value) {
  *this = std::isnan(value)
              ? make_failure("nan", "a constant must be a number; not so")
              : function::make_expression(function::make_constant(ValueType::kReal, value));
}

Expected<Expression> Expression::parse(std::string_view text) try {
  function::Parsed parsed = function::parse(text);
  if (parsed.node != nullptr) {
    Expression made = function::make_expression(std::move(parsed.node));
    if (made.text().size() <= kMaxExpressionText) return made;
    return invalid("Expression::parse", "an expression has at most ", kMaxExpressionText,
                   " characters, not ", made.text().size());
  }
  // The part around the error, on a line of its own, and where in it.
  constexpr std::size_t kBefore = 50, kShown = 70;
  const std::size_t begin = parsed.at > kBefore ? parsed.at - kBefore : 0;
  const std::string part = printable(text.substr(begin, kShown));
  return invalid("Expression::parse", parsed.error, " at character ", parsed.at, ":\n  ", part,
                 "\n  ", std::string(parsed.at - begin, ' '), "^");
} catch (const std::bad_alloc&) {
  return failure(StatusCode::kOutOfMemory, "Expression::parse", "out of memory");
}

const std::string& Expression::text() const noexcept {
  static const std::string none;
  return data_ == nullptr ? none : data_->text;
}

ValueType Expression::type() const noexcept {
  return data_ == nullptr || data_->root == nullptr ? ValueType::kReal : data_->root->type;
}

Status Expression::status() const { return data_ == nullptr ? Status() : data_->status; }

bool operator==(const Expression& a, const Expression& b) noexcept {
  return a.data_ == b.data_ || (!a.empty() && !b.empty() && a.data_->hash == b.data_->hash &&
                                a.data_->text == b.data_->text);
}

std::size_t hash_value(const Expression& expression) noexcept {
  return expression.empty() ? 0 : expression.data()->hash;
}

Expression detail::variable(const char* name) {
  return function::make_expression(function::parse(name).node);
}

function::Uses function::uses_of(const Expression& expression) noexcept {
  const bool has_tree = !expression.empty() && expression.data()->root != nullptr;
  return has_tree ? expression.data()->root->uses : Uses{};
}

namespace score_functions {

using E = Expression;
E operator+(const E& x, const E& y) { return apply(FunctionOp::kAdd, {x, y}); }
E operator-(const E& x, const E& y) { return apply(FunctionOp::kSubtract, {x, y}); }
E operator*(const E& x, const E& y) { return apply(FunctionOp::kMultiply, {x, y}); }
E operator/(const E& x, const E& y) { return apply(FunctionOp::kDivide, {x, y}); }
E operator-(const E& x) { return apply(FunctionOp::kNegate, {x}); }
E operator<(const E& x, const E& y) { return apply(FunctionOp::kLess, {x, y}); }
E operator<=(const E& x, const E& y) { return apply(FunctionOp::kLessEqual, {x, y}); }
E operator>(const E& x, const E& y) { return apply(FunctionOp::kLess, {y, x}); }
E operator>=(const E& x, const E& y) { return apply(FunctionOp::kLessEqual, {y, x}); }
E operator&(const E& x, const E& y) { return apply(FunctionOp::kAnd, {x, y}); }
E operator|(const E& x, const E& y) { return apply(FunctionOp::kOr, {x, y}); }
E operator!(const E& x) { return apply(FunctionOp::kNot, {x}); }
E equal(const E& x, const E& y) { return apply(FunctionOp::kEqual, {x, y}); }
E not_equal(const E& x, const E& y) { return apply(FunctionOp::kNotEqual, {x, y}); }
E floor_div(const E& x, const E& y) { return apply(FunctionOp::kFloorDiv, {x, y}); }
E operator%(const E& x, const E& y) { return apply(FunctionOp::kRemainder, {x, y}); }
E min(const E& x, const E& y) { return apply(FunctionOp::kMin, {x, y}); }
E max(const E& x, const E& y) { return apply(FunctionOp::kMax, {x, y}); }
E abs(const E& x) { return apply(FunctionOp::kAbs, {x}); }
E exp(const E& x) { return apply(FunctionOp::kExp, {x}); }
E log(const E& x) { return apply(FunctionOp::kLog, {x}); }
E sqrt(const E& x) { return apply(FunctionOp::kSqrt, {x}); }
E tanh(const E& x) { return apply(FunctionOp::kTanh, {x}); }
E sigmoid(const E& x) { return apply(FunctionOp::kSigmoid, {x}); }
E to_int(const E& x) { return apply(FunctionOp::kToInt, {x}); }
E where(const E& condition, const E& x, const E& y) {
  return apply(FunctionOp::kWhere, {condition, x, y});
}
E captured(int slot, std::initializer_list<E> indices) {
  return gather(slot, indices, ValueType::kReal);
}
E captured_int(int slot, std::initializer_list<E> indices) {
  return gather(slot, indices, ValueType::kInt);
}

}  // namespace score_functions

}  // namespace regard
