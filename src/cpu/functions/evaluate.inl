// Functions over a tile of scores: a chunk of keys after the other, each step over the whole chunk.
// Included by isa_<isa>.cc.

#include <cstdint>

#include "cpu/functions/function_kernel.h"
#include "cpu/functions/steps.inl"

namespace regard::cpu {

using semantics::FunctionProgram;
using semantics::FunctionRank;
using semantics::FunctionScatter;

/// An integer, or a bool of all ones, in every lane.
template <class V>
REGARD_KERNEL_FN typename V::Vec int_lanes(std::int32_t x) {
  return V::from_bits(typename V::Int{} + typename V::IntScalar{x});
}

/// A program on a tile, and its registers.
template <class V>
struct FunctionRun {
  using T = typename V::Scalar;
  using IntScalar = typename V::IntScalar;
  const problem::Functions& functions;
  const FunctionProgram& program;
  const FunctionTile& tile;
  FunctionLayout layout;
  T* registers;
  // The chunk at hand:
  std::int64_t key = 0;       // its first, counted from the tile's
  std::int64_t keys = 0;      //
  const T* scores = nullptr;  // of its first key

  T* register_of(const FunctionStep& step) const {
    const int rank = static_cast<int>(step.rank);
    return registers + (layout.at[rank] + step.to * layout.register_size[rank]) * V::kLanes;
  }
  std::int64_t key_stride(FunctionRank rank) const {
    if (rank == FunctionRank::kFull) return tile.vectors * V::kLanes;
    return rank == FunctionRank::kKey ? V::kLanes : 0;
  }
  /// What a step computed.
  FunctionOperand<V> value_of(int index) const {
    const FunctionStep& step = program.steps[index];
    if (step.op == FunctionOp::kScore) return {scores, V::kWidth, V::kLanes};
    const bool in_rows = step.rank == FunctionRank::kRow || step.rank == FunctionRank::kFull;
    return {register_of(step), key_stride(step.rank), in_rows ? V::kLanes : 0};
  }
};

template <class V>
static FunctionRun<V> function_run(const problem::Functions& functions,
                                   const FunctionProgram& program, const FunctionTile& tile,
                                   char* memory) {
  return {functions, program, tile, function_layout(program, tile.vectors, sizeof(typename V::Vec)),
          reinterpret_cast<typename V::Scalar*>(memory)};
}

/// A constant or a place; places of rows in all lanes, others in one vector or one for each key.
template <class V>
static void run_leaf(const FunctionRun<V>& run, const FunctionStep& step) {
  using T = typename V::Scalar;
  using IntScalar = typename V::IntScalar;
  const FunctionTile& tile = run.tile;
  T* const to = run.register_of(step);
  const int lanes = tile.vectors * V::kLanes;
  const auto fill_rows = [&](auto value_at) __attribute__((always_inline)) {
    for (int w = 0; w < lanes; ++w) {
      const IntScalar value = static_cast<std::int32_t>(value_at(w));
      __builtin_memcpy(to + w, &value, sizeof(value));
    }
  };
  switch (step.op) {
    case FunctionOp::kConstant: {
      const bool is_bool = step.type == FunctionType::kBool;
      if (step.type == FunctionType::kReal) {
        return V::store(to, V::set(problem::from_f64<T>(step.value)));
      }
      return V::store(to,
                      int_lanes<V>(static_cast<std::int32_t>(is_bool ? -step.value : step.value)));
    }
    case FunctionOp::kBatch: return fill_rows([&](int) { return tile.b; });
    case FunctionOp::kHead: return fill_rows([&](int w) { return tile.head[w]; });
    case FunctionOp::kQuery: return fill_rows([&](int w) { return tile.query[w]; });
    case FunctionOp::kPosition:
      return fill_rows([&](int w) {
        return static_cast<std::uint32_t>(tile.query[w]) + static_cast<std::uint32_t>(tile.shift);
      });
    case FunctionOp::kLenQ: return fill_rows([&](int) { return tile.len_q; });
    case FunctionOp::kLenKv: return fill_rows([&](int) { return tile.len_kv; });
    case FunctionOp::kKey:
      for (std::int64_t j = 0; j < run.keys; ++j) {
        const auto number = static_cast<std::int32_t>(tile.key + run.key + j);
        V::store(to + j * V::kLanes, int_lanes<V>(number));
      }
      return;
    default: return;
  }
}

/// 2^n where a divisor is that constant.
template <class V>
REGARD_KERNEL_FN PowerDivisor power_divisor(const FunctionProgram& program,
                                            const FunctionStep& step) {
  const bool divides = step.op == FunctionOp::kFloorDiv || step.op == FunctionOp::kRemainder;
  if (!divides || program.steps[step.args[1]].op != FunctionOp::kConstant) return {};
  const auto divisor = static_cast<std::int32_t>(program.steps[step.args[1]].value);
  if (divisor <= 0 || (divisor & (divisor - 1)) != 0) return {};
  return {true, __builtin_ctz(static_cast<unsigned>(divisor))};
}

/// One step over the chunk; `to`: the step's register, or where its values go instead.
template <class V>
static void run_step_of(const FunctionRun<V>& run, const FunctionStep& step, typename V::Scalar* to,
                        std::int64_t to_stride) {
  if (step.count == 0) return run_leaf(run, step);
  const bool has_keys = step.rank == FunctionRank::kKey || step.rank == FunctionRank::kFull;
  const bool has_rows = step.rank == FunctionRank::kRow || step.rank == FunctionRank::kFull;
  const int vectors = has_rows ? run.tile.vectors : 1;
  StepPlaces<V> places{};
  for (int a = 0; a < step.count; ++a) places.args[a] = run.value_of(step.args[a]);
  places.to = to;
  places.to_stride = to_stride;
  places.keys = has_keys ? run.keys : 1;
  if (step.op == FunctionOp::kGather) {
    const problem::CapturedView& view = run.functions.captured[step.slot];
    return run_gather<V>(view, step.count, vectors, !has_rows, places);
  }
  const PowerDivisor by = power_divisor<V>(run.program, step);
  with_vectors<V::kVectors>(
      vectors, [&](auto count) __attribute__((always_inline)) {
        run_step<V, decltype(count)::value>(step, by, places);
      });
}

template <class V>
static void run_rank(const FunctionRun<V>& run, FunctionRank rank, std::int32_t end) {
  for (std::int32_t i = run.program.rank_begin[static_cast<int>(rank)]; i < end; ++i) {
    const FunctionStep& step = run.program.steps[i];
    if (step.op == FunctionOp::kScore) continue;
    run_step_of(run, step, run.register_of(step), run.key_stride(rank));
  }
}

template <class V>
REGARD_KERNEL_FN std::int32_t end_of(const FunctionRun<V>& run, FunctionRank rank) {
  return run.program.rank_begin[static_cast<int>(rank) + 1];
}

/// Calls f(run) for each chunk of the tile's keys once its steps of rank kKey have run; f runs
/// those of rank kFull.
template <class V, class F>
REGARD_KERNEL_FN void for_key_chunks(const problem::Functions& functions,
                                     const FunctionProgram& program, const FunctionTile& tile,
                                     const void* scores, char* memory, F f) {
  FunctionRun<V> run = function_run<V>(functions, program, tile, memory);
  run_rank(run, FunctionRank::kConstant, end_of(run, FunctionRank::kConstant));
  run_rank(run, FunctionRank::kRow, end_of(run, FunctionRank::kRow));
  for (run.key = 0; run.key < tile.size; run.key += run.layout.keys) {
    const std::int64_t left = tile.size - run.key;
    run.keys = left < run.layout.keys ? left : run.layout.keys;
    run.scores = static_cast<const typename V::Scalar*>(scores) + run.key * V::kWidth;
    run_rank(run, FunctionRank::kKey, end_of(run, FunctionRank::kKey));
    f(run);
  }
}

/// scores = f(scores, value) of every place of a chunk.
template <class V, class F>
REGARD_KERNEL_FN void edit_chunk(const FunctionRun<V>& run, const FunctionOperand<V>& value,
                                 typename V::Scalar* scores, F f) {
  StepPlaces<V> places{};
  places.args[0] = {scores, V::kWidth, V::kLanes};
  places.args[1] = value;
  places.to = scores;
  places.to_stride = V::kWidth;
  places.keys = run.keys;
  with_vectors<V::kVectors>(
      run.tile.vectors, [&](auto count) __attribute__((always_inline)) {
        for_places<V, decltype(count)::value, 2>(places, f);
      });
}

template <class V>
static void edit_by_function(const problem::Functions& functions, const FunctionTile& tile,
                             void* scores, char* memory) {
  const FunctionProgram& program = functions.score;
  const FunctionStep& result = program.steps[program.result];
  // The last step writes to the scores themselves.
  const bool is_last = program.result == program.count - 1 && result.rank == FunctionRank::kFull &&
                       result.op != FunctionOp::kScore;
  for_key_chunks<V>(
      functions, program, tile, scores,
      memory, [&](const FunctionRun<V>& run) __attribute__((always_inline)) {
        auto* const to = static_cast<typename V::Scalar*>(scores) + run.key * V::kWidth;
        const std::int32_t end = end_of(run, FunctionRank::kFull) - (is_last ? 1 : 0);
        run_rank(run, FunctionRank::kFull, end);
        if (is_last) return run_step_of(run, result, to, V::kWidth);
        edit_chunk(
            run, run.value_of(program.result), to,
            [](auto, auto value) __attribute__((always_inline)) { return value; });
      });
}

template <class V>
static void mask_by_function(const problem::Functions& functions, const FunctionTile& tile,
                             void* scores, char* memory) {
  const FunctionProgram& program = functions.mask;
  for_key_chunks<V>(
      functions, program, tile, scores,
      memory, [&](const FunctionRun<V>& run) __attribute__((always_inline)) {
        auto* const to = static_cast<typename V::Scalar*>(scores) + run.key * V::kWidth;
        run_rank(run, FunctionRank::kFull, end_of(run, FunctionRank::kFull));
        const auto minus_infinity = V::set(static_cast<typename V::Scalar>(-__builtin_inf()));
        edit_chunk(
            run, run.value_of(program.result),
            to, [&](auto score, auto attends) __attribute__((always_inline)) {
              return V::select(V::to_bits(attends), score, minus_infinity);
            });
      });
}

template <class V>
REGARD_KERNEL_FN typename V::Int hidden_bits() {
  return V::to_bits(V::set(static_cast<typename V::Scalar>(-0.0)));
}

template <class V>
static void differentiate_function(const problem::Functions& functions, const FunctionTile& tile,
                                   const void* scores, void* d_scores, char* memory) {
  const FunctionProgram& program = functions.gradient;
  for_key_chunks<V>(
      functions, program, tile, scores,
      memory, [&](const FunctionRun<V>& run) __attribute__((always_inline)) {
        auto* const to = static_cast<typename V::Scalar*>(d_scores) + run.key * V::kWidth;
        run_rank(run, FunctionRank::kFull, end_of(run, FunctionRank::kFull));
        edit_chunk(
            run, run.value_of(program.result),
            to, [&](auto d, auto slope) __attribute__((always_inline)) {
              return V::select(V::to_bits(d) == hidden_bits<V>(), d, d * slope);
            });
      });
}

/// The strides of a captured tensor's sums, which are dense.
struct DenseStrides {
  std::int64_t stride[4];
};
REGARD_KERNEL_FN DenseStrides dense_strides(const problem::CapturedView& view, int dims) {
  DenseStrides dense{};
  std::int64_t next = 1;
  for (int d = dims - 1; d >= 0; --d) {
    dense.stride[d] = next;
    next *= view.extent[d];
  }
  return dense;
}

/// The elements at a gather's indices += d_scores * derivative, over the chunk's visible places.
template <class V>
static void scatter_chunk(const FunctionRun<V>& run, const FunctionScatter& scatter,
                          const typename V::Scalar* d_scores, const CapturedSums& to) {
  using T = typename V::Scalar;
  const FunctionStep& gather = run.program.steps[scatter.gather];
  const DenseStrides strides = dense_strides(run.functions.captured[gather.slot], gather.count);
  StepPlaces<V> places{};
  for (int a = 0; a < gather.count; ++a) places.args[a] = run.value_of(gather.args[a]);
  const FunctionOperand<V> slope = run.value_of(scatter.derivative);
  const std::int64_t first = to.first[gather.slot];
  const auto size = static_cast<std::uint64_t>(to.size);
  with_dims(
      gather.count, [&](auto count) __attribute__((always_inline)) {
        for (std::int64_t j = 0; j < run.keys; ++j) {
          for (int v = 0; v < run.tile.vectors; ++v) {
            const auto from = gather_indices<V>(places, count.value, j, v);
            const T* const d = d_scores + j * V::kWidth + v * V::kLanes;
            const T* const by = slope.at + j * slope.key_stride + v * slope.vector_stride;
            const std::int64_t rows = run.tile.rows - v * V::kLanes;
            for (int lane = 0; lane < V::kLanes && lane < rows; ++lane) {
              if (d[lane] == T(0) && __builtin_signbit(d[lane])) continue;
              const std::int64_t at =
                  first + GatherIndices<V>::template place<count.value>(from, strides.stride, lane);
              if (static_cast<std::uint64_t>(at) >= size) continue;
              to.sums[at] += static_cast<double>(d[lane]) * static_cast<double>(by[lane]);
            }
          }
        }
      });
}

template <class V>
static void scatter_function(const problem::Functions& functions, const FunctionTile& tile,
                             const void* scores, const void* d_scores, const CapturedSums& to,
                             char* memory) {
  const FunctionProgram& program = functions.gradient;
  for_key_chunks<V>(
      functions, program, tile, scores,
      memory, [&](const FunctionRun<V>& run) __attribute__((always_inline)) {
        run_rank(run, FunctionRank::kFull, end_of(run, FunctionRank::kFull));
        const auto* const d =
            static_cast<const typename V::Scalar*>(d_scores) + run.key * V::kWidth;
        for (std::int32_t i = 0; i < program.scatter_count; ++i) {
          const FunctionScatter& scatter = program.scatters[i];
          const bool is_wanted = to.is_wanted[program.steps[scatter.gather].slot];
          if (is_wanted) scatter_chunk(run, scatter, d, to);
        }
      });
}

template <class V>
constexpr FunctionKernel kFunctions = {
    edit_by_function<V>, mask_by_function<V>, differentiate_function<V>, scatter_function<V>,
    V::kLanes,           V::kVectors,         sizeof(typename V::Scalar)};

}  // namespace regard::cpu
