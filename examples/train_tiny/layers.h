#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "examples/train_tiny/matmul.h"

// The layers of a transformer that are neither a product nor attention, forward and backward.

namespace train {

using Floats = std::vector<float>;

inline Floats zeros(std::int64_t count) { return Floats(static_cast<std::size_t>(count), 0.0f); }

/// RMSNorm: y = gain * x / sqrt(mean(x^2) + epsilon), row by row of x [rows][width].
struct Norm {
  const float* gain;
  std::int64_t width;
};

/// `inverse` [rows] is what the backward needs of it.
inline void forward(const Threads& threads, const Norm& norm, const Floats& x, Floats* y,
                    Floats* inverse) {
  const std::int64_t width = norm.width, rows = static_cast<std::int64_t>(x.size()) / width;
  threads.over(rows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const float* const from = x.data() + r * width;
      float* const to = y->data() + r * width;
      float squares = 0.0f;
      for (std::int64_t c = 0; c < width; ++c) squares += from[c] * from[c];
      const float scale = 1.0f / std::sqrt(squares / static_cast<float>(width) + 1e-5f);
      for (std::int64_t c = 0; c < width; ++c) to[c] = norm.gain[c] * from[c] * scale;
      (*inverse)[static_cast<std::size_t>(r)] = scale;
    }
  });
}

struct NormBackward {
  const Floats& x;
  const Floats& inverse;
  const Floats& d_y;
  Floats* d_x;  // added to: the residual goes round the norm
  float* d_gain;
};

inline void backward(const Threads& threads, const Norm& norm, const NormBackward& b) {
  const std::int64_t width = norm.width, rows = static_cast<std::int64_t>(b.x.size()) / width;
  threads.over(rows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const float* const x = b.x.data() + r * width;
      const float* const d_y = b.d_y.data() + r * width;
      float* const d_x = b.d_x->data() + r * width;
      const float inverse = b.inverse[static_cast<std::size_t>(r)];
      float along = 0.0f;
      for (std::int64_t c = 0; c < width; ++c) along += norm.gain[c] * d_y[c] * x[c];
      along *= inverse * inverse / static_cast<float>(width);
      for (std::int64_t c = 0; c < width; ++c) {
        d_x[c] += inverse * (norm.gain[c] * d_y[c] - along * x[c]);
      }
    }
  });
  threads.over(width, [&](std::int64_t begin, std::int64_t end) {
    std::fill(b.d_gain + begin, b.d_gain + end, 0.0f);
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t row = r * width;
      const float inverse = b.inverse[static_cast<std::size_t>(r)];
      for (std::int64_t c = begin; c < end; ++c) {
        b.d_gain[c] += b.d_y[static_cast<std::size_t>(row + c)] *
                       b.x[static_cast<std::size_t>(row + c)] * inverse;
      }
    }
  });
}

/// SiLU: y = x / (1 + e^-x).
inline void silu(const Threads& threads, const Floats& x, Floats* y) {
  threads.over(static_cast<std::int64_t>(x.size()), [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      (*y)[i] = x[i] / (1.0f + std::exp(-x[i]));
    }
  });
}

/// d becomes its product with the slope of SiLU at x.
inline void silu_backward(const Threads& threads, const Floats& x, Floats* d) {
  threads.over(static_cast<std::int64_t>(x.size()), [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      const float sigmoid = 1.0f / (1.0f + std::exp(-x[i]));
      (*d)[i] *= sigmoid * (1.0f + x[i] * (1.0f - sigmoid));
    }
  });
}

/// The mean of -log softmax(logits)[target] over rows of logits [rows][vocabulary], which become
/// their own gradients.
inline double cross_entropy(const Threads& threads, const std::vector<int>& targets,
                            std::int64_t vocabulary, Floats* logits) {
  const auto rows = static_cast<std::int64_t>(targets.size());
  std::vector<double> losses(targets.size());
  threads.over(rows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      float* const row = logits->data() + r * vocabulary;
      const int target = targets[static_cast<std::size_t>(r)];
      const float max = *std::max_element(row, row + vocabulary);
      const float score = row[target] - max;
      float sum = 0.0f;
      for (std::int64_t x = 0; x < vocabulary; ++x) sum += row[x] = std::exp(row[x] - max);
      losses[static_cast<std::size_t>(r)] = std::log(static_cast<double>(sum)) - score;
      const float each = 1.0f / static_cast<float>(rows);
      for (std::int64_t x = 0; x < vocabulary; ++x) row[x] *= each / sum;
      row[target] -= each;
    }
  });
  double sum = 0.0;
  for (const double loss : losses) sum += loss;
  return sum / static_cast<double>(rows);
}

/// Adam (Kingma and Ba 2015) over all parameters at once.
class Adam {
 public:
  explicit Adam(std::size_t count) : mean_(count, 0.0f), square_(count, 0.0f) {}

  void step(const Threads& threads, const Floats& gradients, float rate, Floats* parameters) {
    constexpr float kMean = 0.9f, kSquare = 0.99f, kEpsilon = 1e-8f;
    ++steps_;
    const auto n = static_cast<float>(steps_);
    const float mean_scale = 1.0f / (1.0f - std::pow(kMean, n));
    const float square_scale = 1.0f / (1.0f - std::pow(kSquare, n));
    const auto count = static_cast<std::int64_t>(gradients.size());
    threads.over(count, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
        const float g = gradients[i];
        mean_[i] = kMean * mean_[i] + (1.0f - kMean) * g;
        square_[i] = kSquare * square_[i] + (1.0f - kSquare) * g * g;
        const float spread = std::sqrt(square_[i] * square_scale) + kEpsilon;
        (*parameters)[i] -= rate * mean_[i] * mean_scale / spread;
      }
    });
  }

 private:
  Floats mean_, square_;
  int steps_ = 0;
};

}  // namespace train
