#pragma once

#include <optional>
#include <string>
#include <vector>

#include "arguments.h"
#include "inputs.h"
#include "regard/block_mask.h"
#include "regard/interrupt.h"
#include "regard/padding.h"
#include "regard/policy.h"
#include "regard/request.h"

namespace regard::python {

/// The arguments of a call as the core's request. Lives as long as the call: it owns what the views
/// look at.
class Call {
 public:
  enum class Purpose {
    kCompute,
    kExplain,  // nothing will be computed, so copies stay without elements
    kBackward  // `out` is an input
  };
  Call(const Arguments& arguments, Purpose purpose);

  AttentionRequest request;
  Policy policy;
  /// Lengths of padded tensors: the call is one of attention_padded().
  std::optional<PaddedSequences> padded;
  std::int64_t shared_prefix_kv = 0;

  Inputs& inputs() noexcept { return inputs_; }
  const std::vector<std::string>& notes() const noexcept { return inputs_.notes(); }
  RowOrder order() const noexcept { return order_; }
  bool bias_is_mask() const noexcept { return bias_is_mask_; }
  bool returns_saved() const noexcept { return stats_.is_valid(); }
  /// saved_stats as the caller's kind.
  nb::object stats() const;
  /// What the caller gets: out, or a tuple of out, lse, scores and `saved`, those that were asked
  /// for.
  nb::object result(const nb::object& saved) const;

  /// A new array of that shape and type for a result, and the view of it.
  TensorView make_output(int rank, const npy_intp* shape, Dtype dtype, nb::object* made);
  /// The same for rows in the caller's order: `shape` and the view are [B,H,S,D].
  TensorView make_rows(const std::int64_t (&shape)[4], Dtype dtype, nb::object* made);
  /// Where workers run: PyTorch's tensors on its own threads. Python's signal handlers run during a
  /// long call on the main thread; one that raises ends it.
  Launch launch();

  /// A result as the kind of array that q is; null stays null.
  nb::object as_callers_kind(const nb::object& array, Dtype dtype) const;

 private:
  void read_keys(const Arguments& arguments);
  void read_options(const Arguments& arguments);
  void read_f8(const Arguments& arguments);
  void read_diagonal(PyObject* diagonal);
  void read_mask_and_bias(const Arguments& arguments);
  void read_functions(const Arguments& arguments);
  void read_score_callback(const Arguments& arguments);
  void read_block_mask(const Arguments& arguments);
  void take_block_mask(const BlockMask& mask);
  void read_cache(const Arguments& arguments);
  void read_vectors(const Arguments& arguments);
  void read_packed(const Arguments& arguments);
  void read_padding(const Arguments& arguments);
  void state_tokens();
  void read_starts(const Arguments& arguments, Arg starts, Arg longest, TensorView* cu_seqlens,
                   std::int64_t* max_seqlen);
  void read_dropout(const Arguments& arguments);
  void make_outputs(const Arguments& arguments);
  std::vector<npy_intp> shape_of_rows(const std::int64_t (&shape)[4]) const;
  void take_amax(PyObject* object);
  void take_out(PyObject* object, const std::vector<npy_intp>& shape);

  PyObject* q_;
  RowOrder order_;
  Inputs inputs_;
  nb::object out_, lse_, scores_, stats_;
  bool out_is_callers_ = false;
  bool bias_is_mask_ = false;  // a float attn_mask was given
  std::optional<Interrupt> interrupt_;
};

/// What the layout's word means; null is BHSD.
RowOrder read_layout(PyObject* object);

/// Raises what a failed Status stands for, by the caller's names; or, of an interrupted call, what
/// the signal handler raised.
void check(const Call& call, const Status& status);

/// By the caller's names, and with a word where its shapes are not in the caller's order.
Status in_callers_words(const Call& call, const Status& status);

}  // namespace regard::python
