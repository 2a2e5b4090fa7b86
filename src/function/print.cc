#include <charconv>
#include <cmath>

#include "base/message.h"
#include "function/node.h"

namespace regard::function {
namespace {

// How tightly operators bind, loosest first.
enum Binding : int {
  kOrs = 0,
  kAnds,
  kEqualities,
  kComparisons,
  kSums,
  kProducts,
  kUnary,
  kPrimary
};

Binding binding_of(const Node& node) {
  switch (node.op) {
    case FunctionOp::kOr: return kOrs;
    case FunctionOp::kAnd: return kAnds;
    case FunctionOp::kEqual:
    case FunctionOp::kNotEqual: return kEqualities;
    case FunctionOp::kLess:
    case FunctionOp::kLessEqual: return kComparisons;
    case FunctionOp::kAdd:
    case FunctionOp::kSubtract: return kSums;
    case FunctionOp::kMultiply:
    case FunctionOp::kDivide:
    case FunctionOp::kFloorDiv:
    case FunctionOp::kRemainder: return kProducts;
    case FunctionOp::kNegate:
    case FunctionOp::kNot: return kUnary;
    case FunctionOp::kConstant: return std::signbit(node.value) ? kUnary : kPrimary;
    default: return kPrimary;
  }
}

void append_constant(const Node& node, std::string* out) {
  if (node.type == ValueType::kBool) {
    *out += node.value != 0.0 ? "true" : "false";
  } else if (node.type == ValueType::kInt) {
    append(*out, static_cast<std::int64_t>(node.value));
  } else if (std::isinf(node.value)) {
    *out += node.value < 0 ? "-inf" : "inf";
  } else {
    char digits[32];
    const auto end = std::to_chars(digits, digits + sizeof(digits), node.value).ptr;
    const std::string_view number(digits, static_cast<std::size_t>(end - digits));
    *out += number;
    if (number.find_first_of(".e") == std::string_view::npos) *out += ".0";
  }
}

const char* variable_text(FunctionOp op) {
  switch (op) {
    case FunctionOp::kScore: return "score";
    case FunctionOp::kBatch: return "b";
    case FunctionOp::kHead: return "h";
    case FunctionOp::kQuery: return "q_idx";
    case FunctionOp::kKey: return "kv_idx";
    case FunctionOp::kPosition: return "q_pos";
    case FunctionOp::kLenQ: return "q_len";
    case FunctionOp::kLenKv: return "kv_len";
    default: return "?";
  }
}

void append_node(const Node& node, int at_least, std::string* out);

void append_list(const Node& node, char open, char close, std::string* out) {
  *out += open;
  for (std::size_t i = 0; i < node.args.size(); ++i) {
    if (i > 0) *out += ',';
    append_node(*node.args[i], kOrs, out);
  }
  *out += close;
}

/// Operators of one binding associate to the left.
void append_plain(const Node& node, int binding, std::string* out) {
  if (node.op == FunctionOp::kConstant) return append_constant(node, out);
  if (node.args.empty()) {
    *out += variable_text(node.op);
  } else if (node.op == FunctionOp::kGather) {
    *out += node.type == ValueType::kInt ? 'i' : 'r';
    append(*out, node.slot);
    append_list(node, '[', ']', out);
  } else if (binding == kPrimary) {
    *out += operator_text(node.op);
    append_list(node, '(', ')', out);
  } else if (binding == kUnary) {
    *out += operator_text(node.op);
    append_node(*node.args[0], kUnary, out);
  } else {
    append_node(*node.args[0], binding, out);
    *out += operator_text(node.op);
    append_node(*node.args[1], binding + 1, out);
  }
}

void append_node(const Node& node, int at_least, std::string* out) {
  const int binding = binding_of(node);
  if (binding < at_least) *out += '(';
  append_plain(node, binding, out);
  if (binding < at_least) *out += ')';
}

}  // namespace

std::string print(const Node& node) {
  std::string text;
  append_node(node, kOrs, &text);
  return text;
}

}  // namespace regard::function
