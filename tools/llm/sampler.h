#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace llm {

struct Sampling {
  double temperature = 0.8;  // 0: the token with the largest logit
  std::int64_t top_k = 200;  // tokens that may be drawn; 0: all
  std::uint64_t seed = 0;
};

/// Draws tokens from logits; the same seed and logits give the same tokens.
class Sampler {
 public:
  Sampler(const Sampling& sampling, std::int64_t sample);
  std::int32_t draw(std::span<const float> logits);

 private:
  Sampling sampling_;
  std::mt19937_64 random_;
  std::vector<std::int32_t> order_;
  std::vector<double> weights_;
};

/// The first token with the largest logit.
std::int32_t argmax(std::span<const float> logits);

}  // namespace llm
