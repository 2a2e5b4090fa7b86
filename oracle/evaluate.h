#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "oracle/expression.h"
#include "regard/tensor.h"

// A function at one place of the score matrices: its value in any arithmetic, how far rounding may
// move it, and its derivatives by the score and by every element of captured tensors that it reads.

namespace regard::oracle {

/// What functions read of a place; counted within the sequence.
struct FunctionPlace {
  std::int32_t b, h, q_idx, kv_idx, q_pos, q_len, kv_len;
};

/// The derivative by one element that a gather read.
template <class R>
struct ElementSlope {
  int slot = 0;
  std::int64_t index[kMaxRank] = {};
  R slope = 0;
  double size = 0.0;  // see FunctionResult::slope_size
};

template <class R>
struct FunctionResult {
  R value = 0;               // bools are 0 or 1
  bool reads_score = false;  // the value at this place depends on the score
  // Of an analysed result: how far the value may be from the exact one, in unit roundoffs of the
  // kernels' arithmetic. Infinite where rounding decides between two values of which one is none.
  double error = 0.0;
  // Of a differentiated result.
  R slope = 0;              // by the score
  double slope_size = 0.0;  // what rounding may move the slope by, in unit roundoffs, and |slope|
  std::vector<ElementSlope<R>> elements;
};

/// How exact the score is that a function is given, and the arithmetic of kernels.
struct ScoreError {
  double error = 0.0;   // in unit roundoffs
  double margin = 4.0;  // values that are nearer than so many of their errors may be exchanged
  bool is_f64 = false;  // f32 otherwise
};

/// Evaluates one function again and again. A gather whose index is outside of its tensor reads 0
/// and is remembered.
template <class R>
class Evaluator {
 public:
  Evaluator(const Function& function, const TensorView* captured)
      : function_(function), captured_(captured), values_(function.nodes().size()) {}

  const FunctionResult<R>& value(const FunctionPlace& place, R score);
  const FunctionResult<R>& analyse(const FunctionPlace& place, R score, const ScoreError& given);
  /// After value() or analyse() of the same place.
  const FunctionResult<R>& differentiate();
  bool left_a_tensor() const { return left_a_tensor_; }

 private:
  struct Value {
    R real = 0;
    std::int32_t integer = 0;  // bools are 0 or 1
    bool reads_score = false;
    double error = 0.0;                 // of a real
    bool certain = true;                // of an int or a bool: no rounding changes it
    std::int64_t index[kMaxRank] = {};  // of a gather
    // of the way back
    R slope = 0;
    double size = 0.0;   // sum over all paths of |product of derivatives|
    double moved = 0.0;  // what rounding may move the slope by
  };

  const Node& node(std::size_t n) const { return function_.nodes()[n]; }
  const Value& arg(const Node& n, int k) const {
    return values_[static_cast<std::size_t>(n.args[k])];
  }
  bool is_real(const Node& n, int k) const {
    return node(static_cast<std::size_t>(n.args[k])).type == NodeType::kReal;
  }
  void run(const FunctionPlace& place, R score);
  void compute(const Node& n, const FunctionPlace& place, R score, Value* v);
  std::int32_t integer_of(const Node& n, const FunctionPlace& place) const;
  R real_of(const Node& n, R score) const;
  bool compare(const Node& n) const;
  void gather(const Node& n, Value* v);
  bool reads_score(const Node& n) const;

  // ---- errors
  double error_of(const Node& n, const Value& v) const;
  double propagated(const Node& n, const Value& v) const;
  double product_error(const Value& x, const Value& y) const;
  double own_rounding(const Node& n, const Value& v) const;
  double selected_error(const Node& n) const;
  bool is_certain(const Node& n) const;
  bool args_are_certain(const Node& n) const;
  /// Whether the kernels' arithmetic has the number.
  bool is_exact(R value) const;
  double u() const { return given_.is_f64 ? 0x1p-53 : 0x1p-24; }
  /// Whether rounding may exchange operands k and k + 1, which are real. Not where they are the
  /// same expression, as in score!=score.
  bool may_exchange(const Node& n, int k) const;
  bool is_same(int a, int b) const;

  // ---- the way back
  void push(const Node& n, int k, const Value& from, R slope, double slope_error);
  void push_all(const Node& n, const Value& v);
  void push_selected(const Node& n, const Value& v);
  void add_slope(const Node& n, const Value& v);

  const Function& function_;
  const TensorView* captured_;
  std::vector<Value> values_;
  ScoreError given_;
  FunctionResult<R> result_;
  bool left_a_tensor_ = false;
};

}  // namespace regard::oracle
