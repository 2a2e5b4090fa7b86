#pragma once

#include "regard/context.h"

namespace regard::python {

// The log's lines go to Python's logger "regard". The sink keeps each line for the thread whose
// call wrote it, and that thread hands it over after the call, when it has the GIL again: a thread
// that writes a line never waits for the GIL, and none is written while the interpreter ends.

/// Gives the Context its sink, and the logger the level that REGARD_LOG states. Needs the GIL.
void connect_log(Context& context);

/// Has the Context log what the logger takes now: its level may have changed. Needs the GIL.
void follow_logger(Context& context);

/// Hands over the lines of this thread's calls. Needs the GIL.
void flush_log() noexcept;

}  // namespace regard::python
