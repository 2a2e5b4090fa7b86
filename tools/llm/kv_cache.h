#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "regard/attention.h"
#include "tools/llm/row_memory.h"

namespace llm {

/// How keys and values are kept.
struct CacheOptions {
  regard::Dtype dtype =
      regard::Dtype::kF32;     // 8-bit types have a scale for each row, u4 two a group
  std::int64_t page_size = 0;  // rows; 0: a sequence's rows lie behind one another
  std::int64_t sequences = 1;  // at most, at once
  std::int64_t capacity = 0;   // rows of a sequence, at most
  bool hadamard = false;  // keys are rotated by the Walsh-Hadamard matrix before they are stored
};

/// The keys and values of all layers, of sequences by number. With pages, sequences that were
/// forked share pages until one of them writes. Positions count from 0.
class KvCache {
 public:
  /// Allocates what the options allow: pages for every sequence to reach its capacity.
  static regard::Expected<KvCache> make(std::int64_t layers, std::int64_t heads_kv,
                                        std::int64_t head_dim, const CacheOptions& options);

  /// A new, empty sequence; there must be one that is free.
  std::int32_t add();
  /// A sequence with the rows of another one.
  std::int32_t fork(std::int32_t sequence);
  void remove(std::int32_t sequence);
  /// Drops rows from `length` on.
  void truncate(std::int32_t sequence, std::int64_t length);
  std::int64_t length(std::int32_t sequence) const { return lengths_[index(sequence)]; }
  std::int64_t capacity() const noexcept { return options_.capacity; }
  std::int64_t free_sequences() const noexcept;

  /// Room for `rows` more rows of each; they must fit the capacity. Then lengths and pages of the
  /// batch are those that bind() gives, until the next call.
  void begin_step(std::span<const std::int32_t> sequences, std::int64_t rows);
  /// The keys, values, scales, lengths and pages of the batch for one layer.
  void bind(std::int64_t layer, regard::AttentionRequest* request);
  /// Appended rows count from now on.
  void end_step(std::span<const std::int32_t> sequences, std::int64_t rows);

  std::int64_t row_bytes() const noexcept;  // of K and V of one position, in all layers
  const CacheOptions& options() const noexcept { return options_; }

 private:
  /// K and V [entries, heads_kv, rows, head_dim], and the scales of their rows.
  struct Layer {
    RowMemory k, v;
    std::vector<float> scales_k, scales_v;
  };

  static std::size_t index(std::int32_t sequence) { return static_cast<std::size_t>(sequence); }
  std::int64_t rows_of_entry() const noexcept;
  std::int64_t row_code_bytes() const noexcept;  // of K of one head and position
  std::int64_t scales_of_row() const noexcept;   // 0: the type has none
  std::int32_t take_page();
  void release_pages(std::int32_t sequence, std::int64_t keep_rows);
  void copy_rows(std::int32_t from_entry, std::int32_t to_entry, std::int64_t rows);
  void reserve_pages(std::int32_t sequence, std::int64_t rows);
  void fill_batch(std::span<const std::int32_t> sequences);

  CacheOptions options_;
  std::int64_t heads_kv_ = 0, head_dim_ = 0, entries_ = 0;
  std::vector<Layer> layers_;
  std::vector<std::int64_t> lengths_;
  std::vector<bool> used_;
  std::vector<std::vector<std::int32_t>> pages_;  // of each sequence
  std::vector<std::int32_t> page_uses_, free_pages_;
  std::vector<std::int32_t> batch_entries_, batch_pages_, batch_lengths_;
};

}  // namespace llm
