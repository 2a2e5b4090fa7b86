#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "conformance/memory.h"
#include "regard/case.h"
#include "regard/request.h"

// A case made real: tensors with the case's layouts and data, in memory that notices wrong access.

namespace regard::conformance {

struct ProblemOptions {
  Guard guard = Guard::kCanaries;
  bool dense = false;  // no padding and no expansion: for comparing two layouts of the same values
};

/// A case's tensors and the request over them. Values depend on the seed and a tensor's logical
/// indices alone, never on its strides (but expanded dimensions repeat one slice).
class Problem {
 public:
  const Case& source() const noexcept { return case_; }
  /// Of a case without `grad` the forward's fields alone are set. With it: d_out, the saved
  /// statistics (saved_stats or lse, whichever the case has), d_lse and delta where the case has
  /// them, and from the seed the gradients that are requested.
  const AttentionGradRequest& request() const noexcept { return request_; }

  /// All memory that the tensors lie in, with its guards.
  std::vector<MemoryRange> memory() const;

  /// Fills outputs with NaN bytes, as fresh memory is.
  void reset_outputs();
  /// From here on what the forward wrote (out, lse, saved_stats, scores_out) is input; delta, where
  /// the case has one, is taken from out. reset_outputs() ends it.
  void begin_backward();
  /// What was written that must not be: bytes of inputs, between the rows of outputs, round any
  /// tensor. Empty when nothing was.
  std::string check_memory() const;
  /// Every element of every output, in logical order, as bytes: for comparing runs.
  std::vector<unsigned char> output_bytes() const;

 private:
  friend class ProblemBuilder;
  struct Tensor {
    const char* name;
    TensorView view;
    std::size_t block;  // index into blocks_
    bool is_output;
    bool of_backward;  // a gradient
  };
  bool is_output(const Tensor& tensor) const {
    return tensor.is_output && (tensor.of_backward || !backward_begun_);
  }
  /// What a call that appends leaves in k or v.
  void append_rows(const Tensor& cache, std::vector<unsigned char>* bytes) const;

  Case case_;
  AttentionGradRequest request_;
  std::vector<Block> blocks_;
  std::vector<std::vector<unsigned char>> before_;  // a block's bytes before the first run
  std::vector<Tensor> tensors_;
  bool backward_begun_ = false;
};

Problem make_problem(const Case& c, const ProblemOptions& options = {});

/// Calls f(const std::int64_t (&index)[4], unsigned char* element) for every element in logical
/// order; indices past the rank are 0. Of u4 `element` is the byte that two share.
template <class F>
void for_each_element(const TensorView& view, F&& f) {
  if (view.num_elements() == 0) return;  // the other extents may be huge
  const bool in_pairs = view.dtype == Dtype::kU4;
  const TensorView bytes = as_bytes(view);
  std::int64_t extent[kMaxRank], stride[kMaxRank];
  for (int dim = 0; dim < kMaxRank; ++dim) {
    extent[dim] = dim < view.rank ? view.shape[dim] : 1;
    stride[dim] = dim < view.rank ? bytes.strides[dim] * size_of(bytes.dtype) : 0;
  }
  auto* base = static_cast<unsigned char*>(view.data);
  std::int64_t index[kMaxRank];
  for (index[0] = 0; index[0] < extent[0]; ++index[0]) {
    for (index[1] = 0; index[1] < extent[1]; ++index[1]) {
      for (index[2] = 0; index[2] < extent[2]; ++index[2]) {
        unsigned char* row =
            base + index[0] * stride[0] + index[1] * stride[1] + index[2] * stride[2];
        for (index[3] = 0; index[3] < extent[3]; ++index[3]) {
          f(index, row + (in_pairs ? index[3] / 2 : index[3] * stride[3]));
        }
      }
    }
  }
}

}  // namespace regard::conformance
