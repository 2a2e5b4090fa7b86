#pragma once

#include "regard/context.h"

namespace regard::python {

/// The process's Context: made at the first use, never destroyed. A forked child makes its own, for
/// another thread of its parent may have held a lock of the first at the moment of the fork. Needs
/// the GIL.
Context& process_context();

/// The concurrency of `context`, the process's, and of those that forked children make. Does not
/// need the GIL.
Status set_process_concurrency(Context& context, std::int32_t concurrency);

}  // namespace regard::python
