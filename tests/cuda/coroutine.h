#pragma once

#include <cstddef>

#if defined(__SANITIZE_THREAD__)
/// Of a function whose own accesses ThreadSanitizer does not see: free, where Unwatched is not.
#define REGARD_UNWATCHED __attribute__((no_sanitize("thread")))
#else
#define REGARD_UNWATCHED
#endif

// Stacks of their own that one thread of the host changes between, known to the sanitizers.
// ThreadSanitizer sees races between them, though only one of them runs at a time.

namespace regard::cuda_test {

/// What ThreadSanitizer takes for a thread, which nothing orders with another but what Moment says:
/// it comes after what its maker has done. Costly there, nothing elsewhere.
class Strand {
 public:
  Strand();
  ~Strand();
  Strand(const Strand&) = delete;
  void operator=(const Strand&) = delete;
  /// What comes next comes after what the strand has done.
  void join() const;

 private:
  friend class Coroutine;
  [[maybe_unused]] void* fiber_ = nullptr;  // of ThreadSanitizer alone, as the next ones
  [[maybe_unused]] long number_ = 0;        // of all that were made
};

class Coroutine {
 public:
  using Entry = void (*)(void* argument);

  Coroutine() = default;
  ~Coroutine();
  Coroutine(const Coroutine&) = delete;
  void operator=(const Coroutine&) = delete;

  /// The next resume() enters entry(argument), which must never return, on stack number `stack`, as
  /// part of the strand. Whatever ran there before must be done.
  void start(int stack, const Strand& strand, Entry entry, void* argument);
  /// From outside: goes on where the coroutine has left.
  void resume();
  /// From inside: goes on behind resume().
  void leave();

 private:
  struct Context;
  Context* context_ = nullptr;
};

/// What one does before reached() comes before what another does after passed().
class Moment {
 public:
  void reached();
  void passed();

 private:
  [[maybe_unused]] char at_ = 0;
};

/// While it lives, ThreadSanitizer looks away from all that is done. Stores the stack each time.
class Unwatched {
 public:
#if defined(__SANITIZE_THREAD__)
  Unwatched();
  ~Unwatched();
#else
  Unwatched() {}
#endif
  Unwatched(const Unwatched&) = delete;
  void operator=(const Unwatched&) = delete;
};

}  // namespace regard::cuda_test
