#include "bench/workers/simulated_workers.h"

#include <time.h>

#include <algorithm>
#include <cmath>

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
  const double start = thread_seconds();
  task_ = task;
  state_ = state;
  slots_ = std::vector<Slot>(static_cast<std::size_t>(slots));
  while (stacks_.size() < slots_.size()) {
    stacks_.push_back(std::make_unique<char[]>(kStackBytes));
  }
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    getcontext(&slot.context);
    slot.context.uc_stack.ss_sp = stacks_[i].get();
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
  slots_.clear();
  longest_ += longest;
  inside_ += thread_seconds() - start;
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
  slot.seconds += thread_seconds() - self.resumed_;
  slot.ended = true;
}

void SimulatedWorkers::at_point(cpu::SlotPoint point) {
  if (active != nullptr && !active->slots_.empty()) active->leave(point);
}

void SimulatedWorkers::leave(cpu::SlotPoint point) {
  Slot& slot = slots_[static_cast<std::size_t>(current_)];
  slot.seconds += thread_seconds() - resumed_;
  slot.waits = point == cpu::SlotPoint::kWait;
  if (slot.waits) {
    // What it waits for comes from a slot that computes: none does before the earliest of those.
    double next = HUGE_VAL;
    for (const Slot& other : slots_) {
      if (!other.ended && !other.waits) next = std::min(next, other.seconds);
    }
    if (next == HUGE_VAL) next = slot.seconds;
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
