#pragma once

#include <memory>
#include <optional>

#include "conformance/problem.h"
#include "regard/case.h"
#include "regard/context.h"
#include "regard/request.h"
#include "tools/regard/problem_words.h"
#include "tools/regard/run_gradients.h"
#include "tools/regard/run_input.h"

namespace regard::cli {

/// A problem with all its tensors: a file's, or those of a case, made from its
/// seed.
class ProblemTensors {
 public:
  static Expected<std::unique_ptr<ProblemTensors>> make(const ProblemWords& problem, const Case& c,
                                                        const FileOptions& options);
  const AttentionGradRequest& request() const noexcept { return request_; }

 private:
  Status load(const ProblemWords& problem, const FileOptions& options);

  AttentionGradRequest request_;
  std::optional<conformance::Problem> made_;  // of a case
  std::optional<RunInput> file_;              // of a file, with what goes with it
  RunOutputs outputs_;
  UpstreamGradients upstream_;
  GradOutputs gradients_;
};

/// What execute() and, of a plan with a backward, execute_backward() check of the tensors, shapes
/// of gradients and the values of lengths among it, without computing.
Status check_tensors(const Plan& plan, const AttentionGradRequest& request);

}  // namespace regard::cli
