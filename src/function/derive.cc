#include <utility>

#include "function/node.h"

// Derivatives by the rules of PyTorch: half each where min's operands are equal, 0 of abs at 0, and
// nothing of the branch that where does not take.

namespace regard::function {
namespace {

NodePtr real(double value) { return make_constant(ValueType::kReal, value); }
NodePtr op(FunctionOp what, std::vector<NodePtr> args) {
  return make_node(what, std::move(args)).node;
}
bool is_one(const NodePtr& node) { return is_constant(*node) && node->value == 1.0; }

// Null is 0.
NodePtr plus(NodePtr a, NodePtr b) {
  if (a == nullptr) return b;
  if (b == nullptr) return a;
  return op(FunctionOp::kAdd, {std::move(a), std::move(b)});
}
NodePtr minus(NodePtr a) {
  return a == nullptr ? nullptr : op(FunctionOp::kNegate, {std::move(a)});
}
/// Real like every derivative, also where the factor is an int.
NodePtr times(NodePtr factor, NodePtr derivative) {
  if (derivative == nullptr) return nullptr;
  if (is_one(derivative) && factor->type == ValueType::kReal) return factor;
  return op(FunctionOp::kMultiply, {std::move(derivative), std::move(factor)});
}
NodePtr divided(NodePtr derivative, NodePtr by) {
  if (derivative == nullptr) return nullptr;
  return op(FunctionOp::kDivide, {std::move(derivative), std::move(by)});
}
NodePtr select(NodePtr condition, NodePtr a, NodePtr b) {
  if (a == nullptr && b == nullptr) return nullptr;
  if (a == nullptr) a = real(0.0);
  if (b == nullptr) b = real(0.0);
  return op(FunctionOp::kWhere, {std::move(condition), std::move(a), std::move(b)});
}

NodePtr derive_product(const Node& node, NodePtr x, NodePtr y) {
  return plus(times(node.args[1], std::move(x)), times(node.args[0], std::move(y)));
}

/// (x / y)' = x' / y - (x / y) y' / y
NodePtr derive_quotient(const NodePtr& node, NodePtr x, NodePtr y) {
  const NodePtr& by = node->args[1];
  return plus(divided(std::move(x), by), minus(divided(times(node, std::move(y)), by)));
}

/// Of the lesser operand where `least`, else of the greater.
NodePtr derive_extremum(const Node& node, NodePtr x, NodePtr y, bool least) {
  if (x == nullptr && y == nullptr) return nullptr;
  const NodePtr &a = node.args[0], &b = node.args[1];
  const NodePtr half = times(real(0.5), plus(x, y));
  const auto less = [&](const NodePtr& left, const NodePtr& right) {
    return op(FunctionOp::kLess, {left, right});
  };
  return select(least ? less(a, b) : less(b, a), x,
                select(op(FunctionOp::kEqual, {a, b}), half, y));
}

NodePtr derive_abs(const Node& node, NodePtr x) {
  const NodePtr &a = node.args[0], zero = real(0.0);
  return select(op(FunctionOp::kLess, {zero, a}), x,
                select(op(FunctionOp::kLess, {a, zero}), minus(x), nullptr));
}

/// tanh' = 1 - tanh^2, sigmoid' = sigmoid (1 - sigmoid)
NodePtr derive_saturating(const NodePtr& node, NodePtr x) {
  const NodePtr one = real(1.0);
  const NodePtr slope =
      node->op == FunctionOp::kTanh
          ? op(FunctionOp::kSubtract, {one, op(FunctionOp::kMultiply, {node, node})})
          : op(FunctionOp::kMultiply, {node, op(FunctionOp::kSubtract, {one, node})});
  return times(slope, std::move(x));
}

NodePtr derive_unary(const NodePtr& node, NodePtr x) {
  const NodePtr& a = node->args[0];
  switch (node->op) {
    case FunctionOp::kNegate: return minus(std::move(x));
    case FunctionOp::kAbs: return derive_abs(*node, std::move(x));
    case FunctionOp::kExp: return times(node, std::move(x));
    case FunctionOp::kLog: return divided(std::move(x), a);
    case FunctionOp::kSqrt:
      return divided(std::move(x), op(FunctionOp::kMultiply, {real(2.0), node}));
    case FunctionOp::kTanh:
    case FunctionOp::kSigmoid: return derive_saturating(node, std::move(x));
    default: return nullptr;
  }
}

}  // namespace

NodePtr derive(const NodePtr& node, const Node* by) {
  if (by != nullptr ? is_same(*node, *by) : node->op == FunctionOp::kScore) return real(1.0);
  if (node->type != ValueType::kReal || node->args.empty() || node->op == FunctionOp::kGather) {
    return nullptr;
  }
  const auto of = [&](std::size_t arg) { return derive(node->args[arg], by); };
  switch (node->op) {
    case FunctionOp::kAdd: return plus(of(0), of(1));
    case FunctionOp::kSubtract: return plus(of(0), minus(of(1)));
    case FunctionOp::kMultiply: return derive_product(*node, of(0), of(1));
    case FunctionOp::kDivide: return derive_quotient(node, of(0), of(1));
    case FunctionOp::kMin: return derive_extremum(*node, of(0), of(1), true);
    case FunctionOp::kMax: return derive_extremum(*node, of(0), of(1), false);
    case FunctionOp::kWhere: return select(node->args[0], of(1), of(2));
    default: return derive_unary(node, of(0));
  }
}

}  // namespace regard::function
