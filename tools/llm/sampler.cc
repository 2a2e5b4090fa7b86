#include "tools/llm/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace llm {

Sampler::Sampler(const Sampling& sampling, std::int64_t sample)
    : sampling_(sampling), random_(sampling.seed + static_cast<std::uint64_t>(sample)) {}

std::int32_t argmax(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

std::int32_t Sampler::draw(std::span<const float> logits) {
  if (sampling_.temperature == 0.0) return argmax(logits);
  order_.resize(logits.size());
  std::iota(order_.begin(), order_.end(), 0);
  const auto above = [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (sampling_.top_k > 0 && sampling_.top_k < static_cast<std::int64_t>(order_.size())) {
    std::nth_element(order_.begin(), order_.begin() + sampling_.top_k, order_.end(), above);
    order_.resize(static_cast<std::size_t>(sampling_.top_k));
  }
  // One order for all C++ libraries, so that a seed's tokens depend on nothing else.
  std::sort(order_.begin(), order_.end(), above);
  const double max = logits[static_cast<std::size_t>(order_.front())];
  weights_.clear();
  double sum = 0.0;
  for (const std::int32_t token : order_) {
    sum += std::exp((logits[static_cast<std::size_t>(token)] - max) / sampling_.temperature);
    weights_.push_back(sum);
  }
  const double unit = static_cast<double>(random_() >> 11) * 0x1p-53;  // [0, 1)
  const auto drawn = std::upper_bound(weights_.begin(), weights_.end() - 1, unit * sum);
  return order_[static_cast<std::size_t>(drawn - weights_.begin())];
}

}  // namespace llm
