#include "tests/cuda/coroutine.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <stdexcept>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

// ucontext enters a coroutine and changes between them. swapcontext calls the kernel twice, so
// where the processor's own way is known, and nobody has to be told, that is taken.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define REGARD_SWITCH_STACK
// Saves the registers that a callee must keep on this stack and takes them from another.
extern "C" void regard_switch_stack(void** from, void* to);
asm(R"(
  .pushsection .text
  .type regard_switch_stack, @function
regard_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size regard_switch_stack, . - regard_switch_stack
  .popsection
)");
#endif

namespace regard::cuda_test {
namespace {

#if defined(REGARD_SWITCH_STACK)
/// A stack whose first change to it enters `entry`.
void* new_stack(void* base, std::size_t bytes, void (*entry)()) {
  auto* top = reinterpret_cast<void**>(static_cast<char*>(base) + bytes);
  *--top = nullptr;  // where entry would return to; keeps the stack aligned as after a call
  *--top = reinterpret_cast<void*>(entry);
  for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
  return top;
}
#endif

constexpr std::size_t kStackBytes = 128 * 1024;

/// Stacks that are kept for the next coroutine, each with an unreadable page below.
class Stacks {
 public:
  void* at(int index) {
    while (static_cast<int>(stacks_.size()) <= index) {
      constexpr std::size_t kGuard = 4096;
      void* const mapped = map(nullptr, kStackBytes + kGuard, 0);
      if (mprotect(mapped, kGuard, PROT_NONE) != 0) fail();
      stacks_.push_back(static_cast<char*>(mapped) + kGuard);
    }
    return stacks_[static_cast<std::size_t>(index)];
  }
  /// Has ThreadSanitizer forget what was done there.
  void forget(int index) { map(at(index), kStackBytes, MAP_FIXED); }

 private:
  [[noreturn]] static void fail() {
    throw std::runtime_error("no memory for the stack of a coroutine");
  }
  static void* map(void* at, std::size_t bytes, int flags) {
    void* const mapped = mmap(at, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
    if (mapped == MAP_FAILED) fail();
    return mapped;
  }

  std::vector<void*> stacks_;
};

Stacks& stacks() {
  static Stacks kept;
  return kept;
}

}  // namespace

struct Coroutine::Context {
  Entry entry = nullptr;
  void* argument = nullptr;
#if defined(REGARD_SWITCH_STACK)
  void* stack = nullptr;  // what its registers are saved on
  void* outside = nullptr;
#else
  void* stack = nullptr;
  ucontext_t inside, outside;
#endif
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  const void* outer_stack = nullptr;
  std::size_t outer_bytes = 0;
#endif
#if defined(__SANITIZE_THREAD__)
  void* fiber = nullptr;  // the strand's
  long strand = 0;
  void* outer_fiber = nullptr;
#endif

  static Context*& resumed() {
    static Context* now = nullptr;
    return now;
  }

  REGARD_UNWATCHED static void enter() {
    Context* const self = resumed();
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &self->outer_stack, &self->outer_bytes);
#endif
    self->entry(self->argument);
  }
};

Coroutine::~Coroutine() { delete context_; }

void Coroutine::start(int stack, const Strand& strand, Entry entry, void* argument) {
  if (context_ == nullptr) context_ = new Context;
  context_->entry = entry;
  context_->argument = argument;
  void* const base = stacks().at(stack);
#if defined(REGARD_SWITCH_STACK)
  context_->stack = new_stack(base, kStackBytes, &Context::enter);
#else
  context_->stack = base;
  getcontext(&context_->inside);
  context_->inside.uc_stack.ss_sp = base;
  context_->inside.uc_stack.ss_size = kStackBytes;
  context_->inside.uc_link = nullptr;
  makecontext(&context_->inside, &Context::enter, 0);
#endif
#if defined(__SANITIZE_THREAD__)
  if (context_->strand != strand.number_) stacks().forget(stack);
  context_->strand = strand.number_;
  context_->fiber = strand.fiber_;
#else
  static_cast<void>(strand);
#endif
}

REGARD_UNWATCHED void Coroutine::resume() {
  Context& c = *context_;
  Context::resumed() = context_;
#if defined(REGARD_SWITCH_STACK)
  regard_switch_stack(&c.outside, c.stack);
#else
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, c.stack, kStackBytes);
#endif
#if defined(__SANITIZE_THREAD__)
  c.outer_fiber = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(c.fiber, __tsan_switch_to_fiber_no_sync);
#endif
  swapcontext(&c.outside, &c.inside);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
#endif
}

REGARD_UNWATCHED void Coroutine::leave() {
  Context& c = *context_;
#if defined(REGARD_SWITCH_STACK)
  regard_switch_stack(&c.stack, c.outside);
#else
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&c.fake_stack, c.outer_stack, c.outer_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(c.outer_fiber, __tsan_switch_to_fiber_no_sync);
#endif
  swapcontext(&c.inside, &c.outside);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(c.fake_stack, nullptr, nullptr);
#endif
#endif
}

#if defined(__SANITIZE_THREAD__)

Strand::Strand() : fiber_(__tsan_create_fiber(0)) {
  static long made = 0;
  number_ = ++made;
}
Strand::~Strand() { __tsan_destroy_fiber(fiber_); }

REGARD_UNWATCHED void Strand::join() const {
  void* const outside = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(fiber_, __tsan_switch_to_fiber_no_sync);
  __tsan_switch_to_fiber(outside, 0);
}

void Moment::reached() { __tsan_release(&at_); }
void Moment::passed() { __tsan_acquire(&at_); }

Unwatched::Unwatched() {
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}

Unwatched::~Unwatched() {
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}

#else

Strand::Strand() = default;
Strand::~Strand() = default;
void Strand::join() const {}

void Moment::reached() {}
void Moment::passed() {}

#endif

}  // namespace regard::cuda_test
