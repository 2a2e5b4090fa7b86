"""The faults of mutations.py in score and mask functions."""

from mutation import Mutation

PROGRAMS = ("conformance", "Programs.*:RandomFunctions.*")
GENERATED = ("conformance", "Generator.*")
LITERALS = ("conformance", "All/Semantics.*")
DIRECTED = ("conformance", "*FunctionCases*")

FUNCTION_MUTATIONS = [
    Mutation("equal gathers of other tensors are one step", "src/function/compile.cc",
             "                  step.slot,\n", "                  0,\n", (PROGRAMS,)),
    Mutation("a value's register is free before its last use", "src/function/compile.cc",
             "arg.to < 0 || last != i) continue;", "arg.to < 0 || last < 0) continue;", (PROGRAMS,)),
    Mutation("indices of scattered gradients are overwritten", "src/function/compile.cc",
             "use(gather.args[a], count);", "use(gather.args[a], 0);", (PROGRAMS,)),
    Mutation("derivatives do not stay alive while they are compiled", "src/function/compile.cc",
             "derivatives.push_back(derivative);", "", (PROGRAMS,)),
    Mutation("keys are of a query's rank", "src/function/compile.cc",
             "case FunctionOp::kKey: return FunctionRank::kKey;",
             "case FunctionOp::kKey: return FunctionRank::kRow;", (DIRECTED,)),
    Mutation("the derivative of a quotient has its divisor once", "src/function/derive.cc",
             "minus(divided(times(node, std::move(y)), by))", "minus(times(node, std::move(y)))",
             (PROGRAMS,)),
    Mutation("the derivative of a maximum is that of a minimum", "src/function/derive.cc",
             "least ? less(a, b) : less(b, a)", "least ? less(a, b) : less(a, b)", (PROGRAMS,)),
    Mutation("sqrt' without its factor of 2", "src/function/derive.cc",
             "op(FunctionOp::kMultiply, {real(2.0), node})", "node", (PROGRAMS,)),
    Mutation("tanh' is that of sigmoid", "src/function/derive.cc",
             "node->op == FunctionOp::kTanh\n", "node->op == FunctionOp::kSigmoid\n", (PROGRAMS,)),
    Mutation("abs' is 1 below 0", "src/function/derive.cc",
             "select(op(FunctionOp::kLess, {a, zero}), minus(x), nullptr)", "x", (PROGRAMS,)),
    Mutation("x > y is x < y", "src/function/parse.cc",
             '{3, ">", FunctionOp::kLess, true},', '{3, ">", FunctionOp::kLess},', (PROGRAMS,)),
    Mutation("an int beside a real stays one", "src/function/node.cc",
             "return a.type == b.type ? a.type : ValueType::kReal;",
             "return a.type == b.type ? b.type : a.type;", (PROGRAMS,)),
    Mutation("the right operand is printed without brackets", "src/function/print.cc",
             "append_node(*node.args[1], binding + 1, out);", "append_node(*node.args[1], binding, out);",
             (PROGRAMS,)),
    Mutation("q < k is recognised as q <= k", "src/function/recognise.cc",
             "Linear{0, 0, strict ? 1 : 0}", "Linear{}", (GENERATED,)),
    Mutation("windows of q_idx are taken beside any diagonal", "src/function/recognise.cc",
             "if (!fits(window, *p)) return false;", "", (DIRECTED,)),
    Mutation("a softcap of another number is recognised", "src/function/recognise.cc",
             "is_constant(*ratio.args[1]) && ratio.args[1]->value == cap.value",
             "is_constant(*ratio.args[1])", (("conformance", "Recognised.*"),)),
    Mutation("-inf where a condition is true hides where it is false", "src/function/recognise.cc",
             "if (first) condition = make_node(FunctionOp::kNot, {condition}).node;", "",
             (DIRECTED, LITERALS)),
    Mutation("the last element of a captured tensor is outside of it", "src/core/describe/functions.cc",
             "if (!(index.lo >= 0.0 && index.hi < extent)) return {step.slot, a, index};",
             "if (!(index.lo >= 0.0 && index.hi < extent - 1)) return {step.slot, a, index};",
             (DIRECTED,)),
]
