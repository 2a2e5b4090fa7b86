#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "oracle/evaluate.h"
#include "oracle/expression.h"
#include "oracle/functions.h"
#include "regard/expression.h"
#include "regard/params.h"
#include "tests/fuzz/require.h"

// Any text is either refused with a reason or is an expression whose print reads back as the same
// one. The oracle reads each print, finds the same type, and evaluates it whatever it holds.

namespace {

using regard::Expected;
using regard::Expression;
using regard::TensorView;
using regard::oracle::Function;

int depth_of(const Function& function, int n) {
  const regard::oracle::Node& node = function.nodes()[static_cast<std::size_t>(n)];
  int depth = 0;
  for (int k = 0; k < node.count; ++k) depth = std::max(depth, depth_of(function, node.args[k]));
  // Conversions are no operators of the text, and a negative constant is one operand.
  using regard::oracle::NodeOp;
  const bool is_sign =
      node.op == NodeOp::kNegate &&
      function.nodes()[static_cast<std::size_t>(node.args[0])].op == NodeOp::kConstant;
  return depth + (node.op == NodeOp::kToReal || is_sign ? 0 : 1);
}

/// Of 3 elements in every dimension; false where a number is read with several ranks.
bool make_captured(const Function& function, std::vector<float>* numbers, TensorView* captured) {
  numbers->assign(81, 0.75f);
  bool fits = true;
  for (const regard::oracle::Node& node : function.nodes()) {
    if (node.op != regard::oracle::NodeOp::kGather) continue;
    TensorView& view = captured[node.slot];
    fits = fits && (view.rank == 0 || view.rank == node.count);
    view.rank = node.count;
    view.data = numbers->data();
    std::int64_t stride = 1;
    for (int dim = node.count - 1; dim >= 0; --dim, stride *= 3) {
      view.shape[dim] = 3;
      view.strides[dim] = stride;
    }
  }
  return fits;
}

void evaluate(const Function& function) {
  std::vector<float> numbers;
  TensorView captured[regard::oracle::kCapturedCount];
  if (!make_captured(function, &numbers, captured)) return;
  regard::oracle::Evaluator<double> evaluator(function, captured);
  constexpr std::int32_t kMin = std::numeric_limits<std::int32_t>::min();
  const regard::oracle::FunctionPlace places[] = {{0, 1, 2, 3, -4, 5, 6},
                                                  {kMin, -1, kMin, -1, kMin, 0, 0}};
  for (const regard::oracle::FunctionPlace& place : places) {
    for (const double score : {0.5, std::nan(""), -1e300}) {
      const double error = evaluator.analyse(place, score, {1.0, 4.0, false}).error;
      require(!(error < 0.0), "an error is no less than 0", std::to_string(error));
      evaluator.differentiate();
    }
  }
}

void check(const Expression& expression) {
  const std::string& text = expression.text();
  require(expression.status().ok(), "a parsed expression is one", text);
  require(text.find(' ') == std::string::npos, "a print has no spaces", text);
  const Expected<Expression> again = Expression::parse(text);
  require(again.ok(), "a print parses", text + ": " + again.status().message());
  require(*again == expression, "a print is the same expression", text);
  require(again->text() == text, "there is one print", text);
  require(hash_value(*again) == hash_value(expression), "equal ones hash alike", text);
  const Expected<Function> read = Function::parse(text);
  require(read.ok(), "the oracle reads it", text + ": " + read.status().message());
  require(static_cast<int>(read->type()) == static_cast<int>(expression.type()),
          "the oracle finds its type", text);
  const int depth = depth_of(*read, static_cast<int>(read->nodes().size()) - 1);
  require(depth <= regard::kMaxExpressionDepth, "it is no deeper than allowed", text);
  evaluate(*read);
  // Compiles it, derivatives included.
  regard::AttentionParams params;
  params.diagonal = regard::Diagonal::kTopLeft;
  const bool is_mask = expression.type() == regard::ValueType::kBool;
  (is_mask ? params.mask_function : params.score_function) = expression;
  canonicalize(params);
  const regard::Status status = validate(params, "fuzz");
  require(status.ok() || status.message().find(text) != std::string::npos,
          "a refusal shows the function", text + ": " + status.message());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Expected<Expression> parsed = Expression::parse(text);
  if (parsed) {
    require(size <= regard::kMaxExpressionText, "a text is no longer than allowed", "");
    check(*parsed);
  } else {
    require(!parsed.status().message().empty(), "a refusal says why", "");
  }
  return 0;
}
