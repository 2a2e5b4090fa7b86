#pragma once

#include <cstdint>
#include <memory>

#include "oracle/functions.h"
#include "oracle/oracle.h"
#include "regard/request.h"

// Which key a query sees, and what is added to a score: docs/semantics.md, section by section.

namespace regard::oracle {

__extension__ using Int128 = __int128;  // positions on the diagonal: offsets take all 64 bits

/// One element of a view as a number. `index` has the view's rank; extents of 1 broadcast.
double element(const TensorView& view, std::int64_t i0, std::int64_t i1 = 0, std::int64_t i2 = 0,
               std::int64_t i3 = 0);
/// The view of as_bytes() of a view of u4 again.
TensorView as_codes(TensorView bytes);
/// Encodes `value` in the element.
void set_element(const TensorView& view, const std::int64_t (&index)[kMaxRank], double value);

/// A place in the score matrices: sequence, query head, query, key.
struct Place {
  std::int64_t b, h, i, j;
};

class Rules {
 public:
  Rules(const AttentionRequest& request, Fault fault)
      : request_(request), functions_(std::make_shared<Functions>(request)), fault_(fault) {}

  std::int64_t len_q(std::int64_t b) const;
  std::int64_t len_kv(std::int64_t b) const;
  std::int64_t kv_head(std::int64_t h) const;
  /// The query's position on the diagonal.
  Int128 position(std::int64_t b, std::int64_t i) const;
  /// False where a mask of any kind hides the key from the query; a bias of -inf is one, and so is
  /// a score_function that is -inf whatever the score.
  bool visible(const Place& at) const { return see(at).visible; }
  Sight see(const Place& at) const;
  FunctionPlace function_place(const Place& at) const;
  /// Whether score_function or score_callback edits scores.
  bool edits_scores() const {
    return functions_->edits_scores() && fault_ != Fault::kFunctionIgnored;
  }
  const Functions& functions() const { return *functions_; }
  double softmax_scale() const;
  /// One of the request's descales for a kv head; 1 without it.
  double descale(const TensorView& scale, std::int64_t b, std::int64_t kv) const {
    return scale.present() ? element(scale, b, kv) : 1.0;
  }
  /// What element (b, head, row, column) of q, K or V stands for, but for the scales of columns.
  double number(const TensorView& rows, const TensorView& scales, const Place& at) const;
  /// What a column of K is multiplied by; 1 without scales.
  double channel_scale(std::int64_t kv, std::int64_t d) const {
    return request_.channel_scales_k.present() ? element(request_.channel_scales_k, kv, d) : 1.0;
  }
  double bias(const Place& at) const;   // 0 without one
  double alibi(const Place& at) const;  // -slope * distance from the diagonal
  bool has_sink() const { return request_.sinks.present() && fault_ != Fault::kSinkIgnored; }
  double sink(std::int64_t h) const { return element(request_.sinks, h); }
  /// Dropout's factor of a probability: 0, or 65536 / threshold; 1 without dropout.
  double dropout_factor(const Place& at) const;
  double dropout_keep_factor() const;

  const AttentionRequest& request() const { return request_; }
  Fault fault() const { return fault_; }

 private:
  Int128 window_right() const;
  bool in_window(const Place& at) const;
  bool hidden_by_tree(const Place& at) const;
  bool visible_without_functions(const Place& at) const;

  const AttentionRequest& request_;
  std::shared_ptr<const Functions> functions_;
  Fault fault_;
};

}  // namespace regard::oracle
