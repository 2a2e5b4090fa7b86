#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "base/message.h"
#include "function/node.h"

namespace regard::function {
namespace {

struct Function {
  std::string_view name;
  FunctionOp op;
  std::size_t operands;
};
constexpr Function kFunctions[] = {
    {"min", FunctionOp::kMin, 2},   {"max", FunctionOp::kMax, 2},
    {"abs", FunctionOp::kAbs, 1},   {"exp", FunctionOp::kExp, 1},
    {"log", FunctionOp::kLog, 1},   {"sqrt", FunctionOp::kSqrt, 1},
    {"tanh", FunctionOp::kTanh, 1}, {"sigmoid", FunctionOp::kSigmoid, 1},
    {"int", FunctionOp::kToInt, 1}, {"where", FunctionOp::kWhere, 3},
};

struct Variable {
  std::string_view name;
  FunctionOp op;
};
constexpr Variable kVariables[] = {
    {"score", FunctionOp::kScore}, {"b", FunctionOp::kBatch},      {"h", FunctionOp::kHead},
    {"q_idx", FunctionOp::kQuery}, {"kv_idx", FunctionOp::kKey},   {"q_pos", FunctionOp::kPosition},
    {"q_len", FunctionOp::kLenQ},  {"kv_len", FunctionOp::kLenKv},
};
constexpr const char* kNames =
    "score, b, h, q_idx, kv_idx, q_pos, q_len, kv_len, inf, true, false, min, max, abs, exp, log, "
    "sqrt, tanh, sigmoid, int, where, r0[...] or i0[...]";

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

struct Operator {
  int binding;  // 0: the loosest
  std::string_view text;
  FunctionOp op;
  bool swaps = false;  // "x>y" is y<x
};
/// Longer texts stand before their beginnings.
constexpr Operator kOperators[] = {
    {0, "|", FunctionOp::kOr},
    {1, "&", FunctionOp::kAnd},
    {2, "==", FunctionOp::kEqual},
    {2, "!=", FunctionOp::kNotEqual},
    {3, "<=", FunctionOp::kLessEqual},
    {3, "<", FunctionOp::kLess},
    {3, ">=", FunctionOp::kLessEqual, true},
    {3, ">", FunctionOp::kLess, true},
    {4, "+", FunctionOp::kAdd},
    {4, "-", FunctionOp::kSubtract},
    {5, "*", FunctionOp::kMultiply},
    {5, "//", FunctionOp::kFloorDiv},
    {5, "/", FunctionOp::kDivide},
    {5, "%", FunctionOp::kRemainder},
};
constexpr int kBindingCount = 6;

/// Recursive descent. Every function returns null after the first error.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Parsed run() {
    if (text_.size() > kMaxExpressionText) {
      return {nullptr, concat("an expression has at most ", kMaxExpressionText, " characters"), 0};
    }
    NodePtr node = binary(0);
    skip_spaces();
    if (node != nullptr && at_ < text_.size()) node = fail(at_, "expected an operator");
    return {node, std::move(error_), error_at_};
  }

 private:
  NodePtr fail(std::size_t at, std::string error) {
    if (error_.empty()) {
      error_ = std::move(error);
      error_at_ = at;
    }
    return nullptr;
  }

  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool take(std::string_view token) {
    skip_spaces();
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }

  NodePtr make(std::size_t at, FunctionOp op, std::vector<NodePtr> args, int slot = 0,
               ValueType gathered = ValueType::kReal) {
    Made made = make_node(op, std::move(args), slot, gathered);
    if (made.node == nullptr) return fail(at, std::move(made.error));
    if (made.node->size > kMaxExpressionSize) {
      return fail(
          at, concat("an expression has at most ", kMaxExpressionSize, " operators and operands"));
    }
    if (made.node->depth > kMaxExpressionDepth) {
      return fail(at, concat("operators may stand at most ", kMaxExpressionDepth, " deep"));
    }
    return made.node;
  }

  const Operator* take_operator(int binding) {
    for (const Operator& op : kOperators) {
      if (op.binding == binding && take(op.text)) return &op;
    }
    return nullptr;
  }

  NodePtr binary(int binding) {
    if (binding == kBindingCount) return unary();
    NodePtr left = binary(binding + 1);
    while (left != nullptr) {
      skip_spaces();
      const std::size_t at = at_;
      const Operator* const op = take_operator(binding);
      if (op == nullptr) return left;
      NodePtr right = binary(binding + 1);
      if (right == nullptr) return nullptr;
      if (op->swaps) std::swap(left, right);
      left = make(at, op->op, {std::move(left), std::move(right)});
    }
    return nullptr;
  }

  NodePtr unary() {
    skip_spaces();
    const std::size_t at = at_;
    const bool negates = take("-");
    if (!negates && !take("!")) return primary();
    if (++nested_ > 2 * kMaxExpressionDepth) return too_deep(at);
    NodePtr operand = unary();
    --nested_;
    if (operand == nullptr) return nullptr;
    return make(at, negates ? FunctionOp::kNegate : FunctionOp::kNot, {std::move(operand)});
  }

  NodePtr too_deep(std::size_t at) {
    return fail(at, concat("operators may stand at most ", kMaxExpressionDepth, " deep"));
  }

  NodePtr primary() {
    skip_spaces();
    const std::size_t at = at_;
    if (at == text_.size()) return fail(at, "expected a number, a name or (");
    if (take("(")) {
      if (++nested_ > 2 * kMaxExpressionDepth) return too_deep(at);
      NodePtr inner = binary(0);
      --nested_;
      if (inner != nullptr && !take(")")) return fail(at_, "expected )");
      return inner;
    }
    if (is_digit(text_[at]) || text_[at] == '.') return number();
    if (!is_word(text_[at])) return fail(at, "expected a number, a name or (");
    return name();
  }

  NodePtr number() {
    const std::size_t at = at_;
    double value = 0.0;
    const char* const end = text_.data() + text_.size();
    const auto read = std::from_chars(text_.data() + at, end, value);
    if (read.ec == std::errc::result_out_of_range) return fail(at, "a number out of range");
    if (read.ec != std::errc()) return fail(at, "expected a number");
    at_ = static_cast<std::size_t>(read.ptr - text_.data());
    const bool real = text_.substr(at, at_ - at).find_first_of(".eE") != std::string_view::npos;
    if (real) return make_constant(ValueType::kReal, value);
    if (value > 2147483647.0) return fail(at, "an int must be within 32 bits; 5e9 is a real");
    return make_constant(ValueType::kInt, value);
  }

  NodePtr name() {
    const std::size_t at = at_;
    while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    const std::string_view word = text_.substr(at, at_ - at);
    for (const Variable& variable : kVariables) {
      if (word == variable.name) return make_leaf(variable.op);
    }
    if (word == "inf") return make_constant(ValueType::kReal, static_cast<double>(INFINITY));
    if (word == "true" || word == "false") {
      return make_constant(ValueType::kBool, word == "true" ? 1.0 : 0.0);
    }
    for (const Function& function : kFunctions) {
      if (word == function.name) return call(at, function);
    }
    if (word.size() == 2 && (word[0] == 'r' || word[0] == 'i') && is_digit(word[1])) {
      return gather(at, word);
    }
    return fail(at, concat("unknown name ", quoted(word), "; expected ", kNames));
  }

  /// "(x,y)" or "[x,y]", from after its opening on.
  std::optional<std::vector<NodePtr>> list(std::string_view close) {
    if (++nested_ > 2 * kMaxExpressionDepth) {
      too_deep(at_);
      return std::nullopt;
    }
    std::vector<NodePtr> args;
    do {
      NodePtr arg = binary(0);
      if (arg == nullptr) return std::nullopt;
      args.push_back(std::move(arg));
    } while (take(","));
    --nested_;
    if (!take(close)) {
      fail(at_, concat("expected , or ", close));
      return std::nullopt;
    }
    return args;
  }

  NodePtr call(std::size_t at, const Function& function) {
    if (!take("(")) return fail(at_, concat("expected ( after ", function.name));
    std::optional<std::vector<NodePtr>> args = list(")");
    if (!args) return nullptr;
    if (args->size() != function.operands) {
      return fail(
          at, concat(function.name, " takes ", function.operands, " operands, not ", args->size()));
    }
    return make(at, function.op, std::move(*args));
  }

  NodePtr gather(std::size_t at, std::string_view word) {
    const int slot = word[1] - '0';
    if (slot >= kMaxCaptured) {
      return fail(at, concat("captured tensors are 0 to ", kMaxCaptured - 1));
    }
    if (!take("[")) return fail(at_, concat("expected [ after ", word));
    std::optional<std::vector<NodePtr>> args = list("]");
    if (!args) return nullptr;
    if (args->size() > 4) {
      return fail(at, concat("a captured tensor has 1 to 4 indices, not ", args->size()));
    }
    const ValueType type = word[0] == 'i' ? ValueType::kInt : ValueType::kReal;
    return make(at, FunctionOp::kGather, std::move(*args), slot, type);
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int nested_ = 0;
  std::string error_;
  std::size_t error_at_ = 0;
};

}  // namespace

Parsed parse(std::string_view text) { return Parser(text).run(); }

}  // namespace regard::function
