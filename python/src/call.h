#pragma once

#include <optional>
#include <string>

#include "arguments.h"
#include "inputs.h"
#include "regard/interrupt.h"
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

  Inputs& inputs() noexcept { return inputs_; }
  const std::vector<std::string>& notes() const noexcept { return inputs_.notes(); }
  bool is_bshd() const noexcept { return bshd_; }
  bool bias_is_mask() const noexcept { return bias_is_mask_; }
  bool returns_saved() const noexcept { return stats_.is_valid(); }
  /// saved_stats as the caller's kind.
  nb::object stats() const;
  /// What the caller gets: out, or a tuple of out, lse, scores and `saved`, those that were asked
  /// for.
  nb::object result(const nb::object& saved) const;

  /// A new array of that shape and type for a result, and the view of it.
  TensorView make_output(int rank, const npy_intp* shape, Dtype dtype, nb::object* made);
  /// The same for a tensor like `view` ([B,H,S,D]), in the caller's layout.
  TensorView make_rows_like(const TensorView& view, nb::object* made);
  /// Where workers run: PyTorch's tensors on its own threads. Python's signal handlers run during a
  /// long call on the main thread; one that raises ends it.
  Launch launch();

  /// A result as the kind of array that q is; null stays null.
  nb::object as_callers_kind(const nb::object& array, Dtype dtype) const;

 private:
  void read_options(const Arguments& arguments);
  void read_diagonal(PyObject* diagonal);
  void read_window(PyObject* window);
  void read_mask_and_bias(const Arguments& arguments);
  void read_vectors(const Arguments& arguments);
  void read_dropout(const Arguments& arguments);
  void make_outputs(const Arguments& arguments);
  void take_out(PyObject* object, const npy_intp (&shape)[4]);

  PyObject* q_;
  bool bshd_;
  Inputs inputs_;
  nb::object out_, lse_, scores_, stats_;
  bool out_is_callers_ = false;
  bool bias_is_mask_ = false;  // a float attn_mask was given
  std::optional<Interrupt> interrupt_;
};

/// The layout word: true for BSHD.
bool read_layout(PyObject* object);

/// Raises what a failed Status stands for, by the caller's names; or, of an interrupted call, what
/// the signal handler raised.
void check(const Call& call, const Status& status);

/// By the caller's names, and with a word where its shapes are not in the caller's order.
Status in_callers_words(const Call& call, const Status& status);

/// `policy=` and `backend=` as one policy.
Policy read_policy(const Arguments& arguments);

}  // namespace regard::python
