#pragma once

#include <string>
#include <vector>

#include "regard/case.h"
#include "regard/request.h"
#include "regard/status.h"
#include "tools/regard/owned_tensor.h"
#include "tools/regard/safetensors.h"

namespace regard::cli {

/// The outputs of one backend on one problem.
struct RunOutputs {
  OwnedTensor out;     // as q lies in the file: [B,H,S,D], or [B,S,H,D] with layout=bshd
  OwnedTensor lse;     // [B,H,S]
  OwnedTensor saved;   // [B,H,Sq,2] with --grad; otherwise without a shape
  OwnedTensor scores;  // [B,H,Sq,Skv] where the options request scores; otherwise without a shape
};

/// A file's problem: its tensors as a request (without outputs) and as a case.
struct RunInput {
  safetensors::MappedFile file;
  AttentionRequest request;
  Case c;
  bool bshd = false;  // the file stores [B,S,H,D]
  bool grad = false;  // --grad: the forward of a pair, with saved_stats

  /// Fresh outputs of the problem.
  Expected<RunOutputs> make_outputs() const;
  /// The request with these outputs.
  AttentionRequest with(const RunOutputs& outputs) const;
};

/// Maps `path`, takes tensors by their names in Buffers and options from the file's metadata
/// `regard.options`, changed word by word by `words`. Sizes and dtypes come from the tensors; an
/// option that differs is an error. `grad` makes it a problem with a backward.
Expected<RunInput> load_input(const std::string& path, const std::string& words, bool grad);

}  // namespace regard::cli
