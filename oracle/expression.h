#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "regard/status.h"

// The oracle's own reading of the text of score and mask functions. Nothing of regard/expression.h
// is used: a wrong parser must not be wrong twice.

namespace regard::oracle {

enum class NodeType : std::uint8_t { kBool = 0, kInt, kReal };

enum class NodeOp : std::uint8_t {
  kConstant,
  // variables
  kScore,
  kBatch,
  kHead,
  kQuery,
  kKey,
  kPosition,
  kLenQ,
  kLenKv,
  // conversions
  kToReal,
  kToInt,
  // numbers
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDiv,
  kRemainder,
  kMin,
  kMax,
  kNegate,
  kAbs,
  kExp,
  kLog,
  kSqrt,
  kTanh,
  kSigmoid,
  // comparisons; > and >= are < and <= with their operands exchanged
  kLess,
  kLessEqual,
  kEqual,
  kNotEqual,
  // bools
  kAnd,
  kOr,
  kNot,
  // a condition and two values
  kWhere,
  // an element of a captured tensor: 1 to 4 indices
  kGather
};

const char* name_of(NodeOp op);  // as texts have it: "+", "q_idx", "where"

struct Node {
  NodeOp op = NodeOp::kConstant;
  NodeType type = NodeType::kReal;
  int count = 0;     // of args
  int args[4] = {};  // nodes before this one
  double value = 0;  // of a constant; bools are 0 or 1
  int slot = 0;      // of a gather
};

/// A parsed function: nodes in an order in which args come first; the last one is the result. An
/// int where a real is needed has a kToReal node.
class Function {
 public:
  /// The error names the character at which reading ended.
  static Expected<Function> parse(std::string_view text);

  const std::vector<Node>& nodes() const { return nodes_; }
  NodeType type() const { return nodes_.back().type; }
  bool has(NodeOp op) const;

 private:
  std::vector<Node> nodes_;
};

}  // namespace regard::oracle
