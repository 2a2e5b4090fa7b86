#include "cpu/append.h"

#include <cstring>

#include "cpu/kv_operand.h"
#include "cpu/threads/run_tasks.h"

namespace regard::cpu {
namespace {

/// Rows [b, head, :, :] of `rows` follow the first `length` keys of `cache`.
void append_rows(const View& rows, const KvOperand& cache, std::int64_t b, std::int64_t head,
                 std::int64_t count, std::int64_t length) {
  const auto bytes = static_cast<std::size_t>(cache.dim * element_bytes(cache.type));
  for (std::int64_t s = 0; s < count; ++s) {
    char* const to = const_cast<char*>(row_of(cache, length + s));  // K and V are in-out here
    std::memcpy(to, row_address(rows, b, head, s), bytes);
  }
}

/// Task (b, kv head).
void append_head(const void* args, std::int64_t task, char*) {
  const Problem& p = *static_cast<const Problem*>(args);
  const std::int64_t b = task / p.num_heads_kv, head = task % p.num_heads_kv;
  const std::int64_t length = sequence_of(p, b).band.len_kv - p.seqlen_new;
  append_rows(p.k_new, k_operand(p, b, head), b, head, p.seqlen_new, length);
  append_rows(p.v_new, v_operand(p, b, head), b, head, p.seqlen_new, length);
}

}  // namespace

void append_keys(const Problem& problem, std::int32_t workers, const Launch& launch) {
  if (problem.seqlen_new == 0) return;
  const std::int64_t tasks = problem.batch * problem.num_heads_kv;
  const std::int64_t elements =
      tasks * problem.seqlen_new * (problem.head_dim_qk + problem.head_dim_v);
  constexpr std::int64_t kWorthWorkers = 1 << 19;  // fewer are copied before workers are up
  run_tasks({append_head, &problem, tasks, 0}, elements < kWorthWorkers ? 1 : workers, launch);
}

}  // namespace regard::cpu
