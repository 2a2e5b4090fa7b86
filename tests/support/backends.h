#pragma once

#include <memory>
#include <string>
#include <vector>

#include "conformance/run.h"
#include "regard/context.h"

namespace regard::test {

inline const BackendRef kMathRef{BackendId::kMath};
inline const BackendRef kEfficientRef{BackendId::kEfficient};

/// A backend forced to one of its units.
struct Forced {
  BackendRef backend;
  Isa isa;
};

/// Every unit of every backend that is built and that this machine can run; of EFFICIENT the first
/// and the last, all of them with REGARD_DEV_EVERY=1. A backend that is built and missing from the
/// table in backends.cc throws: nobody may add one without testing it.
std::vector<Forced> forced_backends();

/// "math_scalar"
std::string name_of(const Forced& forced);

/// A Context of this machine, but with that ISA, that concurrency and no REGARD_ variables.
std::unique_ptr<Context> make_context(Isa isa, int concurrency = 2);

/// Plans `request` on the forced backend alone; throws when it cannot or another unit was planned.
Plan plan_forced(Context& context, const AttentionRequest& request, const Forced& forced);

/// Plans and executes with exactly the workspace stated, filled with `pattern`; throws on failure.
void run_forced(Context& context, const AttentionRequest& request, const Forced& forced,
                Executor* executor = nullptr, unsigned char pattern = 0xff);

/// What the forced backend states that it rounds probabilities to, in the forward of `request`.
Dtype claimed_probs(const Context& context, const AttentionRequest& request, const Forced& forced);

/// The instruction set of a forced backend's backward: pairs of bf16 are FLASH's alone there.
Isa backward_isa(const Forced& forced, const AttentionParams& params);

/// Checks what run_prepared() reports of a unit: that the forced one ran, and in a case with `grad`
/// its backward. "" when so.
std::string check_unit(const conformance::Report& report, const Forced& forced, const Case& c);

}  // namespace regard::test
