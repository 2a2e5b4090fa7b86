#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "examples/train_tiny/model.h"

// Text as numbers, and batches of it.

namespace train {

/// Bytes of files, each different one a symbol.
class Text {
 public:
  /// Appends a file; false when it cannot be read.
  bool add(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return false;
    bytes_.append(std::istreambuf_iterator<char>(file), {});
    return !file.bad();
  }
  /// Numbers the symbols in the order of their bytes.
  void finish() {
    std::array<int, 256> symbol{};
    for (const char byte : bytes_) symbol[static_cast<unsigned char>(byte)] = 1;
    for (int& s : symbol) s = s != 0 ? vocabulary_++ : -1;
    for (const char byte : bytes_) symbols_.push_back(symbol[static_cast<unsigned char>(byte)]);
  }
  std::int64_t size() const { return static_cast<std::int64_t>(bytes_.size()); }
  std::int64_t vocabulary() const { return vocabulary_; }
  int symbol(std::int64_t at) const { return symbols_[static_cast<std::size_t>(at)]; }

 private:
  std::string bytes_;
  std::vector<int> symbols_;
  int vocabulary_ = 0;
};

/// Pieces of a text [batch][context], and the symbol that follows each.
struct Batch {
  std::vector<int> inputs, targets;
};

inline Batch draw_batch(const Text& text, const Sizes& sizes, Random* random) {
  Batch batch;
  for (std::int64_t b = 0; b < sizes.batch; ++b) {
    const auto places = static_cast<std::uint64_t>(text.size() - sizes.context);
    const auto begin = static_cast<std::int64_t>(random->next() % places);
    for (std::int64_t i = 0; i < sizes.context; ++i) {
      batch.inputs.push_back(text.symbol(begin + i));
      batch.targets.push_back(text.symbol(begin + i + 1));
    }
  }
  return batch;
}

}  // namespace train
