#include "tools/regard/problem_tensors.h"

#include <utility>

namespace regard::cli {

Expected<std::unique_ptr<ProblemTensors>> ProblemTensors::make(const ProblemWords& problem,
                                                               const Case& c,
                                                               const FileOptions& options) {
  auto tensors = std::make_unique<ProblemTensors>();
  if (problem.is_file) {
    if (Status status = tensors->load(problem, options); !status) return status;
    return tensors;
  }
  const conformance::ProblemOptions as_frameworks{conformance::Guard::kNone, /*dense=*/true};
  tensors->made_.emplace(conformance::make_problem(c, as_frameworks));
  tensors->request_ = tensors->made_->request();
  return tensors;
}

Status ProblemTensors::load(const ProblemWords& problem, const FileOptions& options) {
  Expected<RunInput> file = load_input(problem.text, joined(options.words), options.grad);
  if (!file) return file.status();
  file_.emplace(*std::move(file));
  Expected<RunOutputs> outputs = file_->make_outputs();
  if (!outputs) return outputs.status();
  outputs_ = *std::move(outputs);
  if (!file_->grad) {
    static_cast<AttentionRequest&>(request_) = file_->with(outputs_);
    return {};
  }
  Expected<UpstreamGradients> upstream = load_upstream(*file_);
  if (!upstream) return upstream.status();
  upstream_ = *std::move(upstream);
  Expected<GradOutputs> gradients = make_grad_outputs(*file_);
  if (!gradients) return gradients.status();
  gradients_ = *std::move(gradients);
  request_ = grad_request(*file_, upstream_, outputs_, gradients_);
  return {};
}

Status check_tensors(const Plan& plan, const AttentionGradRequest& request) {
  if (Status status = prepare(plan, request); !status) return status;
  if (Status status = check_device_data(request); !status) return status;
  if (!plan.params().features.has(Feature::kNeedsGrad)) return {};
  return prepare_backward(plan, request, request);
}

}  // namespace regard::cli
