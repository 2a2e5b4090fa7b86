#include "tests/cuda/host_block.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <utility>

#include "tests/cuda/coroutine.h"
#include "tests/cuda/tensor_core.h"

namespace regard::cuda_test {

// ---- shared memory

SharedMemory::SharedMemory(int bytes) : data_(static_cast<std::size_t>(bytes)) { reset(); }

void SharedMemory::reset() {
  data_ = std::vector<unsigned char>(data_.size(), 0xff);
  words_ = std::make_unique<Word[]>(data_.size() / 4 + 1);
  epoch_ = 1;
}

namespace {

std::string in_shared(int thread, const std::string& what, int offset) {
  return "thread " + std::to_string(thread) + " " + what + ", byte " + std::to_string(offset) +
         " of shared memory";
}

}  // namespace

void SharedMemory::fail_read(int thread, const Word& word, int offset) const {
  if (word.written == 0) throw HostError(in_shared(thread, "reads what nobody wrote", offset));
  const std::string other = std::to_string(word.writer);
  throw HostError(
      in_shared(thread, "reads without a barrier what thread " + other + " wrote", offset));
}

void SharedMemory::fail_write(int thread, const Word& word, int offset) const {
  const bool written = word.written == epoch_ && word.writer != thread;
  throw HostError(in_shared(
      thread,
      std::string("writes without a barrier what another thread ") + (written ? "wrote" : "read"),
      offset));
}

// ---- fibers

/// What copy_async() copies: 16 bytes, or the first 4.
struct Chunk {
  std::uint64_t word[2] = {};
  int bytes = 0;
};

/// A lane's elements of both matrices that a tensor core multiplies, by register.
struct Operands {
  double left[4][2], right[2][2];
};

namespace {

/// A thread's in every block: one costs a millisecond under ThreadSanitizer.
const Strand& strand_of_thread(int thread) {
  static std::vector<std::unique_ptr<Strand>> kept;
  while (static_cast<int>(kept.size()) <= thread) kept.push_back(std::make_unique<Strand>());
  return *kept[static_cast<std::size_t>(thread)];
}

}  // namespace

/// The threads of one block at a time.
class Fibers {
 public:
  using Main = std::function<void(const HostBlock&)>;

  Fibers(int threads, int shared_bytes, Races races, const Main& main, BlockMachine* machine)
      : memory_(shared_bytes),
        machine_(machine),
        races_(races),
        main_(main),
        fibers_(static_cast<std::size_t>(threads)),
        copies_(static_cast<std::size_t>(threads)),
        operands_(static_cast<std::size_t>(threads)),
        at_shuffle_(static_cast<std::size_t>(threads / cuda::kWarp)) {
    if (threads % cuda::kWarp != 0) throw HostError("a block of no whole warps");
    for (int n = 0; n < threads; ++n) order_.push_back(n);
  }
  /// What comes next comes after all that the grid did.
  ~Fibers() { end_->passed(); }
  Fibers(const Fibers&) = delete;
  void operator=(const Fibers&) = delete;

  SharedMemory& memory() { return memory_; }

  void run_block(std::int64_t index, std::int64_t count, Order order, std::uint64_t seed,
                 Counts* counts) {
    const Unwatched unwatched;
    counts_ = counts;
    memory_.reset();
    if (machine_ != nullptr) machine_->begin_block(index);
    of_block_ = std::make_unique<Moments>();
    moments_ = of_block_.get();
    set_order(order, seed);
    std::fill(at_shuffle_.begin(), at_shuffle_.end(), 0);
    ended_ = 0;
    for (int n : order_) {
      Fiber& fiber = fibers_[static_cast<std::size_t>(n)];
      fiber.state = State::kReady;
      fiber.shuffles = 0;
      copies_[static_cast<std::size_t>(n)].count = copies_[static_cast<std::size_t>(n)].groups = 0;
      fiber.fibers = this;
      fiber.block = HostBlock(this, n, index, count);
    }
    const Strand whole;
    moments_->begin.reached();
    for (int n : order_) {
      const Strand& strand = races_ == Races::kOfBlocks ? whole : strand_of_thread(n);
      Fiber& fiber = fibers_[static_cast<std::size_t>(n)];
      fiber.coroutine.start(n, strand, &Fibers::run_thread, &fiber);
    }
    try {
      while (ended_ < static_cast<int>(fibers_.size())) {
        if (run_ready()) continue;
        if (machine_ != nullptr && machine_->step()) continue;
        if (ended_ < static_cast<int>(fibers_.size())) release_block(index);
      }
    } catch (const HostError&) {
      whole.join();
      for (int n : order_) strand_of_thread(n).join();
      throw;
    }
    if (machine_ != nullptr) machine_->end_block();
    if (races_ == Races::kOfThreads) end_->passed();
    ++counts_->blocks;
  }

  REGARD_UNWATCHED void wait(int thread, bool whole_block, std::source_location where) {
    Coroutine& coroutine = note_wait(thread, whole_block, where);
    if (whole_block) moments_->barrier.reached();
    coroutine.leave();
    if (whole_block) moments_->barrier.passed();
  }

  /// Until `ready` is true, which a step of the machine or another thread makes it.
  REGARD_UNWATCHED void wait_until(int thread, const std::function<bool()>& ready) {
    Fiber& fiber = fibers_[static_cast<std::size_t>(thread)];
    if (ready()) return;
    fiber.condition = &ready;
    fiber.state = State::kAtCondition;
    fiber.coroutine.leave();
  }

  REGARD_UNWATCHED bool wait_or(int thread, bool value, std::source_location where) {
    fibers_[static_cast<std::size_t>(thread)].says = value;
    wait(thread, true, where);
    return any_says_;  // until all are at the next barrier
  }

  /// Sent or Operands.
  template <class Any>
  int send(int thread, const Any& sent, std::source_location where) {
    const int slot = note_sent(thread, sent);
    wait(thread, false, where);
    return slot;
  }
  REGARD_UNWATCHED Sent sent_by(int thread, int slot) const {
    return fibers_[static_cast<std::size_t>(thread)].sent[slot];
  }
  /// What a lane multiplies: two rows, eight apart, and two columns. Two lanes share a row, or a
  /// column, and hold two neighbours of each eight.
  REGARD_UNWATCHED void collect(int thread, int slot, double (&left)[2][2][8],
                                Two (&right)[2][8]) const {
    const int lane = thread % cuda::kWarp;
    const auto* const warp = &operands_[static_cast<std::size_t>(thread - lane)];
    for (int holder = 0; holder < 4; ++holder) {
      const Operands& rows = warp[lane / 4 * 4 + holder].sent[slot];
      const Operands& even = warp[lane % 4 * 8 + holder].sent[slot];
      const Operands& odd = warp[lane % 4 * 8 + 4 + holder].sent[slot];
      for (int half = 0; half < 2; ++half) {
        for (int index = 0; index < 2; ++index) {
          left[0][half][2 * holder + index] = rows.left[2 * half][index];
          left[1][half][2 * holder + index] = rows.left[2 * half + 1][index];
          right[half][2 * holder + index] = Two{even.right[half][index], odd.right[half][index]};
        }
      }
    }
  }

  REGARD_UNWATCHED void begin_copy(int thread, int offset, const Chunk& chunk) {
    Copies& copies = copies_[static_cast<std::size_t>(thread)];
    if (copies.count == kMaxCopies) throw HostError("a thread waits for too many copies");
    copies.at[copies.count++] = {chunk, offset, copies.groups};
    constexpr std::uint64_t kUnknown[2] = {~std::uint64_t{0}, ~std::uint64_t{0}};
    memory_.write(thread, offset, chunk.bytes, &kUnknown);
  }
  REGARD_UNWATCHED void end_copies(int thread) {
    end_groups(thread, ++copies_[static_cast<std::size_t>(thread)].groups);
  }
  REGARD_UNWATCHED void commit_copies(int thread) {
    ++copies_[static_cast<std::size_t>(thread)].groups;
  }
  /// All groups that were committed but for the last `pending` are there.
  REGARD_UNWATCHED void end_all_but(int thread, int pending) {
    end_groups(thread, copies_[static_cast<std::size_t>(thread)].groups - pending);
  }

 private:
  static constexpr int kMaxCopies = 256;
  enum class State : std::uint8_t { kReady, kAtBarrier, kAtShuffle, kAtCondition, kDone };
  struct Fiber {
    Fibers* fibers = nullptr;
    Coroutine coroutine;
    State state = State::kReady;
    unsigned line = 0;
    const char* file = "";
    unsigned shuffles = 0;
    const std::function<bool()>* condition = nullptr;
    Sent sent[2];
    bool says = false;  // at a barrier
    HostBlock block{nullptr, 0, 0, 0};
  };
  /// What a thread has not waited for. Beside its fiber, whose neighbours are read at each shuffle:
  /// with 6 KB between them they lay in no cache.
  struct Copies {
    struct Copy {
      Chunk chunk;
      int to, group;
    };
    int count = 0, groups = 0;  // groups that were committed
    Copy at[kMaxCopies];
  };

  /// Beside the fibers for the same reason.
  struct SentOperands {
    Operands sent[2];
  };

  /// Ends the copies of groups before `end`; the others move to the front.
  REGARD_UNWATCHED void end_groups(int thread, int end) {
    Copies& copies = copies_[static_cast<std::size_t>(thread)];
    int kept = 0;
    for (int n = 0; n < copies.count; ++n) {
      const Copies::Copy copy = copies.at[n];
      if (copy.group < end) {
        memory_.write(thread, copy.to, copy.chunk.bytes, copy.chunk.word);
      } else {
        copies.at[kept++] = copy;
      }
    }
    copies.count = kept;
  }

  /// Lets every thread that can go on until it waits; false where none could.
  bool run_ready() {
    bool ran = false;
    for (int n : order_) {
      Fiber& fiber = fibers_[static_cast<std::size_t>(n)];
      if (fiber.state == State::kAtCondition && (*fiber.condition)()) fiber.state = State::kReady;
      if (fiber.state != State::kReady) continue;
      fiber.coroutine.resume();
      ran = true;
      if (!error_.empty()) throw HostError(error_);
      const int warp = n / cuda::kWarp;
      if (at_shuffle_[static_cast<std::size_t>(warp)] == cuda::kWarp) release_warp(warp);
    }
    return ran;
  }

  void set_order(Order order, std::uint64_t seed) {
    std::iota(order_.begin(), order_.end(), 0);
    if (order == Order::kReversed) std::reverse(order_.begin(), order_.end());
    if (order == Order::kShuffled) {
      std::mt19937_64 random(seed);
      std::shuffle(order_.begin(), order_.end(), random);
    }
  }

  static void run_thread(void* argument) {
    auto& fiber = *static_cast<Fiber*>(argument);
    note_begin(&fiber);
    try {
      fiber.fibers->main_(fiber.block);
      fiber.fibers->check_copies(fiber.block.thread());
    } catch (const std::exception& error) {
      const Unwatched unwatched;
      fiber.fibers->error_ = error.what();
    }
    note_end(&fiber);
    fiber.coroutine.leave();
  }

  REGARD_UNWATCHED static void note_begin(Fiber* fiber) { fiber->fibers->moments_->begin.passed(); }
  REGARD_UNWATCHED void check_copies(int thread) const {
    if (copies_[static_cast<std::size_t>(thread)].count > 0)
      throw HostError("a thread ended before its copies");
  }
  REGARD_UNWATCHED static void note_end(Fiber* fiber) {
    fiber->state = State::kDone;
    ++fiber->fibers->ended_;
    fiber->fibers->end_->reached();
  }

  REGARD_UNWATCHED Coroutine& note_wait(int thread, bool whole_block, std::source_location where) {
    Fiber& fiber = fibers_[static_cast<std::size_t>(thread)];
    fiber.state = whole_block ? State::kAtBarrier : State::kAtShuffle;
    if (!whole_block) ++at_shuffle_[static_cast<std::size_t>(thread / cuda::kWarp)];
    fiber.line = where.line();
    fiber.file = where.file_name();
    return fiber.coroutine;
  }

  /// Two slots by turns: nobody comes to the second shuffle from here before all have read.
  REGARD_UNWATCHED int note_sent(int thread, const Sent& sent) {
    Fiber& fiber = fibers_[static_cast<std::size_t>(thread)];
    const int slot = fiber.shuffles++ & 1;
    fiber.sent[slot] = sent;
    return slot;
  }
  REGARD_UNWATCHED int note_sent(int thread, const Operands& operands) {
    const int slot = fibers_[static_cast<std::size_t>(thread)].shuffles++ & 1;
    operands_[static_cast<std::size_t>(thread)].sent[slot] = operands;
    return slot;
  }

  /// Lets the warp go on: all of its threads are at a shuffle, which must be the same.
  void release_warp(int warp) {
    const std::size_t begin = static_cast<std::size_t>(warp) * cuda::kWarp;
    for (std::size_t n = begin; n < begin + cuda::kWarp; ++n) {
      if (fibers_[n].line != fibers_[begin].line || fibers_[n].file != fibers_[begin].file) {
        throw HostError("lanes of a warp are at different shuffles");
      }
      fibers_[n].state = State::kReady;
    }
    at_shuffle_[static_cast<std::size_t>(warp)] = 0;
    ++counts_->shuffles;
  }

  /// Nobody can run: all must be at one barrier.
  void release_block(std::int64_t index) {
    for (std::size_t n = 0; n < fibers_.size(); ++n) {
      const Fiber& fiber = fibers_[n];
      if (fiber.state == State::kAtBarrier && fiber.line == fibers_[0].line &&
          fiber.file == fibers_[0].file) {
        continue;
      }
      const char* const what = fiber.state == State::kDone          ? " has ended"
                               : fiber.state == State::kAtShuffle   ? " is at a shuffle"
                               : fiber.state == State::kAtCondition ? " waits for what never comes"
                                                                    : " is at another barrier";
      throw HostError("block " + std::to_string(index) + ", thread " + std::to_string(n) + what +
                      " while others wait at a barrier or shuffle");
    }
    any_says_ = false;
    for (Fiber& fiber : fibers_) {
      fiber.state = State::kReady;
      any_says_ = any_says_ || fiber.says;
      fiber.says = false;
    }
    memory_.pass_barrier();
    ++counts_->barriers;
  }

  SharedMemory memory_;
  BlockMachine* machine_;  // null: the kernel has none
  Races races_;
  const Main& main_;
  std::vector<Fiber> fibers_;
  std::vector<Copies> copies_;
  std::vector<SentOperands> operands_;
  std::vector<int> order_;
  std::vector<int> at_shuffle_;  // threads of each warp
  struct Moments {
    Moment begin, barrier;
  };
  // On the heap: a new one is not the last block's, or grid's. Beside each a bare pointer, for
  // unique_ptr's own steps are watched.
  std::unique_ptr<Moments> of_block_;
  std::unique_ptr<Moment> of_grid_ = std::make_unique<Moment>();
  Moments* moments_ = nullptr;
  Moment* const end_ = of_grid_.get();
  bool any_says_ = false;
  int ended_ = 0;
  Counts* counts_ = nullptr;
  std::string error_;
};

void HostBlock::wait_until(const std::function<bool()>& ready) const {
  fibers_->wait_until(thread_, ready);
}

void HostBlock::sync(std::source_location where) const { fibers_->wait(thread_, true, where); }

bool HostBlock::sync_or(bool value, std::source_location where) const {
  return fibers_->wait_or(thread_, value, where);
}

int HostBlock::send(const Sent& sent, std::source_location where) const {
  return fibers_->send(thread_, sent, where);
}

Sent HostBlock::sent_by(int lane, int slot) const {
  return fibers_->sent_by(thread_ / cuda::kWarp * cuda::kWarp + lane, slot);
}

// ---- what comes with compute capability 8.0

namespace {

Chunk chunk_from(const void* from, int bytes) {
  Chunk chunk;
  chunk.bytes = bytes;
  if (from == nullptr) return chunk;
  if (reinterpret_cast<std::uintptr_t>(from) % static_cast<std::uintptr_t>(bytes) != 0) {
    throw HostError(std::to_string(bytes) +
                    " bytes are copied from an address that is no multiple of them");
  }
  std::memcpy(chunk.word, from, static_cast<std::size_t>(bytes));
  return chunk;
}

}  // namespace

void HostBlock::copy_async(const HostShared<std::uint16_t>& to, int at, const void* from) const {
  fibers_->begin_copy(thread_, to.check_vector(at), chunk_from(from, 16));
}

void HostBlock::copy_word_async(const HostShared<float>& to, int at, const void* from) const {
  fibers_->begin_copy(thread_, to.byte_of(at), chunk_from(from, 4));
}

void HostBlock::commit_copies() const { fibers_->commit_copies(thread_); }
void HostBlock::wait_copies() const { fibers_->end_copies(thread_); }
void HostBlock::wait_last(int groups) const { fibers_->end_all_but(thread_, groups); }

void HostBlock::load_four(const HostShared<std::uint16_t>& from, int at, bool transposed,
                          std::uint32_t (&to)[4], std::source_location where) const {
  from.check_vector(at);
  const int slot = send({{static_cast<std::uint64_t>(at)}}, where);
  const int lane = thread_ % cuda::kWarp, group = lane / 4, pair = lane % 4 * 2;
  for (int matrix = 0; matrix < 4; ++matrix) {
    std::uint32_t half[2];
    for (int x = 0; x < 2; ++x) {
      const int row = transposed ? pair + x : group, column = transposed ? group : pair + x;
      const auto row_at = static_cast<int>(sent_by(8 * matrix + row, slot).word[0]);
      half[x] = static_cast<std::uint16_t>(from[row_at + column]);
    }
    to[matrix] = half[0] | half[1] << 16;
  }
}

void HostBlock::multiply_by(float (*widen)(std::uint16_t), const std::uint32_t (&a)[4],
                            const std::uint32_t (&b)[2], float (&c)[4],
                            std::source_location where) const {
  const auto widen_pair = [&](std::uint32_t pair, double(&to)[2]) {
    to[0] = static_cast<double>(widen(static_cast<std::uint16_t>(pair)));
    to[1] = static_cast<double>(widen(static_cast<std::uint16_t>(pair >> 16)));
  };
  Operands own;
  for (int n = 0; n < 4; ++n) widen_pair(a[n], own.left[n]);
  for (int n = 0; n < 2; ++n) widen_pair(b[n], own.right[n]);
  const int slot = fibers_->send(thread_, own, where);
  double left[2][2][8];
  Two right[2][8];
  fibers_->collect(thread_, slot, left, right);
  for (int half = 0; half < 2; ++half) {
    for (int row = 0; row < 2; ++row)
      add_as_tensor_cores(left[row][half], right[half], c + 2 * row);
  }
}

SharedMemory* HostBlock::memory() const { return &fibers_->memory(); }

void HostBlock::check_shared(int offset, int bytes, std::size_t align) const {
  if (offset < 0 || offset + bytes > memory()->size() ||
      static_cast<std::size_t>(offset) % align != 0) {
    throw HostError("an array of " + std::to_string(bytes) + " bytes at " + std::to_string(offset) +
                    " in " + std::to_string(memory()->size()) + " bytes of shared memory");
  }
}

void HostRunner::run_grid(int threads, int shared_bytes, std::int64_t tasks,
                          const std::function<void(const HostBlock&)>& thread_main,
                          BlockMachine* machine) {
  if (tasks <= 0) return;
  const std::int64_t count = std::min(tasks, max_blocks_);
  std::vector<std::int64_t> blocks(static_cast<std::size_t>(count));
  std::iota(blocks.begin(), blocks.end(), std::int64_t{0});
  if (order_ == Order::kReversed) std::reverse(blocks.begin(), blocks.end());
  if (order_ == Order::kShuffled) {
    std::mt19937_64 random(static_cast<std::uint64_t>(count));
    std::shuffle(blocks.begin(), blocks.end(), random);
  }
  Fibers fibers(threads, shared_bytes, races_, thread_main, machine);
  for (const std::int64_t block : blocks) {
    fibers.run_block(block, count, order_, static_cast<std::uint64_t>(block), &counts_);
  }
  ++counts_.launches;
}

}  // namespace regard::cuda_test
