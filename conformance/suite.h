#pragma once

#include <memory>

#include "conformance/run.h"
#include "regard/context.h"

namespace regard::conformance {

/// At most 60 cases, a second in all, for register_backend(), and where the candidate offers a
/// backward at most 30 with gradients: each is bent by the candidate's own refusals' fixes until it
/// claims it, then MATH and the candidate run it and are held to the same tolerance. The Status of
/// a failure is the failing case's text. A candidate that serves CUDA devices is refused by name:
/// this one has no device to run it on.
const ConformanceSuite& small_suite();

/// The same cases on the candidate's own type of device, brought there by `device_runner`, which
/// must outlive the suite. A candidate for CPUs runs on the host.
std::unique_ptr<ConformanceSuite> small_suite(DeviceRunner& device_runner);

}  // namespace regard::conformance
