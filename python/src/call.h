#pragma once

#include <string>

#include "arguments.h"
#include "inputs.h"
#include "regard/policy.h"
#include "regard/request.h"

namespace regard::python {

/// The arguments of a call as the core's request. Lives as long as the call: it owns what the views
/// look at.
class Call {
 public:
  /// `explain_only`: nothing will be computed, so copies stay without elements.
  Call(const Arguments& arguments, bool explain_only);

  AttentionRequest request;
  Policy policy;

  const std::vector<std::string>& notes() const noexcept { return inputs_.notes(); }
  bool is_bshd() const noexcept { return bshd_; }
  /// What the caller gets: out, or a tuple of out, lse and scores, those that were asked for.
  nb::object result() const;

 private:
  void read_options(const Arguments& arguments);
  void read_diagonal(PyObject* diagonal);
  void read_window(PyObject* window);
  void read_mask_and_bias(const Arguments& arguments);
  void read_vectors(const Arguments& arguments);
  void read_dropout(const Arguments& arguments);
  void make_outputs(const Arguments& arguments);
  void take_out(PyObject* object, const npy_intp (&shape)[4]);
  TensorView make_output(int rank, const npy_intp* shape, Dtype dtype, nb::object* made);

  PyObject* q_;
  bool bshd_;
  Inputs inputs_;
  nb::object out_, lse_, scores_;
  bool out_is_callers_ = false;
};

/// The layout word: true for BSHD.
bool read_layout(PyObject* object);

/// `policy=` and `backend=` as one policy.
Policy read_policy(const Arguments& arguments);

}  // namespace regard::python
