#include "oracle/functions.h"

#include <cmath>
#include <limits>
#include <string>
#include <utility>

namespace regard::oracle {
namespace {

// What a callback may lose, in unit roundoffs of its result.
constexpr double kCallbackError = 4.0;

bool is_captured_real(Dtype dtype) {
  return dtype == Dtype::kF32 || dtype == Dtype::kF64 || dtype == Dtype::kBf16 ||
         dtype == Dtype::kF16;
}
bool is_captured_int(Dtype dtype) {
  return dtype == Dtype::kI32 || dtype == Dtype::kI64 || dtype == Dtype::kBool ||
         dtype == Dtype::kU8;
}

}  // namespace

Functions::Functions(const AttentionRequest& request)
    : is_f64_(request.q.dtype == Dtype::kF64), callback_(request.score_callback) {
  for (int slot = 0; slot < kCapturedCount; ++slot) captured_[slot] = request.*kCaptured[slot];
  score_ = bind(request.options.score_function);
  mask_ = bind(request.options.mask_function);
  if (!status_.ok()) return;
  const bool fits = (score_ == nullptr || score_->function.type() != NodeType::kBool) &&
                    (mask_ == nullptr || (mask_->function.type() == NodeType::kBool &&
                                          !mask_->function.has(NodeOp::kScore)));
  if (fits) return;
  status_ = Status(StatusCode::kInvalidArgument,
                   "[oracle] score_function is a number, mask_function a bool without score");
}

std::unique_ptr<Functions::Bound> Functions::bind(const Expression& expression) {
  if (expression.empty() || !status_.ok()) return nullptr;
  Expected<Function> parsed = Function::parse(expression.text());
  status_ = parsed ? check_captured(*parsed) : parsed.status();
  if (!status_.ok()) return nullptr;
  return std::make_unique<Bound>(std::move(*parsed), captured_);
}

Status Functions::check_captured(const Function& function) {
  for (const Node& n : function.nodes()) {
    if (n.op != NodeOp::kGather) continue;
    const TensorView& view = captured_[n.slot];
    const bool fits =
        view.present() && view.rank == n.count &&
        (n.type == NodeType::kReal ? is_captured_real(view.dtype) : is_captured_int(view.dtype));
    if (fits) continue;
    return Status(StatusCode::kInvalidArgument, "[oracle] captured" + std::to_string(n.slot) +
                                                    " (" + to_string(view) +
                                                    ") does not fit the function that reads it");
  }
  return {};
}

Status Functions::status() const {
  if (!status_.ok()) return status_;
  const bool left = (score_ != nullptr && score_->left_a_tensor()) ||
                    (mask_ != nullptr && mask_->left_a_tensor());
  if (!left) return {};
  return Status(StatusCode::kInvalidArgument,
                "[oracle] a function reads a captured tensor outside of its extents");
}

bool Functions::differentiates(int slot) const {
  if (score_ == nullptr) return false;
  for (const Node& n : score_->function.nodes()) {
    if (n.op == NodeOp::kGather && n.type == NodeType::kReal && n.slot == slot) return true;
  }
  return false;
}

Sight Functions::see(const FunctionPlace& place, Fault fault) const {
  Sight sight;
  // NaN as the score: nothing of it is read.
  const ScoreError given{std::numeric_limits<double>::quiet_NaN(), 4.0, is_f64_};
  const auto evaluate = [&](Bound& bound, auto score) {
    const auto& result = bound.in(score).analyse(place, score, given);
    const bool is_score = &bound == score_.get();
    if (is_score && result.reads_score) return;
    const bool hides =
        is_score ? result.value == -std::numeric_limits<double>::infinity() : result.value == 0;
    sight.visible = sight.visible && !hides;
    sight.decided = sight.decided && !std::isinf(result.error);
  };
  for (Bound* bound : {mask_.get(), score_.get()}) {
    const Fault ignored =
        bound == mask_.get() ? Fault::kMaskFunctionIgnored : Fault::kFunctionIgnored;
    if (bound == nullptr || fault == ignored) continue;
    if (is_f64_) {
      evaluate(*bound, std::numeric_limits<long double>::quiet_NaN());
    } else {
      evaluate(*bound, std::numeric_limits<double>::quiet_NaN());
    }
  }
  return sight;
}

template <class R>
FunctionResult<R> Functions::edit(const FunctionPlace& place, R score, const ScoreError* given,
                                  bool differentiates) const {
  FunctionResult<R> result;
  if (score_ != nullptr) {
    Evaluator<R>& evaluator = score_->in(score);
    result =
        given != nullptr ? evaluator.analyse(place, score, *given) : evaluator.value(place, score);
    if (differentiates) result = evaluator.differentiate();
  } else {
    result.value = score;
    result.reads_score = true;
    result.error = given != nullptr ? given->error : 0.0;
    result.slope = R{1};
    result.slope_size = 1.0;
  }
  if (has_callback()) call_back(place, &result, given != nullptr, differentiates);
  return result;
}

template <class R>
void Functions::call_back(const FunctionPlace& place, FunctionResult<R>* result, bool analyses,
                          bool differentiates) const {
  const auto before = static_cast<float>(result->value);
  float edited = before;
  callback_.edit(callback_.user_data, &edited, 1, place.b, place.h, place.q_idx, place.kv_idx);
  float slope = 1.0f;
  if (callback_.gradient != nullptr) {
    callback_.gradient(callback_.user_data, &before, &slope, 1, place.b, place.h, place.q_idx,
                       place.kv_idx);
  }
  const double size = std::fabs(static_cast<double>(slope));
  if (analyses && std::isfinite(before)) {
    const double rounded = std::fabs(double{before});
    result->error = size == 0.0 ? 0.0 : size * (result->error + rounded);
    if (std::isfinite(edited)) result->error += kCallbackError * std::fabs(double{edited});
  }
  result->value = static_cast<R>(edited);
  if (!differentiates) return;
  const R factor = static_cast<R>(slope);
  result->slope *= factor;
  result->slope_size *= (1.0 + kCallbackError) * size;
  for (ElementSlope<R>& element : result->elements) {
    element.slope *= factor;
    element.size *= (1.0 + kCallbackError) * size;
  }
}

template FunctionResult<float> Functions::edit(const FunctionPlace&, float, const ScoreError*,
                                               bool) const;
template FunctionResult<double> Functions::edit(const FunctionPlace&, double, const ScoreError*,
                                                bool) const;
template FunctionResult<long double> Functions::edit(const FunctionPlace&, long double,
                                                     const ScoreError*, bool) const;

}  // namespace regard::oracle
