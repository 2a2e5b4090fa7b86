#pragma once

#include <memory>

#include "regard/request.h"

namespace regard {

/// A persistent pool for `concurrency` workers at once, the caller's thread being one of them.
/// Threads start with the first run of more than one worker (or start_threads) and end with the
/// pool. Concurrent runs share the threads: each caller runs workers of its own, and idle threads
/// help. A nested run, one in a forked child, and a 65th at once execute their workers one after
/// another on the caller's thread. Tasks must not throw: one that does ends the program.
std::unique_ptr<Executor> make_thread_pool(int concurrency);

/// Changes the pool's concurrency, also while it runs workers or from within one. Threads are added
/// with the next run; surplus threads end after their current worker, without a wait for it here.
void resize_pool(Executor& pool, int concurrency);

/// Starts a pool's threads now, again in a forked child, so that the next run starts none; false
/// when there are none to start: for another executor, or where the system gives none. Never
/// throws.
bool start_threads(Executor& pool) noexcept;

}  // namespace regard
