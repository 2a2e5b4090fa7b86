#pragma once

#include <memory>
#include <string>
#include <vector>

#include "regard/context.h"
#include "regard/cost.h"
#include "regard/padding.h"
#include "regard/params.h"
#include "regard/request.h"
#include "regard/status.h"

// Which path computes a call of padded tensors.

namespace regard {

/// The tensors of a call with what describes them; `where` is the name of its function.
struct PaddedProblem {
  const char* where;
  const AttentionRequest& request;
  const AttentionParams& params;
  const PaddedSequences& sequences;
};

/// The paths that can compute a call, and the one that it takes.
struct PathChoice {
  std::vector<PathPrediction> paths;
  PaddingPath path = PaddingPath::kLengths;
};

/// What a Context's calls under a policy are predicted with.
std::shared_ptr<const CostModel> padded_costs(Context& context, const Policy& policy);

/// Refuses what the Lengths state already, what no path computes, and lengths of other tensors.
Status check_padded(const PaddedProblem& problem);

/// Refuses a workspace over the padded tensors, which the call of copies would not notice.
Status check_padded_workspace(const char* where, const Launch& launch, const Buffers& buffers,
                              const GradBuffers* gradients = nullptr);

/// By the sequences' policy. The problem was checked.
Expected<PathChoice> choose_padded_path(const PaddedProblem& problem, const CostModel& costs);

/// The path of the forward that was planned so, or why it is not one of this call's.
Expected<PaddingPath> planned_path(const PaddedProblem& problem, const AttentionParams& planned);

/// The problem that the path makes of the call.
AttentionParams params_of_path(const PaddedProblem& problem, PaddingPath path);

}  // namespace regard
