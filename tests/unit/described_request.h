#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>

#include "regard/request.h"

// Requests for the tests of describe, over memory that nobody reads.

namespace regard::described {

inline constexpr std::int64_t kB = 2, kHq = 8, kHkv = 4, kSq = 6, kSkv = 10, kD = 16, kDv = 32;
inline constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

// Memory for every tensor of a request and to spare; describe reads none of it.
struct Arena {
  alignas(64) unsigned char bytes[1 << 20];
};
inline unsigned char* arena(std::size_t offset) {
  static const auto memory = std::make_unique<Arena>();
  return memory->bytes + offset;
}

inline constexpr std::size_t kSlot = 32768;  // bytes that each tensor below has for itself

inline TensorView tensor(std::size_t slot, Dtype dtype, std::initializer_list<std::int64_t> shape) {
  return make_view(arena(slot * kSlot), dtype, shape);
}

inline AttentionRequest good_request() {
  AttentionRequest r;
  r.q = tensor(0, Dtype::kF32, {kB, kHq, kSq, kD});
  r.k = tensor(1, Dtype::kF32, {kB, kHkv, kSkv, kD});
  r.v = tensor(2, Dtype::kF32, {kB, kHkv, kSkv, kDv});
  r.out = tensor(3, Dtype::kF32, {kB, kHq, kSq, kDv});
  return r;
}

// Everything at once that the spine knows.
inline AttentionRequest full_request() {
  AttentionRequest r = good_request();
  r.lse = tensor(4, Dtype::kF32, {kB, kHq, kSq});
  r.saved_stats = tensor(5, Dtype::kF32, {kB, kHq, kSq, 2});
  r.scores_out = tensor(6, Dtype::kF32, {kB, kHq, kSq, kSkv});
  r.attn_mask = tensor(7, Dtype::kBool, {kB, 1, kSq, kSkv});
  r.attn_bias = tensor(8, Dtype::kF32, {1, kHq, 1, kSkv});
  r.alibi_slopes = tensor(9, Dtype::kF32, {kHq});
  r.sinks = tensor(10, Dtype::kF32, {kHq});
  r.segment_ids_q = tensor(11, Dtype::kI32, {kB, kSq});
  r.segment_ids_kv = tensor(12, Dtype::kI32, {kB, kSkv});
  r.seqlens_q = tensor(13, Dtype::kI32, {kB});
  r.seqlens_kv = tensor(14, Dtype::kI32, {kB});
  r.options.is_causal = true;
  r.options.diagonal = Diagonal::kBottomRight;
  r.options.window_left = 3;
  r.options.scores_kind = ScoresKind::kEdited;
  r.options.dropout_p = 0.25;
  r.options.softcap = 20.0;
  r.options.softmax_scale = 0.5;
  r.options.needs_grad = true;
  return r;
}

}  // namespace regard::described
