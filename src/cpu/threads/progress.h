#pragma once

#include <cstdint>

namespace regard {
class Interrupt;
}

// Counts in shared memory, by which the workers of one run divide work whose parts build on one
// another. A worker may wait only for what a worker that runs has taken: then it ends, whether
// workers run side by side or one after another.

namespace regard::cpu {

/// Sets a count; a thread that reads it sees all that was written before.
void set_count(std::int64_t* count, std::int64_t value) noexcept;

/// Adds to a count, which several workers may do at once; what it was before.
std::int64_t add_to_count(std::int64_t* count, std::int64_t difference) noexcept;

/// Takes one of `count` pieces of work; what it was before, none left: 0 or less.
std::int64_t take_from_count(std::int64_t* count) noexcept;

std::int64_t read_count(const std::int64_t* count) noexcept;

/// Returns when a count is at least `value`.
void wait_for_count(const std::int64_t* count, std::int64_t value) noexcept;

/// Whether the call is to end before its time; null: never.
bool is_interrupted(Interrupt* interrupt) noexcept;

/// Leaves the core to others for a while.
void let_others_run() noexcept;

}  // namespace regard::cpu
