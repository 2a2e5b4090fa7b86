#include "function/node.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/message.h"

namespace regard::function {
namespace {

bool is_number(const Node& node) { return node.type != ValueType::kBool; }

NodePtr finish(Node node) {
  constexpr int kManyNodes = 1 << 20;  // derivatives share nodes, which are counted at each place
  for (const NodePtr& arg : node.args) {
    node.size = std::min(node.size + arg->size, kManyNodes);
    node.depth = std::max(node.depth, arg->depth + 1);
    node.uses = node.uses | arg->uses;
  }
  Uses own;
  own.score = node.op == FunctionOp::kScore;
  own.position = node.op == FunctionOp::kPosition;
  if (node.op == FunctionOp::kGather) {
    own.captured = true;
    own.of_slot[node.slot] = {static_cast<std::int8_t>(node.args.size()),
                              node.type == ValueType::kInt, false};
  }
  node.uses = node.uses | own;
  return std::make_shared<const Node>(std::move(node));
}

Node node_of(FunctionOp op, ValueType type, std::vector<NodePtr> args) {
  Node node;
  node.op = op;
  node.type = type;
  node.args = std::move(args);
  return node;
}

std::string types_text(const std::vector<NodePtr>& args) {
  std::string text;
  for (std::size_t i = 0; i < args.size(); ++i) {
    text += concat(i == 0 ? "" : i + 1 == args.size() ? " and " : ", ", to_string(args[i]->type));
  }
  return text;
}

/// Of what kind of operands an operator is, and what it gives.
enum class Rule : std::uint8_t { kNumbers, kInts, kReals, kReal, kInt, kCompare, kBools, kWhere };

Rule rule_of(FunctionOp op) {
  switch (op) {
    case FunctionOp::kAdd:
    case FunctionOp::kSubtract:
    case FunctionOp::kMultiply:
    case FunctionOp::kMin:
    case FunctionOp::kMax:
    case FunctionOp::kNegate:
    case FunctionOp::kAbs: return Rule::kNumbers;
    case FunctionOp::kFloorDiv:
    case FunctionOp::kRemainder: return Rule::kInts;
    case FunctionOp::kToInt: return Rule::kInt;
    case FunctionOp::kLess:
    case FunctionOp::kLessEqual:
    case FunctionOp::kEqual:
    case FunctionOp::kNotEqual: return Rule::kCompare;
    case FunctionOp::kAnd:
    case FunctionOp::kOr:
    case FunctionOp::kNot: return Rule::kBools;
    case FunctionOp::kWhere: return Rule::kWhere;
    default: return Rule::kReals;
  }
}

const char* op_text(FunctionOp op) {
  switch (op) {
    case FunctionOp::kAdd: return "+";
    case FunctionOp::kSubtract:
    case FunctionOp::kNegate: return "-";
    case FunctionOp::kMultiply: return "*";
    case FunctionOp::kDivide: return "/";
    case FunctionOp::kFloorDiv: return "//";
    case FunctionOp::kRemainder: return "%";
    case FunctionOp::kLess: return "<";
    case FunctionOp::kLessEqual: return "<=";
    case FunctionOp::kEqual: return "==";
    case FunctionOp::kNotEqual: return "!=";
    case FunctionOp::kAnd: return "&";
    case FunctionOp::kOr: return "|";
    case FunctionOp::kNot: return "!";
    case FunctionOp::kMin: return "min";
    case FunctionOp::kMax: return "max";
    case FunctionOp::kAbs: return "abs";
    case FunctionOp::kExp: return "exp";
    case FunctionOp::kLog: return "log";
    case FunctionOp::kSqrt: return "sqrt";
    case FunctionOp::kTanh: return "tanh";
    case FunctionOp::kSigmoid: return "sigmoid";
    case FunctionOp::kToInt: return "int";
    case FunctionOp::kToReal: return "real";
    case FunctionOp::kWhere: return "where";
    default: return "";
  }
}

Made mismatch(FunctionOp op, const char* needs, const std::vector<NodePtr>& args) {
  return {nullptr, concat(op_text(op), " needs ", needs, ", not ", types_text(args))};
}

ValueType joined(const Node& a, const Node& b) {
  return a.type == b.type ? a.type : ValueType::kReal;
}

Made make_where(std::vector<NodePtr> args) {
  if (args[0]->type != ValueType::kBool || is_number(*args[1]) != is_number(*args[2])) {
    return mismatch(FunctionOp::kWhere, "a bool and two numbers or two bools", args);
  }
  const ValueType type = joined(*args[1], *args[2]);
  return {finish(node_of(FunctionOp::kWhere, type, std::move(args))), {}};
}

Made make_gather(std::vector<NodePtr> args, int slot, ValueType gathered) {
  for (const NodePtr& arg : args) {
    if (arg->type != ValueType::kInt)
      return {nullptr, concat("an index must be an int, not ", to_string(arg->type))};
  }
  Node node = node_of(FunctionOp::kGather, gathered, std::move(args));
  node.slot = slot;
  return {finish(std::move(node)), {}};
}

}  // namespace

const char* operator_text(FunctionOp op) { return op_text(op); }

NodePtr make_constant(ValueType type, double value) {
  Node node = node_of(FunctionOp::kConstant, type, {});
  node.value = value;
  return finish(std::move(node));
}

NodePtr make_leaf(FunctionOp variable) {
  const bool real = variable == FunctionOp::kScore;
  return finish(node_of(variable, real ? ValueType::kReal : ValueType::kInt, {}));
}

Made make_node(FunctionOp op, std::vector<NodePtr> args, int slot, ValueType gathered) {
  if (op == FunctionOp::kGather) return make_gather(std::move(args), slot, gathered);
  if (op == FunctionOp::kWhere) return make_where(std::move(args));
  const auto all = [&](auto holds) {
    return std::all_of(args.begin(), args.end(), [&](const NodePtr& arg) { return holds(*arg); });
  };
  const Rule rule = rule_of(op);
  ValueType type = ValueType::kReal;
  switch (rule) {
    case Rule::kInts:
      if (!all([](const Node& n) { return n.type == ValueType::kInt; })) {
        return mismatch(op, "ints", args);
      }
      type = ValueType::kInt;
      break;
    case Rule::kBools:
      if (all(is_number) || !all([](const Node& n) { return n.type == ValueType::kBool; })) {
        return mismatch(op, args.size() == 1 ? "a bool" : "bools", args);
      }
      type = ValueType::kBool;
      break;
    default:
      if (!all(is_number)) return mismatch(op, args.size() == 1 ? "a number" : "numbers", args);
      if (rule == Rule::kCompare) type = ValueType::kBool;
      if (rule == Rule::kInt) type = ValueType::kInt;
      if (rule == Rule::kNumbers) type = joined(*args.front(), *args.back());
      break;
  }
  // The minus of a constant is a constant, as C++'s -1 is; that of the int 0 is 0.
  if (op == FunctionOp::kNegate && is_constant(*args[0])) {
    const double value = -args[0]->value;
    return {make_constant(type, type == ValueType::kInt ? value + 0.0 : value), {}};
  }
  return {finish(node_of(op, type, std::move(args))), {}};
}

bool is_constant(const Node& node) noexcept { return node.op == FunctionOp::kConstant; }

bool is_same(const Node& a, const Node& b) noexcept {
  if (&a == &b) return true;
  if (a.op != b.op || a.type != b.type || a.slot != b.slot || a.size != b.size ||
      std::bit_cast<std::uint64_t>(a.value) != std::bit_cast<std::uint64_t>(b.value) ||
      a.args.size() != b.args.size()) {
    return false;
  }
  for (std::size_t i = 0; i < a.args.size(); ++i) {
    if (!is_same(*a.args[i], *b.args[i])) return false;
  }
  return true;
}

}  // namespace regard::function
