#include "tests/cuda/host_wgmma.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/cuda/coroutine.h"
#include "tests/cuda/tensor_core.h"

namespace regard::cuda_test {

using cuda::kBoxColumns;
using cuda::kBoxRowBytes;

WgmmaMachine::WgmmaMachine(int shared_bytes, int threads, Order order, Trace* trace)
    : memory_(static_cast<std::size_t>(shared_bytes)),
      landed_(static_cast<std::size_t>(shared_bytes / 16)),
      lanes_(static_cast<std::size_t>(threads)),
      groups_(static_cast<std::size_t>(threads / kGroupThreads)),
      order_(order),
      trace_(trace) {
  if (trace_ != nullptr) trace_->events.resize(groups_.size());
}

void WgmmaMachine::begin_block(std::int64_t index) {
  std::fill(memory_.begin(), memory_.end(), 0xff);
  std::fill(landed_.begin(), landed_.end(), 0);
  barriers_.clear();
  parts_.clear();
  copies_.clear();
  std::fill(lanes_.begin(), lanes_.end(), Lane());
  std::fill(groups_.begin(), groups_.end(), Group());
  records_ = trace_ != nullptr && index == 0;
  random_.seed(static_cast<unsigned>(index));
}

void WgmmaMachine::end_block() {
  if (!copies_.empty()) throw HostError("a block ended before its copies");
  for (const auto& [id, part] : parts_) {
    if (part.arrived != 0) throw HostError("a block ended with a barrier half passed");
  }
  for (const Lane& lane : lanes_) {
    if (lane.groups.size() > 1 || !lane.groups[0].empty()) {
      throw HostError("a thread ended before its products");
    }
  }
}

void WgmmaMachine::note(int thread, const Event& event) {
  if (records_ && thread % kGroupThreads == 0) {
    trace_->events[static_cast<std::size_t>(thread / kGroupThreads)].push_back(event);
  }
}

// ---- barriers

void WgmmaMachine::init_barrier(int at, int arrivals) {
  const Unwatched unwatched;
  if (at % 8 != 0 || barriers_.count(at) != 0) throw HostError("a barrier made twice, or askew");
  barriers_[at] = {arrivals, arrivals, 0, 0};
  if (records_) trace_->arrivals[at] = arrivals;
}

WgmmaMachine::Barrier& WgmmaMachine::barrier(int at) {
  const auto found = barriers_.find(at);
  if (found == barriers_.end()) throw HostError("no barrier at byte " + std::to_string(at));
  return found->second;
}

void WgmmaMachine::complete(Barrier* barrier) const {
  if (barrier->pending != 0 || barrier->bytes != 0) return;
  barrier->pending = barrier->arrivals;
  ++barrier->phase;
}

void WgmmaMachine::arrive(int thread, int at, int bytes, bool expects) {
  const Unwatched unwatched;
  note(thread, {expects ? Event::Kind::kExpect : Event::Kind::kArrive, at, 0, 0, bytes});
  Barrier& to = barrier(at);
  if (to.pending == 0) throw HostError("too many arrivals at barrier " + std::to_string(at));
  to.bytes += bytes;
  --to.pending;
  complete(&to);
}

void WgmmaMachine::wait(const HostBlock& block, int at, int parity) {
  const Unwatched unwatched;
  note(block.thread(), {Event::Kind::kWait, at, parity, 0, 0});
  // Passed where the phase of that parity is over: the current one has the other.
  block.wait_until([&] { return (barrier(at).phase & 1) != parity; });
}

void WgmmaMachine::arrive_part(int thread, int id, int threads, const HostBlock* waiting) {
  const Unwatched unwatched;
  note(thread,
       {waiting != nullptr ? Event::Kind::kSyncPart : Event::Kind::kArrivePart, id, threads, 0, 0});
  Part& part = parts_[id];
  const std::int64_t passed = part.passed;
  if (++part.arrived == threads) {
    part.arrived = 0;
    ++part.passed;
  }
  if (waiting != nullptr) waiting->wait_until([&] { return part.passed != passed; });
}

// ---- copies

void WgmmaMachine::load_box(int thread, const cuda::TensorBox& map, int barrier_at, int to,
                            const cuda::BoxPlace& place) {
  const Unwatched unwatched;
  const int bytes = map.rows * kBoxRowBytes;
  note(thread, {Event::Kind::kCopy, barrier_at, 0, to, bytes});
  if (to % cuda::kBoxAlign != 0 || to + bytes > static_cast<int>(memory_.size())) {
    throw HostError("a box at byte " + std::to_string(to) + " of shared memory");
  }
  barrier(barrier_at);
  check_no_reader(to, bytes);
  std::fill_n(memory_.begin() + to, bytes, 0xff);
  std::fill_n(landed_.begin() + to / 16, bytes / 16, 0);
  copies_.push_back({map, place, barrier_at, to});
  land_some();
}

void WgmmaMachine::land_some() {
  while (!copies_.empty()) {
    if (order_ == Order::kReversed) return;
    if (order_ == Order::kShuffled && random_() % 2 == 0) return;
    land(order_ == Order::kShuffled ? random_() % copies_.size() : 0);
  }
}

bool WgmmaMachine::step() {
  if (copies_.empty()) return false;
  land(order_ == Order::kShuffled ? random_() % copies_.size() : copies_.size() - 1);
  return true;
}

void WgmmaMachine::land(std::size_t index) {
  const Copy copy = copies_[index];
  copies_.erase(copies_.begin() + static_cast<std::ptrdiff_t>(index));
  const cuda::TensorBox& map = copy.map;
  const cuda::BoxPlace& at = copy.place;
  const bool in_head =
      at.head >= 0 && at.head < map.extent[2] && at.batch >= 0 && at.batch < map.extent[3];
  for (int row = 0; row < map.rows; ++row) {
    for (int chunk = 0; chunk < 8; ++chunk) {
      // The chunk's bits 4 to 6 of the address change by bits 7 to 9, which count rows.
      unsigned char* const to =
          memory_.data() + copy.to + row * kBoxRowBytes + (chunk ^ row % 8) * 16;
      for (int x = 0; x < 8; ++x) {
        const std::int64_t column = at.column + chunk * 8 + x, r = std::int64_t{at.row} + row;
        std::uint16_t value = 0;
        if (in_head && r >= 0 && r < map.extent[1] && column < map.extent[0]) {
          std::memcpy(&value,
                      map.base + column * 2 + r * map.stride[1] + at.head * map.stride[2] +
                          at.batch * map.stride[3],
                      2);
        }
        std::memcpy(to + 2 * x, &value, 2);
      }
      landed_[static_cast<std::size_t>(copy.to + row * kBoxRowBytes) / 16 +
              static_cast<std::size_t>(chunk)] = 1;
    }
  }
  Barrier& counted = barrier(copy.barrier);
  counted.bytes -= map.rows * kBoxRowBytes;
  complete(&counted);
}

// ---- products

namespace {

int field(std::uint64_t descriptor, int bit) {
  return static_cast<int>(descriptor >> bit & 0x3fff) * 16;
}

}  // namespace

/// Element (row, column) of an operand, `row` being the one that the result has. is_rows: what is
/// summed over lies in a row of 128 bytes; else it is the rows. The canonical layouts of the
/// 128-byte swizzle, in bytes before the swizzle: of the first, eight rows by `stride`; of the
/// second, 64 columns of the result in a row, the next 64 by `leading`, eight rows of the sum by
/// `stride`.
std::uint16_t WgmmaMachine::element(std::uint64_t descriptor, bool is_rows, int row,
                                    int column) const {
  const int first = field(descriptor, 0), leading = field(descriptor, 16);
  const int stride = field(descriptor, 32);
  const int at = is_rows ? first + row / 8 * stride + row % 8 * kBoxRowBytes + column * 2
                         : first + row / kBoxColumns * leading + row % kBoxColumns * 2 +
                               column / 8 * stride + column % 8 * kBoxRowBytes;
  const int swizzled = at ^ (at >> 7 & 7) << 4;
  if (swizzled < 0 || swizzled + 2 > static_cast<int>(memory_.size())) {
    throw HostError("a product reads byte " + std::to_string(swizzled) + " of shared memory");
  }
  if (landed_[static_cast<std::size_t>(swizzled) / 16] == 0) {
    throw HostError("a product reads byte " + std::to_string(swizzled) +
                    " of shared memory, to which no copy has come");
  }
  std::uint16_t value;
  std::memcpy(&value, memory_.data() + swizzled, 2);
  return value;
}

/// What an operand may reach, for overlaps: whole groups of eight rows.
int WgmmaMachine::first_byte(const Product& product, bool right) const {
  return field(right ? product.right : product.left, 0) / cuda::kBoxAlign * cuda::kBoxAlign;
}
int WgmmaMachine::byte_count(const Product& product, bool right) const {
  const std::uint64_t descriptor = right ? product.right : product.left;
  const int stride = field(descriptor, 32), leading = field(descriptor, 16);
  if (!right) return 64 / 8 * stride;
  if (!product.from_registers) return product.columns / 8 * stride;
  return (product.columns / kBoxColumns - 1) * leading + 2 * stride;
}

void WgmmaMachine::check_no_reader(int to, int bytes) const {
  for (const Lane& lane : lanes_) {
    for (const auto& group : lane.groups) {
      for (const Product& product : group) {
        for (const bool right : {false, true}) {
          if (!right && product.from_registers) continue;
          // Of values, each box holds only a part: compared one by one.
          const int stride = field(product.right, 32), leading = field(product.right, 16);
          const bool by_box = right && product.from_registers;
          const int parts = by_box ? product.columns / kBoxColumns : 1;
          for (int part = 0; part < parts; ++part) {
            const int first = first_byte(product, right) + part * leading;
            const int count = by_box ? 2 * stride : byte_count(product, right);
            if (first < to + bytes && to < first + count) {
              throw HostError("a copy to byte " + std::to_string(to) +
                              " of shared memory, which a product reads");
            }
          }
        }
      }
    }
  }
}

void WgmmaMachine::begin_products(int thread) {
  const Unwatched unwatched;
  lanes_[static_cast<std::size_t>(thread)].is_fenced = true;
}

void WgmmaMachine::multiply(int thread, const Product& product) {
  const Unwatched unwatched;
  Lane& lane = lanes_[static_cast<std::size_t>(thread)];
  if (!lane.is_fenced) throw HostError("a product without a fence before it");
  const std::uint64_t kSwizzle = std::uint64_t{3} << 62;
  for (const std::uint64_t descriptor : {product.left, product.right}) {
    if (descriptor != 0 && (descriptor & kSwizzle) != std::uint64_t{1} << 62) {
      throw HostError("a descriptor without the 128-byte swizzle");
    }
  }
  for (const bool right : {false, true}) {
    if (!right && product.from_registers) continue;
    note(thread,
         {Event::Kind::kProduct, 0, 0, first_byte(product, right), byte_count(product, right)});
  }
  // What has landed is checked here, too: the device may read at once.
  if (thread % kGroupThreads == 0) check_landed(product);
  Product own = product;
  if (own.from_registers) std::copy_n(own.rows, 4, own.rows_then);
  const int count = own.columns / 2;
  if (lane.sums.count(own.sums) == 0) {
    lane.sums[own.sums].assign(own.sums, own.sums + count);
    std::fill_n(own.sums, count, std::numeric_limits<float>::quiet_NaN());
  }
  lane.groups.back().push_back(own);
}

void WgmmaMachine::check_landed(const Product& product) const {
  for (int row = 0; row < product.columns; row += 8) {
    for (int k = 0; k < 16; k += 8) {
      element(product.right, !product.from_registers, row, k);
      if (!product.from_registers && row < 64) element(product.left, true, row, k);
    }
  }
}

void WgmmaMachine::commit_products(int thread) {
  const Unwatched unwatched;
  note(thread, {Event::Kind::kCommit, 0, 0, 0, 0});
  lanes_[static_cast<std::size_t>(thread)].groups.emplace_back();
}

void WgmmaMachine::wait_products(const HostBlock& block, int pending) {
  const Unwatched unwatched;
  const int thread = block.thread();
  note(thread, {Event::Kind::kWaitProducts, 0, pending, 0, 0});
  Lane& lane = lanes_[static_cast<std::size_t>(thread)];
  lane.is_fenced = false;
  lane.waits_for = pending;
  Group& group = groups_[static_cast<std::size_t>(thread / kGroupThreads)];
  const std::int64_t passed = group.passed;
  if (++group.waiting == kGroupThreads) {
    group.waiting = 0;
    run_group(thread / kGroupThreads, pending);
    ++group.passed;
  }
  block.wait_until([&] { return group.passed != passed; });
}

/// Computes the groups of products but the last `pending`.
void WgmmaMachine::run_group(int group, int pending) {
  const int first = group * kGroupThreads;
  Lane* const lanes = lanes_.data() + first;
  for (int n = 1; n < kGroupThreads; ++n) {
    if (lanes[n].waits_for != pending || lanes[n].groups.size() != lanes[0].groups.size()) {
      throw HostError("a warpgroup's threads wait for different products");
    }
  }
  while (static_cast<int>(lanes[0].groups.size()) - 1 > pending) {
    for (std::size_t n = 0; n < lanes[0].groups[0].size(); ++n) run_product(first, n);
    for (int n = 0; n < kGroupThreads; ++n) {
      lanes[n].groups.erase(lanes[n].groups.begin());
    }
  }
  // Sums that no product is under way for are the thread's again.
  for (int n = 0; n < kGroupThreads; ++n) {
    for (auto sums = lanes[n].sums.begin(); sums != lanes[n].sums.end();) {
      bool is_used = false;
      for (const auto& products : lanes[n].groups) {
        for (const Product& product : products) is_used = is_used || product.sums == sums->first;
      }
      if (is_used) {
        ++sums;
        continue;
      }
      std::copy(sums->second.begin(), sums->second.end(), sums->first);
      sums = lanes[n].sums.erase(sums);
    }
  }
}

/// The index-th product of the first group of a warpgroup: 64 rows, 16 of each warp.
void WgmmaMachine::run_product(int first_thread, std::size_t index) {
  Lane* const lanes = lanes_.data() + first_thread;
  const Product whole = lanes[0].groups[0][index];
  for (int n = 0; n < kGroupThreads; ++n) {
    const Product& own = lanes[n].groups[0].at(index);
    if (own.left != whole.left || own.right != whole.right || own.columns != whole.columns ||
        own.accumulates != whole.accumulates || own.from_registers != whole.from_registers) {
      throw HostError("a warpgroup's threads multiply different operands");
    }
    if (own.from_registers && std::memcmp(own.rows, own.rows_then, sizeof(own.rows_then)) != 0) {
      throw HostError("an operand in registers changed while it was multiplied");
    }
  }
  const auto widen = [&](std::uint16_t x) {
    return static_cast<double>(whole.is_bf16 ? problem::from_bf16(x) : problem::from_f16(x));
  };
  double left[64][2][8];
  for (int row = 0; row < 64; ++row) {
    for (int k = 0; k < 16; ++k) {
      std::uint16_t bits;
      if (whole.from_registers) {
        const int lane = row / 16 * 32 + row % 8 * 4 + k % 8 / 2;
        const std::uint32_t pair = lanes[lane].groups[0][index].rows_then[row % 16 / 8 + k / 8 * 2];
        bits = static_cast<std::uint16_t>(pair >> (k % 2 * 16));
      } else {
        bits = element(whole.left, true, row, k);
      }
      left[row][k / 8][k % 8] = widen(bits);
    }
  }
  for (int column = 0; column < whole.columns; column += 2) {
    Two right[2][8];
    for (int k = 0; k < 16; ++k) {
      right[k / 8][k % 8] = Two{widen(element(whole.right, !whole.from_registers, column, k)),
                                widen(element(whole.right, !whole.from_registers, column + 1, k))};
    }
    for (int row = 0; row < 64; ++row) {
      Lane& lane = lanes[row / 16 * 32 + row % 8 * 4 + column % 8 / 2];
      float* const sums =
          lane.sums.at(lane.groups[0][index].sums).data() + column / 8 * 4 + row % 16 / 8 * 2;
      if (!whole.accumulates) sums[0] = sums[1] = 0.0f;
      for (int half = 0; half < 2; ++half) add_as_tensor_cores(left[row][half], right[half], sums);
    }
  }
}

}  // namespace regard::cuda_test
