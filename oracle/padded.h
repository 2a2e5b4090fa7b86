#pragma once

#include <cstdint>
#include <vector>

#include "oracle/gradients.h"
#include "oracle/oracle.h"
#include "regard/request.h"
#include "regard/status.h"

// Packed sequences, and keys in pages or in entries of a cache, as the padded call that means the
// same: docs/semantics.md defines them by it.

namespace regard::oracle {

/// Which sequence a packed row belongs to; b is -1 behind the last one.
struct PackedRow {
  std::int64_t b = -1;
  std::int64_t position = 0;
};

/// cu_seqlens as numbers, checked.
class Starts {
 public:
  static Expected<Starts> read(const TensorView& cu_seqlens, std::int64_t total, const char* name);
  std::int64_t count() const { return static_cast<std::int64_t>(starts_.size()) - 1; }
  std::int64_t begin(std::int64_t b) const { return starts_[static_cast<std::size_t>(b)]; }
  std::int64_t length(std::int64_t b) const { return begin(b + 1) - begin(b); }
  std::int64_t longest() const;
  PackedRow find(std::int64_t row) const;

 private:
  std::vector<std::int64_t> starts_;
};

/// Where a key lies in K and V: an entry of their first dimension (of the batch, or a page), and a
/// row of the third. Entry -1: in no page.
struct KeyPlace {
  std::int64_t entry = -1;
  std::int64_t row = 0;
};

/// A request over packed sequences with its tensors padded, and lengths for what cu_seqlens say;
/// the keys of a cache in the order of the batch, with those that the call appends. Other requests
/// stay as they are.
class Padded {
 public:
  static Expected<Padded> make(const AttentionGradRequest& given);
  Padded(Padded&&) = default;

  const AttentionGradRequest& request() const { return padded_; }
  bool is_packed() const { return is_packed_; }
  /// The logical place of a row in memory: the same where nothing is packed.
  PackedRow query_of(std::int64_t b, std::int64_t row) const;
  /// Where key j of sequence b lies in memory; keys follow cache_leftpad's rows.
  KeyPlace place_of_key(std::int64_t b, std::int64_t j) const;

  /// Results of the padded request in the places of the packed one.
  Truth pack(Truth padded) const;
  GradTruth pack(GradTruth padded) const;

 private:
  Padded() = default;
  Status pad_all(const AttentionGradRequest& packed);
  Status pad_packed_keys(const AttentionGradRequest& packed);
  Status pad_cache(const AttentionGradRequest& cached);
  Status check_cache(const AttentionGradRequest& cached) const;
  Status mix();
  Status append();
  Status skip_leftpad();
  void append_row(const TensorView& rows, bool of_k, std::int64_t b, std::int64_t h, std::int64_t i,
                  std::int64_t key);
  static void append_groups(const TensorView& cache, const TensorView& scales,
                            const std::vector<double>& numbers, std::int64_t b, std::int64_t h,
                            std::int64_t key);
  TensorView pad_packed_scales(TensorView scales, const Starts& starts, std::int64_t total);
  TensorView pad_scales(const TensorView& scales, std::int64_t batch, std::int64_t seqlen);
  Status rotate(const AttentionGradRequest& cached);
  void rotate_row(const TensorView& cos, const TensorView& sin, std::int64_t position,
                  const TensorView& from, const TensorView& to, const std::int64_t (&row)[3]) const;
  TensorView pad_cached_rows(const TensorView& rows, std::int64_t batch, std::int64_t seqlen);
  TensorView add_dense(TensorView view);
  TensorView add_copy(const TensorView& view);
  TensorView pad_rows(const TensorView& rows, const Starts& starts, int row_dim);
  TensorView pad_lengths(const TensorView& given, const Starts& starts);

  AttentionGradRequest padded_;
  TensorView page_table_, entries_, leftpad_;
  std::int64_t rows_ = 0;                               // that a sequence may have in a cache
  bool scale_a_row_k_ = false, scale_a_row_v_ = false;  // in a cache: new rows bring theirs
  std::int64_t page_size_ = 0;
  bool is_packed_ = false;
  std::int64_t total_q_ = 0, total_kv_ = 0;
  Starts q_, kv_;
  std::vector<std::vector<char>> memory_;
};

}  // namespace regard::oracle
