#include "bench/workers/simulated_workers.h"

#include <time.h>

#include <algorithm>

namespace regard::bench {
namespace {

constexpr std::size_t kStackBytes = 1 << 20;
constexpr double kTick = 1e-9;

SimulatedWorkers* active = nullptr;

}  // namespace

double thread_seconds() noexcept {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

SimulatedWorkers::SimulatedWorkers() {
  active = this;
  cpu::slot_hook.store(at_point);
}

SimulatedWorkers::~SimulatedWorkers() {
  cpu::slot_hook.store(nullptr);
  active = nullptr;
}

void SimulatedWorkers::run(int slots, Task task, void* state) {
  task_ = task;
  state_ = state;
  slots_ = std::vector<Slot>(static_cast<std::size_t>(slots));
  for (Slot& slot : slots_) {
    slot.stack = std::make_unique<char[]>(kStackBytes);
    getcontext(&slot.context);
    slot.context.uc_stack.ss_sp = slot.stack.get();
    slot.context.uc_stack.ss_size = kStackBytes;
    slot.context.uc_link = &scheduler_;
    makecontext(&slot.context, begin_slot, 0);
  }
  while (Slot* const slot = earliest()) {
    current_ = static_cast<int>(slot - slots_.data());
    resumed_ = thread_seconds();
    swapcontext(&scheduler_, &slot->context);
  }
  double longest = 0.0;
  for (const Slot& slot : slots_) longest = std::max(longest, slot.seconds);
  longest_ += longest;
  slots_.clear();
}

/// The slot that goes on: null when all have ended.
SimulatedWorkers::Slot* SimulatedWorkers::earliest() {
  Slot* found = nullptr;
  for (Slot& slot : slots_) {
    if (!slot.ended && (found == nullptr || slot.seconds < found->seconds)) found = &slot;
  }
  return found;
}

void SimulatedWorkers::begin_slot() {
  SimulatedWorkers& self = *active;
  const int index = self.current_;
  self.task_(self.state_, index);
  Slot& slot = self.slots_[static_cast<std::size_t>(index)];
  const double spent = thread_seconds() - self.resumed_;
  slot.seconds += spent;
  self.total_ += spent;
  slot.ended = true;
}

void SimulatedWorkers::at_point(cpu::SlotPoint point) {
  if (active != nullptr && !active->slots_.empty()) active->leave(point);
}

void SimulatedWorkers::leave(cpu::SlotPoint point) {
  Slot& slot = slots_[static_cast<std::size_t>(current_)];
  const double spent = thread_seconds() - resumed_;
  total_ += spent;
  if (point == cpu::SlotPoint::kTake) {
    slot.seconds += spent;
  } else {
    // Nothing changes before the earliest of the others has gone on.
    double next = slot.seconds;
    bool found = false;
    for (const Slot& other : slots_) {
      if (&other == &slot || other.ended) continue;
      next = found ? std::min(next, other.seconds) : other.seconds;
      found = true;
    }
    slot.seconds = std::max(slot.seconds, next) + kTick;
  }
  Slot* const next = earliest();
  if (next != &slot) {
    current_ = static_cast<int>(next - slots_.data());
    resumed_ = thread_seconds();
    swapcontext(&slot.context, &next->context);
  }
  resumed_ = thread_seconds();
}

}  // namespace regard::bench
