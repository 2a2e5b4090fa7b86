#pragma once

#include <optional>

#include "regard/interrupt.h"
#include "regard/request.h"

namespace regard::python {

/// What ends a long call on the main thread where one of Python's signal handlers raises; null for
/// other calls. It is made in `place`, which must live as long as the call.
Interrupt* interrupt_by_signals(const AttentionRequest& request, std::optional<Interrupt>* place);

}  // namespace regard::python
