#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "function/program.h"
#include "function/uses.h"
#include "regard/expression.h"
#include "semantics/function_program.h"

// Expressions as trees. make_node checks types; parse, print, derive and compile walk trees.

namespace regard::function {

using semantics::FunctionOp;

struct Node;
using NodePtr = std::shared_ptr<const Node>;

/// A constant, a variable, an operator or a gather. Divide and real functions have real operands,
/// those of other numbers may be of both types.
struct Node {
  FunctionOp op = FunctionOp::kConstant;
  ValueType type = ValueType::kReal;
  int slot = 0;        // of a gather
  double value = 0.0;  // of a constant; bools are 0 or 1
  std::vector<NodePtr> args;
  int size = 1;   // nodes, this one included
  int depth = 1;  // of the tree
  Uses uses{};    // of the tree
};

/// A node, or why its operands do not fit.
struct Made {
  NodePtr node;
  std::string error;  // "& needs bools, not real and int"
};

NodePtr make_constant(ValueType type, double value);
NodePtr make_leaf(FunctionOp variable);
Made make_node(FunctionOp op, std::vector<NodePtr> args, int slot = 0,
               ValueType gathered = ValueType::kReal);

const char* operator_text(FunctionOp op);  // "+", "min"; "" of a leaf or a gather
bool is_constant(const Node& node) noexcept;
bool is_same(const Node& a, const Node& b) noexcept;

/// Calls visit(node) for every node, operands first.
template <class F>
void walk(const Node& node, F&& visit) {
  for (const NodePtr& arg : node.args) walk(*arg, visit);
  visit(node);
}

std::string print(const Node& node);
Expression make_expression(NodePtr root);
/// One that only reports: its text is what was written.
Expression make_failed(std::string text, Status status);

struct Parsed {
  NodePtr node;
  std::string error;   // empty: none
  std::size_t at = 0;  // of the error in the text
};
Parsed parse(std::string_view text);

/// The derivative by every occurrence of `by`; by the score where that is null. Null: 0 everywhere.
NodePtr derive(const NodePtr& node, const Node* by);

}  // namespace regard::function

namespace regard::detail {

/// What an Expression holds: a tree, or the error of making one.
struct ExpressionData {
  function::NodePtr root;
  std::string text;
  Status status;
  std::size_t hash = 0;
  mutable std::once_flag compiled;  // of `programs`, made at the first use
  mutable std::unique_ptr<const function::Programs> programs;
};

}  // namespace regard::detail
