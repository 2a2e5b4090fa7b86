#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "conformance/run.h"
#include "oracle/number.h"
#include "tests/cuda/host_backends.h"
#include "tests/support/tensors.h"

namespace regard::cuda_test {

/// Runs requests on the CUDA backends' kernels, on the host.
class Schedules : public testing::Test {
 protected:
  Schedules() : backends_(make_host_backends()) {}
  ~Schedules() override { schedule() = {}; }

  static conformance::Problem problem_of(const std::string& text) {
    return conformance::make_problem(parse_case(text).value(),
                                     {conformance::Guard::kCanaries, /*dense=*/true});
  }

  /// Forward and, where the case has gradients, backward; every output's bytes.
  std::vector<unsigned char> bytes_of(const HostBackend& backend, conformance::Problem& problem) {
    problem.reset_outputs();
    run(backend, problem.request());
    if (problem.request().saved.kind != SavedContext::Kind::kNone) {
      problem.begin_backward();
      run_backward(backend, problem.request());
    }
    return problem.output_bytes();
  }

  void run_backward(const HostBackend& backend, const AttentionGradRequest& request) {
    const Plan made = plan_of(backend, request);
    std::vector<unsigned char> memory;
    const Status status =
        execute_backward(made, request, request, launch(made.backward_workspace_bytes(), &memory));
    EXPECT_TRUE(status.ok()) << status.to_string();
  }

  Plan plan_of(const HostBackend& backend, const AttentionRequest& request) {
    Policy policy;
    policy.only = std::vector<BackendRef>{backend.ref};
    const Expected<Plan> made = plan(*backend.context, describe(request).value(), policy);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return *made;
  }

  void run(const HostBackend& backend, const AttentionRequest& request) {
    const Plan made = plan_of(backend, request);
    std::vector<unsigned char> memory;
    const Status status = execute(made, request, launch(made.workspace_bytes(), &memory));
    EXPECT_TRUE(status.ok()) << status.to_string();
  }

  static void fill(const TensorView& view, double value) {
    conformance::for_each_element(view, [&](const std::int64_t(&)[4], unsigned char* element) {
      oracle::encode(value, element, view.dtype);
    });
  }
  static double first_of(const TensorView& view) {
    return static_cast<double>(
        oracle::decode(static_cast<const unsigned char*>(view.data), view.dtype));
  }

  /// The backends that have the problem, at least so many.
  std::vector<HostBackend> serving(const conformance::Problem& problem, std::size_t min = 2) const {
    const AttentionParams params = describe(problem.request()).value();
    std::vector<HostBackend> all;
    for (const HostBackend& backend : backends_) {
      if (backend.serves(params)) all.push_back(backend);
    }
    EXPECT_GE(all.size(), min);
    return all;
  }

  static std::string name_of(const HostBackend& backend) { return to_string(backend.ref); }

  static Launch launch(std::int64_t bytes, std::vector<unsigned char>* memory) {
    memory->assign(static_cast<std::size_t>(bytes) + 64, 0xff);
    const auto address = reinterpret_cast<std::uintptr_t>(memory->data());
    Launch launch;
    launch.workspace = {memory->data() + (64 - address % 64) % 64, static_cast<std::size_t>(bytes)};
    return launch;
  }

  std::vector<HostBackend> backends_;
  test::Tensors tensors_;
};

}  // namespace regard::cuda_test
