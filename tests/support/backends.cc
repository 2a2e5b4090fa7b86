#include "tests/support/backends.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "tests/support/scratch.h"

namespace regard::test {
namespace {

struct Units {
  BackendId id;
  std::vector<Isa> isas;  // one translation unit each
};

const std::vector<Units>& units() {
  static const std::vector<Isa> tiled = {Isa::kScalar,  Isa::kAvx2, Isa::kAvx512,  Isa::kAvx512Bf16,
                                         Isa::kAmxBf16, Isa::kNeon, Isa::kNeonBf16};
  static const std::vector<Units> all = {
      {BackendId::kMath, {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kNeon}},
      {BackendId::kEfficient, tiled},
      {BackendId::kFlash, tiled},
  };
  return all;
}

}  // namespace

namespace {
std::vector<Forced> find_forced_backends() {
  const std::unique_ptr<Context> context = make_context(read_env().isa_available);
  std::vector<Forced> forced;
  for (const BackendInfo& info : context->backends()) {
    if (!info.built || info.device != DeviceType::kCpu) continue;
    const auto found = std::find_if(units().begin(), units().end(),
                                    [&](const Units& u) { return u.id == info.ref.id; });
    if (found == units().end()) {
      throw std::logic_error(to_string(info.ref) + " is built, but tests do not know its units");
    }
    std::vector<Isa> isas;
    std::copy_if(found->isas.begin(), found->isas.end(), std::back_inserter(isas),
                 [&](Isa isa) { return context->env().isa_available.includes(isa); });
    // EFFICIENT's units are FLASH's under other numbers, and FLASH runs on each of them.
    const bool takes_ends =
        info.ref == kEfficientRef && std::getenv("REGARD_DEV_EVERY") == nullptr && isas.size() > 2;
    if (takes_ends) isas = {isas.front(), isas.back()};
    for (const Isa isa : isas) forced.push_back({info.ref, isa});
  }
  return forced;
}
}  // namespace

std::vector<Forced> forced_backends() {
  static const std::vector<Forced> forced = find_forced_backends();
  return forced;
}

std::string name_of(const Forced& forced) {
  return to_string(forced.backend) + "_" + to_string(forced.isa);
}

std::unique_ptr<Context> make_context(Isa isa, int concurrency) {
  Env env = read_env();
  env.isa = isa;
  env.concurrency = concurrency;
  for (EnvVariable& v : env.variables) v = {v.name, "", false, "", v.meaning};
  return std::make_unique<Context>(std::move(env));
}

Plan plan_forced(Context& context, const AttentionRequest& request, const Forced& forced) {
  Policy policy;
  policy.only = std::vector<BackendRef>{forced.backend};
  Plan made = plan_for(context, request, policy);
  if (made.backend() != forced.backend || made.kernel().isa != forced.isa) {
    throw std::logic_error("forced " + name_of(forced) + ", planned " + made.to_string());
  }
  return made;
}

void run_forced(Context& context, const AttentionRequest& request, const Forced& forced,
                Executor* executor, unsigned char pattern) {
  const Plan made = plan_forced(context, request, forced);
  Scratch scratch(made.workspace_bytes(), pattern);
  scratch.launch.executor = executor;
  check(execute(made, request, scratch.launch));
  if (!scratch.intact()) throw std::logic_error("bytes outside of the workspace were written");
}

Dtype claimed_probs(const Context& context, const AttentionRequest& request, const Forced& forced) {
  KernelPlan kernel;
  kernel.isa = forced.isa;
  const AttentionParams params = describe(request).value();
  return conformance::claimed_probs(context, forced.backend, params, kernel, &BackendInfo::forward);
}

Isa backward_isa(const Forced& forced, const AttentionParams& params) {
  const bool pairs = forced.backend.id == BackendId::kFlash && params.dtype_q == Dtype::kBf16 &&
                     params.dtype_k == Dtype::kBf16 && params.dtype_out == Dtype::kBf16 &&
                     !params.features.has(Feature::kDescales);
  const bool has_function = params.features.has(Feature::kScoreFunction) ||
                            params.features.has(Feature::kScoreCallback) ||
                            params.features.has(Feature::kMaskFunction);
  const bool fills_registers = std::min(params.head_dim_qk, params.head_dim_v) >= 16;
  const bool multiplies = forced.isa != Isa::kAmxBf16 || (fills_registers && !has_function);
  if (pairs && multiplies) return forced.isa;
  return isa_without(isa_without(forced.isa, Isa::kAvx512Bf16), Isa::kNeonBf16);
}

std::string check_unit(const conformance::Report& report, const Forced& forced, const Case& c) {
  if (report.outcome != conformance::Outcome::kPassed) return "";
  const std::string text = to_string(c) + ": forced " + name_of(forced) + ", ";
  if (report.isa != forced.isa) {
    return text + "ran " + report.kernel + " (" + to_string(report.isa) + ")";
  }
  const bool has_backward = c.params.features.has(Feature::kNeedsGrad);
  const Isa backward = backward_isa(forced, c.params);
  if (!has_backward || report.backward_isa == backward) return "";
  return text + "its backward on " + to_string(report.backward_isa) + ", expected " +
         to_string(backward);
}

}  // namespace regard::test
