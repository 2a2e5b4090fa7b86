#pragma once

#include "regard/context.h"

namespace regard::conformance {

/// At most 50 cases, a second in all, for register_backend(), and where the candidate offers a
/// backward at most 25 with gradients: each is bent by the candidate's own refusals' fixes until it
/// claims it, then MATH and the candidate run it and are held to the same bar. The Status of a
/// failure is the failing case's text.
const ConformanceSuite& small_suite();

}  // namespace regard::conformance
