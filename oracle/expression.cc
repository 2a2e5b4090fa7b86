#include "oracle/expression.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <utility>

namespace regard::oracle {
namespace {

constexpr int kMaxNesting = 400;  // a text may nest deeper than a stack holds

struct Name {
  const char* text;
  NodeOp op;
  NodeType type;
};
constexpr Name kVariables[] = {
    {"score", NodeOp::kScore, NodeType::kReal}, {"b", NodeOp::kBatch, NodeType::kInt},
    {"h", NodeOp::kHead, NodeType::kInt},       {"q_idx", NodeOp::kQuery, NodeType::kInt},
    {"kv_idx", NodeOp::kKey, NodeType::kInt},   {"q_pos", NodeOp::kPosition, NodeType::kInt},
    {"q_len", NodeOp::kLenQ, NodeType::kInt},   {"kv_len", NodeOp::kLenKv, NodeType::kInt},
};

struct Call {
  const char* text;
  NodeOp op;
  int count;
};
constexpr Call kCalls[] = {
    {"min", NodeOp::kMin, 2},         {"max", NodeOp::kMax, 2},   {"abs", NodeOp::kAbs, 1},
    {"exp", NodeOp::kExp, 1},         {"log", NodeOp::kLog, 1},   {"sqrt", NodeOp::kSqrt, 1},
    {"tanh", NodeOp::kTanh, 1},       {"int", NodeOp::kToInt, 1}, {"where", NodeOp::kWhere, 3},
    {"sigmoid", NodeOp::kSigmoid, 1},
};

struct Binary {
  const char* text;
  NodeOp op;
  bool exchanged;
};
// Of a level the longest texts stand first.
const std::vector<Binary> kLevels[] = {
    {{"|", NodeOp::kOr, false}},
    {{"&", NodeOp::kAnd, false}},
    {{"==", NodeOp::kEqual, false}, {"!=", NodeOp::kNotEqual, false}},
    {{"<=", NodeOp::kLessEqual, false},
     {">=", NodeOp::kLessEqual, true},
     {"<", NodeOp::kLess, false},
     {">", NodeOp::kLess, true}},
    {{"+", NodeOp::kAdd, false}, {"-", NodeOp::kSubtract, false}},
    {{"//", NodeOp::kFloorDiv, false},
     {"*", NodeOp::kMultiply, false},
     {"/", NodeOp::kDivide, false},
     {"%", NodeOp::kRemainder, false}},
};
constexpr std::size_t kLevelCount = std::size(kLevels);

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) {
  return is_digit(c) || c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/// A recursive descent; what fails remembers where, and every caller returns.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  bool run(std::vector<Node>* nodes, std::string* wrong) {
    const std::optional<int> result = level(0);
    skip_spaces();
    if (result && at_ < text_.size()) fail("the end was expected");
    *wrong = wrong_ + " at character " + std::to_string(at_);
    if (!wrong_.empty() || !result) return false;
    *nodes = std::move(nodes_);
    return true;
  }

 private:
  std::optional<int> fail(const char* what) {
    if (wrong_.empty()) wrong_ = what;
    return std::nullopt;
  }
  void skip_spaces() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n')) {
      ++at_;
    }
  }
  bool accept(std::string_view symbol) {
    skip_spaces();
    if (text_.substr(at_, symbol.size()) != symbol) return false;
    at_ += symbol.size();
    return true;
  }
  NodeType type_of(int n) const { return nodes_[static_cast<std::size_t>(n)].type; }
  bool is_number(int n) const { return type_of(n) != NodeType::kBool; }

  int add(NodeOp op, NodeType type, std::initializer_list<int> args = {}) {
    Node node;
    node.op = op;
    node.type = type;
    for (const int arg : args) node.args[node.count++] = arg;
    nodes_.push_back(node);
    return static_cast<int>(nodes_.size()) - 1;
  }
  int constant(double value, NodeType type) {
    const int n = add(NodeOp::kConstant, type);
    nodes_.back().value = value;
    return n;
  }
  int to_real(int n) {
    return type_of(n) == NodeType::kInt ? add(NodeOp::kToReal, NodeType::kReal, {n}) : n;
  }
  /// Both int, or both real.
  NodeType unify(int* x, int* y) {
    if (type_of(*x) == NodeType::kInt && type_of(*y) == NodeType::kInt) return NodeType::kInt;
    *x = to_real(*x);
    *y = to_real(*y);
    return NodeType::kReal;
  }

  std::optional<int> level(std::size_t n) {
    if (n == kLevelCount) return unary();
    std::optional<int> left = level(n + 1);
    while (left) {
      const Binary* found = nullptr;
      for (const Binary& binary : kLevels[n]) {
        if (found == nullptr && accept(binary.text)) found = &binary;
      }
      if (found == nullptr) return left;
      const std::optional<int> right = level(n + 1);
      if (!right) return std::nullopt;
      left = found->exchanged ? apply(found->op, *right, *left) : apply(found->op, *left, *right);
    }
    return left;
  }

  std::optional<int> apply(NodeOp op, int x, int y) {
    if (op == NodeOp::kAnd || op == NodeOp::kOr) {
      if (is_number(x) || is_number(y)) return fail("bools were expected");
      return add(op, NodeType::kBool, {x, y});
    }
    if (!is_number(x) || !is_number(y)) return fail("numbers were expected");
    if (op == NodeOp::kFloorDiv || op == NodeOp::kRemainder) {
      const bool ints = type_of(x) == NodeType::kInt && type_of(y) == NodeType::kInt;
      if (!ints) return fail("ints were expected");
      return add(op, NodeType::kInt, {x, y});
    }
    if (op == NodeOp::kDivide) {
      const int real_x = to_real(x);
      return add(op, NodeType::kReal, {real_x, to_real(y)});
    }
    const NodeType on = unify(&x, &y);
    const bool compares = op == NodeOp::kLess || op == NodeOp::kLessEqual || op == NodeOp::kEqual ||
                          op == NodeOp::kNotEqual;
    return add(op, compares ? NodeType::kBool : on, {x, y});
  }

  std::optional<int> unary() {
    if (++nesting_ > kMaxNesting) return fail("too deep");
    std::optional<int> result;
    skip_spaces();
    const bool negates = accept("-");
    // "!=" is no unary operator.
    const bool inverts = !negates && text_.substr(at_, 2) != "!=" && accept("!");
    if (negates || inverts) {
      const std::optional<int> x = unary();
      if (x && is_number(*x) != negates) return fail(negates ? "a number" : "a bool");
      if (x) result = add(negates ? NodeOp::kNegate : NodeOp::kNot, type_of(*x), {*x});
    } else {
      result = primary();
    }
    --nesting_;
    return result;
  }

  std::optional<int> primary() {
    skip_spaces();
    if (at_ >= text_.size()) return fail("an operand was expected");
    if (accept("(")) {
      const std::optional<int> inner = level(0);
      if (inner && !accept(")")) return fail("')' was expected");
      return inner;
    }
    if (is_digit(text_[at_]) || text_[at_] == '.') return number();
    std::string word;
    while (at_ < text_.size() && is_word(text_[at_])) word += text_[at_++];
    if (word == "inf") return constant(std::numeric_limits<double>::infinity(), NodeType::kReal);
    if (word == "true" || word == "false") return constant(word == "true", NodeType::kBool);
    for (const Name& name : kVariables) {
      if (word == name.text) return add(name.op, name.type);
    }
    for (const Call& call : kCalls) {
      if (word == call.text) return function(call);
    }
    const bool gathers =
        word.size() == 2 && (word[0] == 'r' || word[0] == 'i') && word[1] >= '0' && word[1] <= '7';
    return gathers ? gather(word) : fail("an unknown name");
  }

  /// Digits alone are an int, within 32 bits but for 2147483648, which a minus precedes.
  std::optional<int> number() {
    std::string digits;
    bool real = false;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      const bool sign = (c == '+' || c == '-') && !digits.empty() && digits.back() == 'e';
      if (!is_digit(c) && c != '.' && c != 'e' && !sign) break;
      real = real || !is_digit(c);
      digits += c;
      ++at_;
    }
    char* end = nullptr;
    const double value = std::strtod(digits.c_str(), &end);
    if (end != digits.c_str() + digits.size()) return fail("no number");
    if (real) return constant(value, NodeType::kReal);
    if (value > 0x1p31) return fail("an int beyond 32 bits");
    return constant(value, NodeType::kInt);
  }

  /// Up to `close`; false after an error.
  bool arguments(const char* close, std::vector<int>* args) {
    while (true) {
      const std::optional<int> arg = level(0);
      if (!arg) return false;
      args->push_back(*arg);
      if (accept(",")) continue;
      if (accept(close)) return true;
      fail("',' or an end was expected");
      return false;
    }
  }

  std::optional<int> function(const Call& call) {
    std::vector<int> args;
    if (!accept("(")) return fail("'(' was expected");
    if (!arguments(")", &args)) return std::nullopt;
    if (static_cast<int>(args.size()) != call.count) return fail("another number of arguments");
    switch (call.op) {
      case NodeOp::kWhere: return where(args[0], args[1], args[2]);
      case NodeOp::kMin:
      case NodeOp::kMax: return apply(call.op, args[0], args[1]);
      default: break;
    }
    if (!is_number(args[0])) return fail("a number was expected");
    if (call.op == NodeOp::kAbs) return add(call.op, type_of(args[0]), {args[0]});
    const int real = to_real(args[0]);
    const NodeType type = call.op == NodeOp::kToInt ? NodeType::kInt : NodeType::kReal;
    return add(call.op, type, {real});
  }

  std::optional<int> where(int condition, int x, int y) {
    if (is_number(condition)) return fail("a bool was expected");
    if (is_number(x) != is_number(y)) return fail("two numbers or two bools were expected");
    const NodeType type = is_number(x) ? unify(&x, &y) : NodeType::kBool;
    return add(NodeOp::kWhere, type, {condition, x, y});
  }

  std::optional<int> gather(const std::string& word) {
    std::vector<int> indices;
    if (!accept("[")) return fail("'[' was expected");
    if (!arguments("]", &indices)) return std::nullopt;
    if (indices.size() > 4) return fail("more than 4 indices");
    for (const int index : indices) {
      if (type_of(index) != NodeType::kInt) return fail("an index must be an int");
    }
    const int n = add(NodeOp::kGather, word[0] == 'r' ? NodeType::kReal : NodeType::kInt);
    Node& node = nodes_.back();
    node.slot = word[1] - '0';
    for (const int index : indices) node.args[node.count++] = index;
    return n;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int nesting_ = 0;
  std::string wrong_;
  std::vector<Node> nodes_;
};

}  // namespace

const char* name_of(NodeOp op) {
  for (const Name& name : kVariables) {
    if (name.op == op) return name.text;
  }
  for (const Call& call : kCalls) {
    if (call.op == op) return call.text;
  }
  for (const std::vector<Binary>& level : kLevels) {
    for (const Binary& binary : level) {
      if (binary.op == op) return binary.text;
    }
  }
  switch (op) {
    case NodeOp::kConstant: return "number";
    case NodeOp::kToReal: return "real of an int";
    case NodeOp::kNegate: return "unary -";
    case NodeOp::kNot: return "!";
    default: return "[]";
  }
}

Expected<Function> Function::parse(std::string_view text) {
  Function made;
  std::string wrong;
  if (Parser(text).run(&made.nodes_, &wrong)) return made;
  return Status(StatusCode::kInvalidArgument,
                "[oracle] function \"" + std::string(text) + "\": " + wrong);
}

bool Function::has(NodeOp op) const {
  return std::any_of(nodes_.begin(), nodes_.end(), [&](const Node& n) { return n.op == op; });
}

}  // namespace regard::oracle
