#include <algorithm>
#include <bit>
#include <cstddef>
#include <map>
#include <tuple>
#include <unordered_map>

#include "function/node.h"
#include "function/program.h"

namespace regard::function {
namespace {

using semantics::FunctionProgram;
using semantics::FunctionRank;
using semantics::FunctionScatter;
using semantics::FunctionStep;
using semantics::FunctionType;

FunctionType type_of(ValueType type) {
  return type == ValueType::kBool  ? FunctionType::kBool
         : type == ValueType::kInt ? FunctionType::kInt
                                   : FunctionType::kReal;
}

FunctionRank rank_of_leaf(FunctionOp op) {
  switch (op) {
    case FunctionOp::kConstant: return FunctionRank::kConstant;
    case FunctionOp::kScore: return FunctionRank::kFull;
    case FunctionOp::kKey: return FunctionRank::kKey;
    default: return FunctionRank::kRow;
  }
}

FunctionRank joined_rank(FunctionRank a, FunctionRank b) {
  if (a == b || b == FunctionRank::kConstant) return a;
  return a == FunctionRank::kConstant ? b : FunctionRank::kFull;
}

/// The type that the operands of a node are computed in.
ValueType operand_type(const Node& node) {
  switch (node.op) {
    case FunctionOp::kToInt:
    case FunctionOp::kDivide: return ValueType::kReal;
    case FunctionOp::kLess:
    case FunctionOp::kLessEqual:
    case FunctionOp::kEqual:
    case FunctionOp::kNotEqual: {
      const ValueType a = node.args[0]->type;
      return a == node.args[1]->type ? a : ValueType::kReal;
    }
    case FunctionOp::kGather: return ValueType::kInt;
    default: return node.type;
  }
}

/// Writes steps, equal ones once.
class Compiler {
 public:
  explicit Compiler(std::vector<FunctionStep>* steps) : steps_(*steps) {}

  int compile(const NodePtr& node) {
    const auto known = of_node_.find(node.get());
    if (known != of_node_.end()) return known->second;
    FunctionStep step;
    step.op = node->op;
    step.type = type_of(node->type);
    const ValueType on = operand_type(*node);
    step.on = type_of(on);
    step.slot = static_cast<std::int8_t>(node->slot);
    step.value = node->value;
    for (const NodePtr& arg : node->args) {
      const int compiled = compile(arg);
      const bool widens = on == ValueType::kReal && arg->type == ValueType::kInt;
      step.args[step.count++] = static_cast<std::int16_t>(widens ? to_real(compiled) : compiled);
    }
    return of_node_[node.get()] = add(step);
  }

 private:
  int to_real(int of) {
    const FunctionStep& from = steps_[static_cast<std::size_t>(of)];
    FunctionStep step;
    step.type = FunctionType::kReal;
    if (from.op == FunctionOp::kConstant) {
      step.value = from.value;
      return add(step);
    }
    step.op = FunctionOp::kToReal;
    step.on = FunctionType::kInt;
    step.count = 1;
    step.args[0] = static_cast<std::int16_t>(of);
    return add(step);
  }

  int add(FunctionStep step) {
    step.rank = rank_of_leaf(step.op);
    if (step.count > 0) step.rank = FunctionRank::kConstant;
    for (int i = 0; i < step.count; ++i) {
      step.rank = joined_rank(step.rank, steps_[static_cast<std::size_t>(step.args[i])].rank);
    }
    const Key key{static_cast<int>(step.op),
                  static_cast<int>(step.type),
                  static_cast<int>(step.on),
                  step.slot,
                  std::bit_cast<std::uint64_t>(step.value),
                  step.args[0],
                  step.args[1],
                  step.args[2],
                  step.args[3]};
    const auto known = of_step_.find(key);
    if (known != of_step_.end()) return known->second;
    steps_.push_back(step);
    return of_step_[key] = static_cast<int>(steps_.size()) - 1;
  }

  using Key = std::tuple<int, int, int, int, std::uint64_t, int, int, int, int>;
  std::vector<FunctionStep>& steps_;
  std::unordered_map<const Node*, int> of_node_;
  std::map<Key, int> of_step_;
};

/// Leaves out what nothing needs, and brings the rest into the order of ranks.
void sort_by_rank(OwnedProgram* program) {
  std::vector<FunctionStep>& steps = program->steps;
  FunctionProgram& view = program->view;
  std::vector<bool> is_used(steps.size(), false);
  is_used[static_cast<std::size_t>(view.result)] = true;
  for (const FunctionScatter& s : program->scatters) {
    is_used[static_cast<std::size_t>(s.gather)] = is_used[static_cast<std::size_t>(s.derivative)] =
        true;
  }
  for (std::size_t i = steps.size(); i-- > 0;) {
    for (int a = 0; is_used[i] && a < steps[i].count; ++a) {
      is_used[static_cast<std::size_t>(steps[i].args[a])] = true;
    }
  }
  std::vector<FunctionStep> sorted;
  std::vector<std::int16_t> place(steps.size(), 0);
  for (int rank = 0; rank < semantics::kFunctionRanks; ++rank) {
    view.rank_begin[rank] = static_cast<std::int32_t>(sorted.size());
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (!is_used[i] || static_cast<int>(steps[i].rank) != rank) continue;
      place[i] = static_cast<std::int16_t>(sorted.size());
      sorted.push_back(steps[i]);
    }
  }
  view.rank_begin[semantics::kFunctionRanks] = static_cast<std::int32_t>(sorted.size());
  for (FunctionStep& step : sorted) {
    for (int a = 0; a < step.count; ++a)
      step.args[a] = place[static_cast<std::size_t>(step.args[a])];
  }
  for (FunctionScatter& s : program->scatters) {
    s.gather = place[static_cast<std::size_t>(s.gather)];
    s.derivative = place[static_cast<std::size_t>(s.derivative)];
  }
  view.result = place[static_cast<std::size_t>(view.result)];
  steps = std::move(sorted);
}

/// Registers of what depends on query and key are free again after the last step that reads them.
void assign_registers(OwnedProgram* program) {
  std::vector<FunctionStep>& steps = program->steps;
  FunctionProgram& view = program->view;
  const int count = static_cast<int>(steps.size());
  std::vector<int> last_use(steps.size(), -1);
  const auto use = [&](int step, int at) {
    int& last = last_use[static_cast<std::size_t>(step)];
    last = std::max(last, at);
  };
  for (int i = 0; i < count; ++i) {
    const FunctionStep& step = steps[static_cast<std::size_t>(i)];
    for (int a = 0; a < step.count; ++a) use(step.args[a], i);
  }
  use(view.result, count);
  for (const FunctionScatter& s : program->scatters) {
    use(s.derivative, count);
    const FunctionStep& gather = steps[static_cast<std::size_t>(s.gather)];
    for (int a = 0; a < gather.count; ++a) use(gather.args[a], count);
  }
  std::vector<std::int16_t> free;
  for (int i = 0; i < count; ++i) {
    FunctionStep& step = steps[static_cast<std::size_t>(i)];
    std::int32_t& registers = view.registers[static_cast<int>(step.rank)];
    if (step.rank != FunctionRank::kFull) {
      step.to = static_cast<std::int16_t>(registers++);
    } else if (step.op == FunctionOp::kScore) {
      step.to = -1;
    } else if (free.empty()) {
      step.to = static_cast<std::int16_t>(registers++);
    } else {
      step.to = free.back();
      free.pop_back();
    }
    // After its own: a step never writes what it reads.
    for (int a = 0; a < step.count; ++a) {
      const FunctionStep& arg = steps[static_cast<std::size_t>(step.args[a])];
      int& last = last_use[static_cast<std::size_t>(step.args[a])];
      if (arg.rank != FunctionRank::kFull || arg.to < 0 || last != i) continue;
      free.push_back(arg.to);
      last = -1;  // an operand may stand twice
    }
  }
}

void finish_program(OwnedProgram* program, int result) {
  FunctionProgram& view = program->view;
  view.result = result;
  sort_by_rank(program);
  assign_registers(program);
  for (const FunctionStep& step : program->steps) {
    view.uses_score = view.uses_score || step.op == FunctionOp::kScore;
  }
  view.steps = program->steps.data();
  view.count = static_cast<std::int32_t>(program->steps.size());
  view.scatters = program->scatters.data();
  view.scatter_count = static_cast<std::int32_t>(program->scatters.size());
}

NodePtr as_real(const NodePtr& node) {
  if (node->type != ValueType::kInt) return node;
  // A sum with 0.0 is the conversion's own text.
  return make_node(FunctionOp::kAdd, {node, make_constant(ValueType::kReal, 0.0)}).node;
}

/// The gathered reals, equal ones once.
std::vector<NodePtr> gathers_of(const NodePtr& root) {
  std::vector<NodePtr> found;
  const auto visit = [&](const auto& self, const NodePtr& node) -> void {
    for (const NodePtr& arg : node->args) self(self, arg);
    if (node->op != FunctionOp::kGather || node->type != ValueType::kReal) return;
    const bool known = std::any_of(found.begin(), found.end(),
                                   [&](const NodePtr& other) { return is_same(*other, *node); });
    if (!known) found.push_back(node);
  };
  visit(visit, root);
  return found;
}

void compile_gradient(const NodePtr& root, OwnedProgram* program) {
  Compiler compiler(&program->steps);
  NodePtr by_score = derive(root, nullptr);
  if (by_score == nullptr) by_score = make_constant(ValueType::kReal, 0.0);
  const int result = compiler.compile(by_score);
  std::vector<NodePtr> derivatives;  // the compiler knows nodes by their addresses
  for (const NodePtr& gather : gathers_of(root)) {
    const NodePtr derivative = derive(root, gather.get());
    if (derivative == nullptr) continue;
    FunctionScatter scatter;
    scatter.gather = static_cast<std::int16_t>(compiler.compile(gather));
    scatter.derivative = static_cast<std::int16_t>(compiler.compile(derivative));
    program->scatters.push_back(scatter);
    derivatives.push_back(derivative);
  }
  finish_program(program, result);
}

}  // namespace

const Programs& programs_of(const Expression& expression) {
  static const Programs none;
  const detail::ExpressionData* const data = expression.data().get();
  if (data == nullptr || data->root == nullptr) return none;
  std::call_once(data->compiled, [&] {
    auto programs = std::make_unique<Programs>();
    const NodePtr root = as_real(data->root);
    finish_program(&programs->value, Compiler(&programs->value.steps).compile(root));
    if (root->type == ValueType::kReal) compile_gradient(root, &programs->gradient);
    data->programs = std::move(programs);
  });
  return *data->programs;
}

bool is_too_large(const Expression& expression) {
  const Programs& programs = programs_of(expression);
  const auto is_large = [](const OwnedProgram& program) {
    return program.steps.size() > static_cast<std::size_t>(semantics::kMaxFunctionSteps);
  };
  return is_large(programs.value) || is_large(programs.gradient);
}

}  // namespace regard::function
