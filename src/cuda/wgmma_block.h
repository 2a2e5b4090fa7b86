#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

// Declares CuTe's 64 x 80 x 16 products, too.
#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED
#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>
#include <cute/arch/cluster_sm90.hpp>
#include <cute/arch/copy_sm90_desc.hpp>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/arch/mma_sm90.hpp>

#include "cuda/tensor.cuh"
#include "cuda/tensor_box.h"

// For .cu files alone: a kernel's view of a block with what compute capability 9.0 adds, on CuTe's
// atoms. Kernels that need it are templates over a Block, which offers beside DeviceBlock's
//
//   int group() const
//     the thread's warpgroup
//   std::uint32_t address(offset) const
//     of a byte of shared memory, for descriptors
//   void init_barrier(at, arrivals) const
//     a barrier (mbarrier) at a byte of shared memory, whose phase is over after so many arrivals
//   void fence_barriers() const
//     copies find barriers made before it
//   void arrive(at), arrive_expecting(at, bytes) const
//     an arrival; of so many bytes, too, which copies bring before the phase is over
//   void wait(at, parity) const
//     for the end of the phase of that parity
//   void load_box(map, barrier, to, place) const
//     begins a copy, one thread alone; see tensor_box.h
//   void sync_part(id, threads), arrive_part(id, threads) const
//     a barrier of some threads; of those that arrive, none waits
//   void shrink_registers<n>(), grow_registers<n>() const
//     of the warpgroup's threads
//
// and for a warpgroup, whose first warp has rows 0 to 15 of 64,
//
//   void begin_products(sums) const
//     what comes next may multiply sums and registers as they are now
//   void multiply<type>(left, right, sums, accumulates) const
//     sums += left right^T, 64 rows, 16 terms; descriptors of shared memory, rows of terms
//   void multiply_rows<type>(rows, right, sums) const
//     the same with a warp's rows in registers, and columns of `right` the result's
//   void commit_products() const
//     those since the last commit are a group
//   void wait_products<n>(sums) const
//     for all but the last n groups: until then sums and operands are not touched

namespace regard::cuda {

class WgmmaBlock : public DeviceBlock {
 public:
  /// `shared` has kBoxAlign bytes more than the kernel's layout.
  __device__ __forceinline__ explicit WgmmaBlock(unsigned char* shared)
      : DeviceBlock(shared),
        base_((static_cast<std::uint32_t>(__cvta_generic_to_shared(shared)) + kBoxAlign - 1) &
              ~static_cast<std::uint32_t>(kBoxAlign - 1)) {}

  /// The same for all lanes of a warp.
  __device__ __forceinline__ int group() const { return uniform(thread() / 128); }
  __device__ __forceinline__ std::uint32_t address(int offset) const { return base_ + offset; }

  __device__ __forceinline__ void init_barrier(int at, int arrivals) const {
    Barrier::init(barrier(at), static_cast<std::uint32_t>(arrivals));
  }
  __device__ __forceinline__ void fence_barriers() const { cutlass::arch::fence_barrier_init(); }
  __device__ __forceinline__ void arrive(int at) const { Barrier::arrive(barrier(at)); }
  __device__ __forceinline__ void arrive_expecting(int at, int bytes) const {
    Barrier::arrive_and_expect_tx(barrier(at), static_cast<std::uint32_t>(bytes));
  }
  __device__ __forceinline__ void wait(int at, int parity) const {
    Barrier::wait(barrier(at), static_cast<std::uint32_t>(parity));
  }
  __device__ __forceinline__ void load_box(const CUtensorMap& map, int at, int to,
                                           const BoxPlace& place) const {
    constexpr auto kHint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    cute::SM90_TMA_LOAD_4D::copy(&map, barrier(at), kHint, pointer(to), place.column, place.row,
                                 place.head, place.batch);
  }
  __device__ __forceinline__ void sync_part(int id, int threads) const {
    cutlass::arch::NamedBarrier::sync(threads, id);
  }
  __device__ __forceinline__ void arrive_part(int id, int threads) const {
    cutlass::arch::NamedBarrier::arrive(threads, id);
  }
  template <int kRegisters>
  __device__ __forceinline__ void shrink_registers() const {
    cutlass::arch::warpgroup_reg_dealloc<kRegisters>();
  }
  template <int kRegisters>
  __device__ __forceinline__ void grow_registers() const {
    cutlass::arch::warpgroup_reg_alloc<kRegisters>();
  }

  template <int kColumns>
  __device__ __forceinline__ void begin_products(WarpSums<kColumns>& sums) const {
    fence(sums);
    cute::warpgroup_arrive();
  }
  template <problem::Element kType, int kColumns>
  __device__ __forceinline__ void multiply(std::uint64_t left, std::uint64_t right,
                                           WarpSums<kColumns>& sums, bool accumulates) const {
    using Number = NumberOf<kType>;
    using Atom = decltype(cute::SM90::GMMA::ss_op_selector<Number, Number, float, Tile<kColumns>,
                                                           cute::SM90::GMMA::Major::K,
                                                           cute::SM90::GMMA::Major::K>());
    call<Atom>(sums, cute::make_index_sequence<kColumns / 2>(),
               accumulates ? cute::SM90::GMMA::ScaleOut::One : cute::SM90::GMMA::ScaleOut::Zero,
               left, right);
  }
  template <problem::Element kType, int kColumns>
  __device__ __forceinline__ void multiply_rows(const std::uint32_t (&rows)[4], std::uint64_t right,
                                                WarpSums<kColumns>& sums) const {
    using Number = NumberOf<kType>;
    using Atom = decltype(cute::SM90::GMMA::rs_op_selector<Number, Number, float, Tile<kColumns>,
                                                           cute::SM90::GMMA::Major::K,
                                                           cute::SM90::GMMA::Major::MN>());
    call<Atom>(sums, cute::make_index_sequence<kColumns / 2>(), cute::SM90::GMMA::ScaleOut::One,
               rows[0], rows[1], rows[2], rows[3], right);
  }
  __device__ __forceinline__ void commit_products() const { cute::warpgroup_commit_batch(); }
  template <int kPending, int kColumns>
  __device__ __forceinline__ void wait_products(WarpSums<kColumns>& sums) const {
    cute::warpgroup_wait<kPending>();
    fence(sums);
  }

 private:
  using Barrier = cutlass::arch::ClusterTransactionBarrier;
  template <problem::Element kType>
  using NumberOf =
      cute::conditional_t<kType == problem::Element::kBf16, cute::bfloat16_t, cute::half_t>;
  template <int kColumns>
  using Tile = cute::Shape<cute::_64, cute::Int<kColumns>, cute::_16>;

  /// Sums are operands of one instruction.
  template <class Atom, int kColumns, std::size_t... kIndices, class... Operands>
  static __device__ __forceinline__ void call(WarpSums<kColumns>& sums,
                                              cute::index_sequence<kIndices...>,
                                              cute::SM90::GMMA::ScaleOut scale,
                                              Operands... operands) {
    Atom::fma(operands..., sums.at[kIndices / 4][kIndices % 4]..., scale);
  }
  template <int kColumns>
  static __device__ __forceinline__ void fence(WarpSums<kColumns>& sums) {
    REGARD_DEVICE_UNROLL
    for (int n = 0; n < kColumns / 2; ++n) cute::warpgroup_fence_operand(sums.at[n / 4][n % 4]);
  }

  __device__ __forceinline__ unsigned char* pointer(int offset) const {
    return static_cast<unsigned char*>(__cvta_shared_to_generic(base_ + offset));
  }
  __device__ __forceinline__ std::uint64_t* barrier(int at) const {
    return reinterpret_cast<std::uint64_t*>(pointer(at));
  }

  std::uint32_t base_;
};

}  // namespace regard::cuda
