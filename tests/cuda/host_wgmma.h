#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <source_location>
#include <string>
#include <vector>

#include "backends/cuda_flash/wgmma_shape.h"
#include "cuda/tensor.cuh"
#include "cuda/tensor_box.h"
#include "tests/cuda/host_block.h"

// What compute capability 9.0 adds, on the host: copies of boxes (TMA), barriers in shared memory
// (mbarrier), products of warpgroups (wgmma). Copies land when the order of threads says: at once,
// at random, or only when no thread can go on. Products are computed when they are waited for, from
// what descriptors and shared memory hold by then; until then their sums are NaN. Errors: a product
// that reads bytes which no copy has filled; a copy over bytes that a product under way reads; a
// descriptor that lanes do not share; a register operand that changes under way; a product without
// a fence before it; a barrier with too many arrivals or left in a phase; threads that wait for
// ever.

namespace regard::cuda_test {

/// What a thread does with barriers, copies and products, in its order; of a block's first threads
/// of each warpgroup the protocol's search is made from it.
struct Event {
  enum class Kind : std::uint8_t {
    kWait,          // barrier `at`, parity
    kArrive,        // at barrier `at`
    kExpect,        // the same, and `bytes` to come
    kCopy,          // of `bytes` to `to`, to be counted by barrier `at`
    kProduct,       // reads `bytes` from `to` on
    kCommit,        //
    kWaitProducts,  // all but the last `value`
    kSyncPart,      // barrier of threads `at`
    kArrivePart     //
  };
  Kind kind;
  int at = 0, value = 0, to = 0, bytes = 0;
};

/// What the barriers of a block were made with, and the events of each warpgroup's first thread.
struct Trace {
  std::map<int, int> arrivals;  // of a barrier, for a phase
  std::vector<std::vector<Event>> events;
};

class WgmmaMachine final : public BlockMachine {
 public:
  WgmmaMachine(int shared_bytes, int threads, Order order, Trace* trace);
  void begin_block(std::int64_t index) override;
  bool step() override;
  void end_block() override;

  void init_barrier(int at, int arrivals);
  void arrive(int thread, int at, int bytes, bool expects);
  void wait(const HostBlock& block, int at, int parity);
  void load_box(int thread, const cuda::TensorBox& map, int barrier, int to,
                const cuda::BoxPlace& place);
  void arrive_part(int thread, int id, int threads, const HostBlock* waiting);
  void begin_products(int thread);
  struct Product {
    bool is_bf16 = true;
    bool from_registers = false;
    bool accumulates = true;
    int columns = 0;
    std::uint64_t left = 0, right = 0;  // descriptors
    const std::uint32_t* rows = nullptr;
    std::uint32_t rows_then[4] = {};
    float* sums = nullptr;
  };
  void multiply(int thread, const Product& product);
  void commit_products(int thread);
  void wait_products(const HostBlock& block, int pending);

 private:
  static constexpr int kGroupThreads = 128;
  struct Barrier {
    int arrivals = 0, pending = 0, bytes = 0, phase = 0;
  };
  struct Copy {
    cuda::TensorBox map;
    cuda::BoxPlace place;
    int barrier, to;
  };
  struct Part {
    int arrived = 0;
    std::int64_t passed = 0;
  };
  /// Products of a thread that were begun: group by group, the last one not committed.
  struct Lane {
    std::vector<std::vector<Product>> groups{1};
    std::map<float*, std::vector<float>> sums;  // that are NaN until they are waited for
    bool is_fenced = false;
    int waits_for = -1;  // groups that may be under way still
  };
  struct Group {
    int waiting = 0;
    std::int64_t passed = 0;
  };

  Barrier& barrier(int at);
  void complete(Barrier* barrier) const;
  void land(std::size_t index);
  void land_some();
  void note(int thread, const Event& event);
  void check_no_reader(int to, int bytes) const;
  int first_byte(const Product& product, bool right) const;
  int byte_count(const Product& product, bool right) const;
  std::uint16_t element(std::uint64_t descriptor, bool is_rows, int row, int column) const;
  void run_group(int group, int pending);
  void run_product(int first_thread, std::size_t index);
  void check_landed(const Product& product) const;

  std::vector<unsigned char> memory_;
  std::vector<unsigned char> landed_;  // of each 16 bytes
  std::map<int, Barrier> barriers_;
  std::map<int, Part> parts_;
  std::vector<Copy> copies_;
  std::vector<Lane> lanes_;
  std::vector<Group> groups_;
  Order order_;
  Trace* trace_;
  bool records_ = false;
  std::mt19937 random_{1};
};

/// The Block of wgmma_block.h.
class HostWgmmaBlock : public HostBlock {
 public:
  HostWgmmaBlock(const HostBlock& block, WgmmaMachine* machine)
      : HostBlock(block), machine_(machine) {}

  int group() const { return thread() / 128; }
  std::uint32_t address(int offset) const { return static_cast<std::uint32_t>(offset); }

  void init_barrier(int at, int arrivals) const { machine_->init_barrier(at, arrivals); }
  void fence_barriers() const {}
  void arrive(int at) const { machine_->arrive(thread(), at, 0, false); }
  void arrive_expecting(int at, int bytes) const { machine_->arrive(thread(), at, bytes, true); }
  void wait(int at, int parity) const { machine_->wait(*this, at, parity); }
  void load_box(const cuda::TensorBox& map, int barrier, int to,
                const cuda::BoxPlace& place) const {
    machine_->load_box(thread(), map, barrier, to, place);
  }
  void sync_part(int id, int threads) const { machine_->arrive_part(thread(), id, threads, this); }
  void arrive_part(int id, int threads) const {
    machine_->arrive_part(thread(), id, threads, nullptr);
  }
  template <int kRegisters>
  void shrink_registers() const {}
  template <int kRegisters>
  void grow_registers() const {}

  template <int kColumns>
  void begin_products(cuda::WarpSums<kColumns>&) const {
    machine_->begin_products(thread());
  }
  template <problem::Element kType, int kColumns>
  void multiply(std::uint64_t left, std::uint64_t right, cuda::WarpSums<kColumns>& sums,
                bool accumulates) const {
    WgmmaMachine::Product product = product_with<kType>(right, sums);
    product.accumulates = accumulates;
    product.left = left;
    machine_->multiply(thread(), product);
  }
  template <problem::Element kType, int kColumns>
  void multiply_rows(const std::uint32_t (&rows)[4], std::uint64_t right,
                     cuda::WarpSums<kColumns>& sums) const {
    WgmmaMachine::Product product = product_with<kType>(right, sums);
    product.from_registers = true;
    product.rows = rows;
    machine_->multiply(thread(), product);
  }
  void commit_products() const { machine_->commit_products(thread()); }
  template <int kPending, int kColumns>
  void wait_products(cuda::WarpSums<kColumns>&) const {
    machine_->wait_products(*this, kPending);
  }

 private:
  template <problem::Element kType, int kColumns>
  static WgmmaMachine::Product product_with(std::uint64_t right, cuda::WarpSums<kColumns>& sums) {
    WgmmaMachine::Product product;
    product.is_bf16 = kType == problem::Element::kBf16;
    product.columns = kColumns;
    product.right = right;
    product.sums = sums.at[0];
    return product;
  }

  WgmmaMachine* machine_;
};

/// Runs a wgmma kernel's grid on a HostRunner.
class HostWgmmaRunner {
 public:
  explicit HostWgmmaRunner(HostRunner* run, Trace* trace = nullptr) : run_(run), trace_(trace) {}
  using Map = cuda::TensorBox;
  Map map(const cuda::TensorBox& box) { return box; }

  template <class Kernel>
  void launch(const typename Kernel::Args& args, std::int64_t tasks) {
    static_assert(std::is_trivially_copyable_v<typename Kernel::Args>);
    static_assert(sizeof(args) <= 4096);
    WgmmaMachine machine(Kernel::S::kBytes, Kernel::kThreads, run_->order(), trace_);
    const std::int64_t before = run_->counts().blocks;
    run_->run_grid(
        Kernel::kThreads, 16, tasks,
        [&](const HostBlock& block) { Kernel::run(HostWgmmaBlock(block, &machine), args); },
        &machine);
    run_->count_wgmma_blocks(run_->counts().blocks - before);
  }

 private:
  HostRunner* run_;
  Trace* trace_;
};

}  // namespace regard::cuda_test
