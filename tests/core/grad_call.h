#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "regard/request.h"

namespace regard::test {

// A backward whose d_v is 1 everywhere, d_q and d_k 0; every gradient starts as 7.
struct GradCall {
  explicit GradCall(std::int64_t seqlen = 4, std::int64_t heads = 2, std::int64_t head_dim = 8)
      : data(static_cast<std::size_t>(heads * seqlen * head_dim), 0.25f),
        out(data),
        ones(data.size(), 1.0f),
        stats(static_cast<std::size_t>(heads * seqlen * 2)),
        d_q(data.size(), 7.0f),
        d_k(d_q),
        d_v(d_q),
        d_bias(static_cast<std::size_t>(seqlen), 7.0f),
        d_sinks(static_cast<std::size_t>(heads), 7.0f),
        bias(d_bias.size(), 0.0f),
        sinks(d_sinks.size(), 0.0f) {
    const auto rows = [&](std::vector<float>& memory) {
      return make_view(memory.data(), {1, heads, seqlen, head_dim});
    };
    request.q = request.k = request.v = rows(data);
    request.out = rows(out);
    request.d_out = rows(ones);
    request.d_q = rows(d_q);
    request.d_k = rows(d_k);
    request.d_v = rows(d_v);
    for (std::size_t i = 0; i < stats.size(); i += 2) {
      stats[i] = 0.25f * 0.25f * std::sqrt(static_cast<float>(head_dim));
      stats[i + 1] = static_cast<float>(seqlen);
    }
    request.saved.kind = SavedContext::Kind::kStats;
    request.saved.stats = make_view(stats.data(), {1, heads, seqlen, 2});
  }
  /// With a bias for each key and sinks, and gradients of them.
  void add_edits() {
    const auto keys = static_cast<std::int64_t>(bias.size());
    request.attn_bias = make_view(bias.data(), {1, 1, 1, keys});
    request.d_bias = make_view(d_bias.data(), {1, 1, 1, keys});
    request.sinks = make_view(sinks.data(), {request.q.shape[1]});
    request.d_sinks = make_view(d_sinks.data(), {request.q.shape[1]});
  }
  bool untouched() const {
    for (const auto* memory : {&d_q, &d_k, &d_v, &d_bias, &d_sinks}) {
      for (const float x : *memory) {
        if (x != 7.0f) return false;
      }
    }
    return true;
  }
  bool right() const {
    for (std::size_t i = 0; i < d_v.size(); ++i) {
      if (std::fabs(d_v[i] - 1) > 1e-6 || std::fabs(d_q[i]) > 1e-6 || std::fabs(d_k[i]) > 1e-6) {
        return false;
      }
    }
    return true;
  }
  std::vector<float> data, out, ones, stats, d_q, d_k, d_v, d_bias, d_sinks, bias, sinks;
  AttentionGradRequest request;
};

}  // namespace regard::test
