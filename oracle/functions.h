#pragma once

#include <memory>
#include <vector>

#include "oracle/evaluate.h"
#include "oracle/expression.h"
#include "oracle/oracle.h"
#include "regard/request.h"

namespace regard::oracle {

/// The captured tensors of a call, by their numbers.
inline constexpr int kCapturedCount = 8;
inline constexpr TensorView Buffers::*kCaptured[kCapturedCount] = {
    &Buffers::captured0, &Buffers::captured1, &Buffers::captured2, &Buffers::captured3,
    &Buffers::captured4, &Buffers::captured5, &Buffers::captured6, &Buffers::captured7};

/// Whether a query sees a key by the mask function.
struct Sight {
  bool visible = true;
  bool decided = true;  // false: the roundings of a kernel may decide otherwise
};

/// score_function, score_callback and mask_function of a request.
class Functions {
 public:
  explicit Functions(const AttentionRequest& request);

  /// Functions that do not parse, or read what is not there; after use, an index outside of its
  /// tensor.
  Status status() const;
  bool has_mask() const { return mask_ != nullptr; }
  bool edits_scores() const { return score_ != nullptr || has_callback(); }
  /// A tensor whose elements score_function reads as real numbers: it has a gradient.
  bool differentiates(int slot) const;

  /// By mask_function, and where score_function is -inf whatever the score.
  Sight see(const FunctionPlace& place, Fault fault) const;

  /// The score after score_function and score_callback. `given`: to be analysed; null: not.
  template <class R>
  FunctionResult<R> edit(const FunctionPlace& place, R score, const ScoreError* given,
                         bool differentiates) const;

 private:
  /// A parsed function and what evaluates it in every arithmetic.
  struct Bound {
    Bound(Function parsed, const TensorView* captured)
        : function(std::move(parsed)),
          in_f32(function, captured),
          in_f64(function, captured),
          in_long(function, captured) {}
    Function function;
    Evaluator<float> in_f32;
    Evaluator<double> in_f64;
    Evaluator<long double> in_long;

    Evaluator<float>& in(float) { return in_f32; }
    Evaluator<double>& in(double) { return in_f64; }
    Evaluator<long double>& in(long double) { return in_long; }
    bool left_a_tensor() const {
      return in_f32.left_a_tensor() || in_f64.left_a_tensor() || in_long.left_a_tensor();
    }
  };

  bool has_callback() const { return callback_.edit != nullptr; }
  std::unique_ptr<Bound> bind(const Expression& expression);
  Status check_captured(const Function& function);
  template <class R>
  void call_back(const FunctionPlace& place, FunctionResult<R>* result, bool analyses,
                 bool differentiates) const;

  Status status_;
  bool is_f64_;
  ScoreCallback callback_;
  TensorView captured_[kCapturedCount];
  std::unique_ptr<Bound> score_, mask_;
};

}  // namespace regard::oracle
