#pragma once

#include <bit>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <source_location>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "cuda/block.cuh"
#include "tests/cuda/coroutine.h"

// Kernels on the host: the threads of a block are fibers that change at barriers and shuffles. What
// a device would not say is an error here: an index outside of an array in shared memory, reading
// what nobody wrote, touching what another thread touched since the last barrier (one of them
// writing), a barrier that not all threads reach, or not the same one. Copies that a thread has not
// waited for are NaN. Tensor cores sum as published for older devices. Races in global memory are
// seen under ThreadSanitizer alone. Not seen: the device's own exp2; speed.

namespace regard::cuda_test {

class HostError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// In which order blocks run, and threads between two barriers: no result may depend on it.
enum class Order : std::uint8_t { kForward = 0, kReversed, kShuffled };

/// Between what ThreadSanitizer sees races in global memory, in a build for it: a block's threads,
/// or blocks. Both at once would take milliseconds for each thread of each block.
enum class Races : std::uint8_t { kOfThreads = 0, kOfBlocks };

class Fibers;

/// A block's shared memory, with what happened to each of its words.
class SharedMemory {
 public:
  explicit SharedMemory(int bytes);
  /// Nothing written, every byte 0xff: NaN in every float type.
  void reset();
  void pass_barrier() { ++epoch_; }

  void read(int thread, int offset, int bytes, void* to) {
    note_read(thread, offset, bytes);
    __builtin_memcpy(to, data_.data() + offset, static_cast<std::size_t>(bytes));
  }
  void write(int thread, int offset, int bytes, const void* from) {
    note_write(thread, offset, bytes);
    __builtin_memcpy(data_.data() + offset, from, static_cast<std::size_t>(bytes));
  }
  int size() const { return static_cast<int>(data_.size()); }

 private:
  struct Word {
    std::uint32_t written = 0, read = 0;    // epochs; 0: never
    std::int16_t writer = -1, reader = -1;  // the last; reader kMany: several in the epoch
  };
  static constexpr std::int16_t kMany = -2;

  REGARD_UNWATCHED void note_read(int thread, int offset, int bytes) {
    const auto who = static_cast<std::int16_t>(thread);
    for (int at = offset / 4; at < (offset + bytes + 3) / 4; ++at) {
      Word& word = words_[at];
      if (word.written == 0 || (word.written == epoch_ && word.writer != who)) {
        fail_read(thread, word, offset);
      }
      word.reader = word.read == epoch_ && word.reader != who ? kMany : who;
      word.read = epoch_;
    }
  }
  REGARD_UNWATCHED void note_write(int thread, int offset, int bytes) {
    const auto who = static_cast<std::int16_t>(thread);
    for (int at = offset / 4; at < (offset + bytes + 3) / 4; ++at) {
      Word& word = words_[at];
      if ((word.written == epoch_ && word.writer != who) ||
          (word.read == epoch_ && word.reader != who)) {
        fail_write(thread, word, offset);
      }
      word.writer = who;
      word.written = epoch_;
    }
  }
  [[noreturn]] void fail_read(int thread, const Word& word, int offset) const;
  [[noreturn]] void fail_write(int thread, const Word& word, int offset) const;

  std::vector<unsigned char> data_;
  std::unique_ptr<Word[]> words_;
  std::uint32_t epoch_ = 1;
};

/// An array of T in shared memory, as one thread sees it.
template <class T>
class HostShared {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  HostShared(SharedMemory* memory, int thread, int offset, int count)
      : memory_(memory), thread_(thread), offset_(offset), count_(count) {}

  class Reference {
   public:
    Reference(const HostShared& array, int index) : array_(array), index_(index) {}
    operator T() const {  // NOLINT: stands for the element
      T value;
      array_.read(index_, 1, &value);
      return value;
    }
    void operator=(const T& value) const { array_.write(index_, 1, &value); }
    void operator+=(const T& value) const { *this = static_cast<T>(*this) + value; }
    void operator=(const Reference&) const = delete;

   private:
    const HostShared& array_;
    int index_;
  };

  Reference operator[](std::int64_t index) const { return {*this, static_cast<int>(index)}; }
  HostShared operator+(int elements) const {
    HostShared rest = *this;
    rest.offset_ += elements * kBytes;
    rest.count_ -= elements;
    return rest;
  }
  void read(int index, int count, T* to) const {
    check(index, count);
    memory_->read(thread_, offset_ + index * kBytes, count * kBytes, to);
  }
  void write(int index, int count, const T* from) const {
    check(index, count);
    memory_->write(thread_, offset_ + index * kBytes, count * kBytes, from);
  }
  /// The byte of an element.
  int byte_of(int index) const {
    check(index, 1);
    return offset_ + index * kBytes;
  }
  /// A device moves vectors at addresses that are multiples of theirs. The byte of the first.
  int check_vector(int index) const {
    const int at = offset_ + index * kBytes;
    if (at % static_cast<int>(alignof(cuda::Vec4<T>)) == 0) return at;
    throw HostError("a vector at byte " + std::to_string(at) + " of shared memory");
  }

 private:
  static constexpr int kBytes = static_cast<int>(sizeof(T));
  void check(int index, int count) const {
    if (index >= 0 && index + count <= count_) return;
    throw HostError("thread " + std::to_string(thread_) + ": element " + std::to_string(index) +
                    " of " + std::to_string(count_) + " in shared memory");
  }

  SharedMemory* memory_;
  int thread_, offset_, count_;
};

template <class T>
T load_at(const HostShared<T>& from, int index) {
  return from[index];
}

template <class T>
cuda::Vec4<T> load4(const HostShared<T>& from, int index) {
  from.check_vector(index);
  cuda::Vec4<T> value;
  from.read(index, 4, value.at);
  return value;
}

template <class T>
void store4(const HostShared<T>& to, int index, const cuda::Vec4<T>& value) {
  to.check_vector(index);
  to.write(index, 4, value.at);
}

/// What a lane hands to its warp.
struct Sent {
  std::uint64_t word[3] = {};
};

/// What works beside a block's threads.
class BlockMachine {
 public:
  virtual ~BlockMachine() = default;
  virtual void begin_block(std::int64_t index) = 0;
  /// Called where no thread can go on: does one thing; false where there is none to do.
  virtual bool step() = 0;
  virtual void end_block() = 0;
};

/// The Block of src/cuda/block.cuh.
class HostBlock {
 public:
  HostBlock(Fibers* fibers, int thread, std::int64_t index, std::int64_t count)
      : fibers_(fibers), thread_(thread), index_(index), count_(count) {}

  int thread() const { return thread_; }
  std::int64_t index() const { return index_; }
  std::int64_t count() const { return count_; }
  void sync(std::source_location where = std::source_location::current()) const;
  /// Lets other threads run until `ready` returns true.
  void wait_until(const std::function<bool()>& ready) const;

  void sync_warp() const {}
  int uniform(int value, std::source_location where = std::source_location::current()) const {
    const int slot = send({{static_cast<std::uint64_t>(value)}}, where);
    if (static_cast<int>(sent_by(0, slot).word[0]) == value) return value;
    throw HostError("lanes of a warp have different values where one is needed");
  }
  template <class T>
  T shuffle_xor(T value, int lanes,
                std::source_location where = std::source_location::current()) const {
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
    Sent sent;
    __builtin_memcpy(sent.word, &value, sizeof(T));
    const int slot = send(sent, where);
    sent = sent_by((thread_ % cuda::kWarp) ^ lanes, slot);
    __builtin_memcpy(&value, sent.word, sizeof(T));
    return value;
  }

  bool sync_or(bool value, std::source_location where = std::source_location::current()) const;
  void copy_async(const HostShared<std::uint16_t>& to, int at, const void* from) const;
  void copy_word_async(const HostShared<float>& to, int at, const void* from) const;
  void commit_copies() const;
  void wait_copies() const;
  template <int kGroups>
  void wait_groups() const {
    wait_last(kGroups);
  }

  void load_matrices(const HostShared<std::uint16_t>& from, int at, std::uint32_t (&to)[4],
                     std::source_location where = std::source_location::current()) const {
    load_four(from, at, false, to, where);
  }
  void load_transposed(const HostShared<std::uint16_t>& from, int at, std::uint32_t (&to)[4],
                       std::source_location where = std::source_location::current()) const {
    load_four(from, at, true, to, where);
  }

  template <problem::Element kType>
  void multiply_add(const std::uint32_t (&a)[4], const std::uint32_t (&b)[2], float (&c)[4],
                    std::source_location where = std::source_location::current()) const {
    const auto widen = kType == problem::Element::kBf16 ? problem::from_bf16 : problem::from_f16;
    multiply_by(widen, a, b, c, where);
  }

  template <class T>
  HostShared<T> shared(int offset, int count) const {
    check_shared(offset, count * static_cast<int>(sizeof(T)), alignof(T));
    return {memory(), thread_, offset, count};
  }

 private:
  /// Waits for the warp's lanes; where sent_by() finds what each has sent.
  int send(const Sent& sent, std::source_location where) const;
  Sent sent_by(int lane, int slot) const;
  void load_four(const HostShared<std::uint16_t>& from, int at, bool transposed,
                 std::uint32_t (&to)[4], std::source_location where) const;
  void multiply_by(float (*widen)(std::uint16_t), const std::uint32_t (&a)[4],
                   const std::uint32_t (&b)[2], float (&c)[4], std::source_location where) const;
  void wait_last(int groups) const;
  void check_shared(int offset, int bytes, std::size_t align) const;
  SharedMemory* memory() const;

  Fibers* fibers_;
  int thread_;
  std::int64_t index_, count_;
};

/// What ran: a test that passes without having run a kernel has shown nothing.
struct Counts {
  std::int64_t launches = 0, blocks = 0, barriers = 0, shuffles = 0;
  std::int64_t tensor_blocks = 0;  // of kernels for compute capability 8.0 and up
  std::int64_t wgmma_blocks = 0;   // of kernels for 9.0
};

/// What a block can have where FLASH runs: 163 KB of compute capability 8.0.
inline constexpr int kMaxShared = 163 * 1024;

/// Runs grids, one block at a time.
class HostRunner {
 public:
  explicit HostRunner(Order order = Order::kForward, std::int64_t max_blocks = 1 << 30,
                      Races races = Races::kOfThreads)
      : order_(order), max_blocks_(max_blocks), races_(races) {}

  template <class Kernel>
  void launch(const typename Kernel::Args& args, std::int64_t tasks) {
    static_assert(std::is_trivially_copyable_v<typename Kernel::Args>);
    static_assert(sizeof(args) <= 4096 && Kernel::kSharedBytes <= kMaxShared);
    const std::int64_t before = counts_.blocks;
    run_grid(Kernel::kThreads, Kernel::kSharedBytes, tasks,
             [&](const HostBlock& block) { Kernel::run(block, args); });
    if constexpr (requires { Kernel::kMinSm; }) counts_.tensor_blocks += counts_.blocks - before;
  }

  /// One fiber a thread; throws HostError. Grids of more than `max_blocks` go round.
  void run_grid(int threads, int shared_bytes, std::int64_t tasks,
                const std::function<void(const HostBlock&)>& thread_main,
                BlockMachine* machine = nullptr);

  Order order() const { return order_; }
  void count_wgmma_blocks(std::int64_t blocks) { counts_.wgmma_blocks += blocks; }

  const Counts& counts() const { return counts_; }

 private:
  Order order_;
  std::int64_t max_blocks_;
  Races races_;
  Counts counts_;
};

}  // namespace regard::cuda_test
