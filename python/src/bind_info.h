#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>

#include "regard/machine_rates.h"

namespace regard::python {

/// Facts: backends, environment, counters.
/// The machine's rates on so many threads, or on those of a call; measures where it must.
MachineRates rates_of_machine(std::optional<std::int32_t> threads = {});

void bind_info(nanobind::module_& module);

}  // namespace regard::python
