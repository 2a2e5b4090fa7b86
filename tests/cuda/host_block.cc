#include "tests/cuda/host_block.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace regard::cuda_test {

// ---- shared memory

SharedMemory::SharedMemory(int bytes)
    : data_(static_cast<std::size_t>(bytes)), words_(data_.size() / 4 + 1) {
  reset();
}

void SharedMemory::reset() {
  std::fill(data_.begin(), data_.end(), static_cast<unsigned char>(0xff));
  std::fill(words_.begin(), words_.end(), Word());
  epoch_ = 1;
}

void SharedMemory::fail(const char* what, int thread, int other, int offset) {
  throw HostError("thread " + std::to_string(thread) + " " + what +
                  (other < 0 ? "" : " thread " + std::to_string(other)) + ", byte " +
                  std::to_string(offset) + " of shared memory");
}

void SharedMemory::read(int thread, int offset, int bytes, void* to) {
  const auto who = static_cast<std::int16_t>(thread);
  for (int at = offset / 4; at <= (offset + bytes - 1) / 4; ++at) {
    Word& word = words_[static_cast<std::size_t>(at)];
    if (word.written == 0) fail("reads what nobody wrote", thread, -1, at * 4);
    if (word.written == epoch_ && word.writer != who) {
      fail("reads without a barrier what was written by", thread, word.writer, at * 4);
    }
    word.reader = word.read == epoch_ && word.reader != who ? kMany : who;
    word.read = epoch_;
  }
  std::memcpy(to, data_.data() + offset, static_cast<std::size_t>(bytes));
}

void SharedMemory::write(int thread, int offset, int bytes, const void* from) {
  const auto who = static_cast<std::int16_t>(thread);
  for (int at = offset / 4; at <= (offset + bytes - 1) / 4; ++at) {
    Word& word = words_[static_cast<std::size_t>(at)];
    if (word.written == epoch_ && word.writer != who) {
      fail("writes without a barrier what was written by", thread, word.writer, at * 4);
    }
    if (word.read == epoch_ && word.reader != who) {
      fail("writes without a barrier what was read by", thread, std::max<int>(word.reader, 0),
           at * 4);
    }
    word.writer = who;
    word.written = epoch_;
  }
  std::memcpy(data_.data() + offset, from, static_cast<std::size_t>(bytes));
}

// ---- fibers

namespace {

constexpr std::size_t kStackBytes = 128 * 1024;

/// Stacks that are kept for the next block, each with an unreadable page below.
class Stacks {
 public:
  void* at(int index) {
    while (static_cast<int>(stacks_.size()) <= index) {
      constexpr std::size_t kGuard = 4096;
      void* const mapped = mmap(nullptr, kStackBytes + kGuard, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (mapped == MAP_FAILED || mprotect(mapped, kGuard, PROT_NONE) != 0) {
        throw std::runtime_error("no memory for the stack of a fiber");
      }
      stacks_.push_back(static_cast<char*>(mapped) + kGuard);
    }
    return stacks_[static_cast<std::size_t>(index)];
  }

 private:
  std::vector<void*> stacks_;
};

Stacks& stacks() {
  static Stacks kept;
  return kept;
}

}  // namespace

/// The threads of one block at a time.
class Fibers {
 public:
  using Main = std::function<void(const HostBlock&)>;

  Fibers(int threads, int shared_bytes, const Main& main)
      : memory_(shared_bytes), main_(main), fibers_(static_cast<std::size_t>(threads)) {
    for (int n = 0; n < threads; ++n) order_.push_back(n);
  }

  SharedMemory& memory() { return memory_; }

  void run_block(std::int64_t index, std::int64_t count, Order order, std::uint64_t seed,
                 Counts* counts) {
    counts_ = counts;
    memory_.reset();
    set_order(order, seed);
    for (int n : order_) start(n, HostBlock(this, n, index, count));
    while (true) {
      bool ran = false;
      for (int n : order_) {
        if (fibers_[static_cast<std::size_t>(n)].state != State::kReady) continue;
        resume(n);
        ran = true;
        if (!error_.empty()) throw HostError("block " + std::to_string(index) + ", " + error_);
        release_warp(n / cuda::kWarp);
      }
      if (ran) continue;
      if (all(State::kDone)) break;
      release_block(index);
    }
    ++counts_->blocks;
  }

  void wait(int thread, bool whole_block, std::source_location where) {
    Fiber& fiber = fibers_[static_cast<std::size_t>(thread)];
    fiber.state = whole_block ? State::kAtBarrier : State::kAtShuffle;
    fiber.line = where.line();
    fiber.file = where.file_name();
    leave(thread);
  }

  std::uint64_t exchange(int thread, std::uint64_t bits, int lanes, std::source_location where) {
    Fiber& fiber = fibers_[static_cast<std::size_t>(thread)];
    // Two slots by turns: nobody comes to the second shuffle from here before all have read.
    const int slot = fiber.shuffles++ & 1;
    fiber.sent[slot] = bits;
    wait(thread, false, where);
    return fibers_[static_cast<std::size_t>(thread ^ lanes)].sent[slot];
  }

 private:
  enum class State : std::uint8_t { kReady, kAtBarrier, kAtShuffle, kDone };
  struct Fiber {
    State state = State::kReady;
    bool entered = false;
    unsigned line = 0;
    const char* file = "";
    unsigned shuffles = 0;
    std::uint64_t sent[2] = {};
    HostBlock block{nullptr, 0, 0, 0};
    ucontext_t context;
    jmp_buf jump;
    void* fake_stack = nullptr;
  };

  bool all(State state) const {
    return std::all_of(fibers_.begin(), fibers_.end(),
                       [&](const Fiber& f) { return f.state == state; });
  }

  void set_order(Order order, std::uint64_t seed) {
    std::iota(order_.begin(), order_.end(), 0);
    if (order == Order::kReversed) std::reverse(order_.begin(), order_.end());
    if (order == Order::kShuffled) {
      std::mt19937_64 random(seed);
      std::shuffle(order_.begin(), order_.end(), random);
    }
  }

  void start(int n, const HostBlock& block) {
    Fiber& fiber = fibers_[static_cast<std::size_t>(n)];
    fiber.state = State::kReady;
    fiber.entered = false;
    fiber.shuffles = 0;
    fiber.block = block;
  }

  static Fibers*& current() {
    static Fibers* running = nullptr;
    return running;
  }

  static void entry() {
    Fibers& self = *current();
    const int n = self.running_;
    Fiber& fiber = self.fibers_[static_cast<std::size_t>(n)];
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &self.main_stack_, &self.main_stack_bytes_);
#endif
    try {
      self.main_(fiber.block);
    } catch (const std::exception& error) {
      self.error_ = error.what();
    }
    fiber.state = State::kDone;
    self.leave(n);
  }

  // A fiber is entered by ucontext, later changes are plain jumps: swapcontext calls the kernel
  // twice. AddressSanitizer has to be told of each change and knows ucontext's.
#if defined(__SANITIZE_ADDRESS__)
  void resume(int n) {
    Fiber& fiber = fibers_[static_cast<std::size_t>(n)];
    running_ = n;
    current() = this;
    if (!fiber.entered) make(n);
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, stacks().at(n), kStackBytes);
    swapcontext(&main_context_, &fiber.context);
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
  }
  void leave(int n) {
    Fiber& fiber = fibers_[static_cast<std::size_t>(n)];
    const bool ends = fiber.state == State::kDone;
    __sanitizer_start_switch_fiber(ends ? nullptr : &fiber.fake_stack, main_stack_,
                                   main_stack_bytes_);
    swapcontext(&fiber.context, &main_context_);
    __sanitizer_finish_switch_fiber(fiber.fake_stack, nullptr, nullptr);
  }
  const void* main_stack_ = nullptr;
  std::size_t main_stack_bytes_ = 0;
#else
  void resume(int n) {
    Fiber& fiber = fibers_[static_cast<std::size_t>(n)];
    running_ = n;
    current() = this;
    if (_setjmp(main_jump_) != 0) return;
    if (fiber.entered) _longjmp(fiber.jump, 1);
    make(n);
    setcontext(&fiber.context);
  }
  void leave(int n) {
    if (_setjmp(fibers_[static_cast<std::size_t>(n)].jump) != 0) return;
    _longjmp(main_jump_, 1);
  }
#endif

  void make(int n) {
    Fiber& fiber = fibers_[static_cast<std::size_t>(n)];
    fiber.entered = true;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = stacks().at(n);
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, &Fibers::entry, 0);
  }

  /// Lets the warp go on once all of its threads are at the same shuffle.
  void release_warp(int warp) {
    const std::size_t begin = static_cast<std::size_t>(warp) * cuda::kWarp;
    const std::size_t end = std::min(begin + cuda::kWarp, fibers_.size());
    for (std::size_t n = begin; n < end; ++n) {
      if (fibers_[n].state != State::kAtShuffle) return;
    }
    for (std::size_t n = begin; n < end; ++n) {
      if (fibers_[n].line != fibers_[begin].line || fibers_[n].file != fibers_[begin].file) {
        throw HostError("lanes of a warp are at different shuffles");
      }
    }
    for (std::size_t n = begin; n < end; ++n) fibers_[n].state = State::kReady;
    counts_->shuffles += 1;
  }

  /// Nobody can run: all must be at one barrier.
  void release_block(std::int64_t index) {
    for (std::size_t n = 0; n < fibers_.size(); ++n) {
      const Fiber& fiber = fibers_[n];
      if (fiber.state == State::kAtBarrier && fiber.line == fibers_[0].line &&
          fiber.file == fibers_[0].file) {
        continue;
      }
      const char* const what = fiber.state == State::kDone        ? " has ended"
                               : fiber.state == State::kAtShuffle ? " is at a shuffle"
                                                                  : " is at another barrier";
      throw HostError("block " + std::to_string(index) + ", thread " + std::to_string(n) + what +
                      " while others wait at a barrier or shuffle");
    }
    for (Fiber& fiber : fibers_) fiber.state = State::kReady;
    memory_.pass_barrier();
    ++counts_->barriers;
  }

  SharedMemory memory_;
  const Main& main_;
  std::vector<Fiber> fibers_;
  std::vector<int> order_;
  Counts* counts_ = nullptr;
  std::string error_;
  int running_ = 0;
  ucontext_t main_context_;
  jmp_buf main_jump_;
};

void HostBlock::sync(std::source_location where) const { fibers_->wait(thread_, true, where); }

std::uint64_t HostBlock::exchange(std::uint64_t bits, int lanes,
                                  std::source_location where) const {
  return fibers_->exchange(thread_, bits, lanes, where);
}

SharedMemory* HostBlock::memory() const { return &fibers_->memory(); }

void HostBlock::check_shared(int offset, int bytes, std::size_t align) const {
  if (offset < 0 || offset + bytes > memory()->size() ||
      static_cast<std::size_t>(offset) % align != 0) {
    throw HostError("an array of " + std::to_string(bytes) + " bytes at " +
                    std::to_string(offset) + " in " + std::to_string(memory()->size()) +
                    " bytes of shared memory");
  }
}

void HostRunner::run_grid(int threads, int shared_bytes, std::int64_t tasks,
                          const std::function<void(const HostBlock&)>& thread_main) {
  if (tasks <= 0) return;
  const std::int64_t count = std::min(tasks, most_blocks_);
  std::vector<std::int64_t> blocks(static_cast<std::size_t>(count));
  std::iota(blocks.begin(), blocks.end(), std::int64_t{0});
  if (order_ == Order::kReversed) std::reverse(blocks.begin(), blocks.end());
  if (order_ == Order::kShuffled) {
    std::mt19937_64 random(static_cast<std::uint64_t>(count));
    std::shuffle(blocks.begin(), blocks.end(), random);
  }
  Fibers fibers(threads, shared_bytes, thread_main);
  for (const std::int64_t block : blocks) {
    fibers.run_block(block, count, order_, static_cast<std::uint64_t>(block), &counts_);
  }
  ++counts_.launches;
}

}  // namespace regard::cuda_test
