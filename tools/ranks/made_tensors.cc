#include "tools/ranks/made_tensors.h"

#include <algorithm>
#include <cmath>

namespace regard::ranks {

using distributed::Tensor;

double Elements::at(char tensor, std::int64_t b, std::int64_t h, std::int64_t row,
                    std::int64_t d) const noexcept {
  std::uint64_t x = seed * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(tensor);
  for (const std::int64_t part : {b, h, row, d}) {  // splitmix64 of each
    x += static_cast<std::uint64_t>(part) + 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
  }
  return (static_cast<double>(x >> 57) - 64.0) / 32.0;
}

Expected<Tensor> make_rows(Context& context, const Elements& elements, char tensor, Dtype dtype,
                           const std::vector<std::int64_t>& shape,
                           const std::vector<distributed::Piece>& pieces) {
  Tensor made = Tensor::uninitialized(dtype, shape);
  // A head at a time: a rank's memory is for its rows.
  const Tensor head = Tensor::uninitialized(Dtype::kF64, {shape[0], 1, shape[2], shape[3]});
  for (std::int64_t h = 0; h < shape[1]; ++h) {
    auto* to = static_cast<double*>(head.view().data);
    for (std::int64_t b = 0; b < shape[0]; ++b) {
      for (const distributed::Piece& piece : pieces) {
        for (std::int64_t row = piece.begin; row < piece.begin + piece.length; ++row) {
          for (std::int64_t d = 0; d < shape[3]; ++d) *to++ = elements.at(tensor, b, h, row, d);
        }
      }
    }
    const TensorView to_head = distributed::heads_of(made.view(), h, 1);
    if (Status s = distributed::convert(context, head.view(), to_head); !s.ok()) return s;
  }
  return made;
}

std::vector<double> Reference::row(std::int64_t b, std::int64_t h, std::int64_t query) const {
  const AttentionParams& p = params;
  const std::int64_t kv = h / (p.num_heads_q / p.num_heads_kv), at = query + shift;
  const std::int64_t first = p.window_left < 0 ? 0 : std::max<std::int64_t>(at - p.window_left, 0);
  const std::int64_t end =
      p.window_right < 0 ? p.seqlen_kv : std::min(at + p.window_right + 1, p.seqlen_kv);
  std::vector<double> q(static_cast<std::size_t>(p.head_dim_qk));
  for (std::size_t d = 0; d < q.size(); ++d) {
    q[d] = elements.at('q', b, h, query, static_cast<std::int64_t>(d));
  }
  std::vector<double> sums(static_cast<std::size_t>(p.head_dim_v), 0.0);
  double max = -HUGE_VAL, total = 0.0;
  for (std::int64_t key = first; key < end; ++key) {
    double score = 0.0;
    for (std::size_t d = 0; d < q.size(); ++d) {
      score += q[d] * elements.at('k', b, kv, key, static_cast<std::int64_t>(d));
    }
    score *= p.softmax_scale;
    if (p.softcap > 0.0) score = p.softcap * std::tanh(score / p.softcap);
    if (score > max) {
      const double rescale = std::exp(max - score);  // 0 at first
      for (double& sum : sums) sum *= rescale;
      total *= rescale;
      max = score;
    }
    const double weight = std::exp(score - max);
    total += weight;
    for (std::size_t d = 0; d < sums.size(); ++d) {
      sums[d] += weight * elements.at('v', b, kv, key, static_cast<std::int64_t>(d));
    }
  }
  for (double& sum : sums) sum = total > 0.0 ? sum / total : 0.0;
  return sums;
}

}  // namespace regard::ranks
