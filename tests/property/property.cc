#include "tests/property/property.h"

#include "cpu/split.h"
#include "cpu/task_sizes.h"
#include "cpu/threads/run_tasks.h"
#include "cpu/tiled_backend.h"
#include "oracle/rules.h"

namespace regard::test {

bool Property::sums_window_at_once(const AttentionRequest& request) const {
  if (GetParam().backend == kMathRef) return false;
  const AttentionParams params = describe(request).value();
  // Rows of keys in splits keep the grid; of sequences with lengths of their own some may be whole.
  const bool may_be_whole = params.features.has(Feature::kSeqlensKv) ||
                            params.features.has(Feature::kPacked) ||
                            cpu::num_splits(cpu::rows_per_head(params), params.seqlen_kv) == 1;
  return may_be_whole && cpu::has_narrow_window(params, cpu::kernel_of(params, GetParam().isa));
}

void Property::expect_same_call(const AttentionRequest& one, const AttentionRequest& other,
                                const std::string& what) {
  if (sums_window_at_once(one)) {
    expect_within_tolerance(one, oracle::compute(one).value(), what);
    expect_within_tolerance(other, oracle::compute(other).value(), what);
    return;
  }
  EXPECT_EQ(unequal(one.out, other.out), "") << what;
  EXPECT_EQ(unequal(one.lse, other.lse), "") << what;
}

AttentionRequest single_sequence(const AttentionRequest& request, std::int64_t b) {
  const oracle::Rules rules(request, oracle::Fault::kNone);
  const std::int64_t len_q = rules.len_q(b), len_kv = rules.len_kv(b);
  AttentionRequest r = request;
  for (TensorView* view : {&r.q, &r.k, &r.v, &r.out, &r.lse, &r.attn_mask, &r.attn_bias,
                           &r.segment_ids_q, &r.segment_ids_kv, &r.diagonal_offsets}) {
    *view = slice(*view, 0, b, 1);
  }
  if (r.alibi_slopes.rank == 2) r.alibi_slopes = slice(r.alibi_slopes, 0, b, 1);
  for (TensorView* view : {&r.q, &r.out, &r.lse, &r.attn_mask, &r.attn_bias}) {
    *view = slice(*view, 2, 0, len_q);
  }
  for (TensorView* view : {&r.k, &r.v}) *view = slice(*view, 2, 0, len_kv);
  for (TensorView* view : {&r.attn_mask, &r.attn_bias}) *view = slice(*view, 3, 0, len_kv);
  r.segment_ids_q = slice(r.segment_ids_q, 1, 0, len_q);
  r.segment_ids_kv = slice(r.segment_ids_kv, 1, 0, len_kv);
  r.seqlens_q = r.seqlens_kv = {};
  return r;
}

AttentionRequest some_keys(AttentionRequest r, std::int64_t begin, std::int64_t end) {
  for (TensorView* view : {&r.k, &r.v}) *view = slice(*view, 2, begin, end - begin);
  for (TensorView* view : {&r.attn_mask, &r.attn_bias}) *view = slice(*view, 3, begin, end - begin);
  r.segment_ids_kv = slice(r.segment_ids_kv, 1, begin, end - begin);
  if (r.options.diagonal == Diagonal::kOffset) r.diagonal_offset -= begin;
  if (begin > 0) r.sinks = {};  // once, with the first keys
  return r;
}

AttentionRequest some_queries(AttentionRequest r, std::int64_t begin, std::int64_t end) {
  for (TensorView* view : {&r.q, &r.out, &r.lse, &r.attn_mask, &r.attn_bias}) {
    *view = slice(*view, 2, begin, end - begin);
  }
  r.segment_ids_q = slice(r.segment_ids_q, 1, begin, end - begin);
  if (r.options.diagonal == Diagonal::kOffset) r.diagonal_offset += begin;
  return r;
}

AttentionRequest without_cache(AttentionRequest request, const oracle::Padded& twin) {
  const AttentionRequest& batch = twin.request();
  request.q = batch.q;
  request.k = batch.k;
  request.v = batch.v;
  request.scales_k = batch.scales_k;
  request.scales_v = batch.scales_v;
  request.seqlens_kv = batch.seqlens_kv;
  request.cache_leftpad = TensorView{};
  request.page_table = request.cache_batch_idx = request.k_new = request.v_new = TensorView{};
  request.rotary_cos = request.rotary_sin = request.positions = TensorView{};
  request.options.rotary_interleaved = request.options.hadamard = false;
  request.options.page_size = 0;
  return request;
}

}  // namespace regard::test
