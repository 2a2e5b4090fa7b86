#include "tools/llm/kv_cache.h"

#include <algorithm>
#include <limits>
#include <new>
#include <string>

namespace llm {

using regard::Dtype;
using regard::Expected;
using regard::make_view;
using regard::Status;
using regard::StatusCode;

namespace {

std::int64_t ceil_div(std::int64_t n, std::int64_t d) { return (n + d - 1) / d; }

/// false where the product does not fit.
bool multiply_checked(std::int64_t factor, std::int64_t* product) {
  return !__builtin_mul_overflow(*product, factor, product);
}

}  // namespace

Expected<KvCache> KvCache::make(std::int64_t layers, std::int64_t heads_kv, std::int64_t head_dim,
                                const CacheOptions& options) {
  if (options.sequences < 1 || options.capacity < 1 || options.page_size < 0) {
    return Status(StatusCode::kInvalidArgument,
                  "[cache] sequences (" + std::to_string(options.sequences) + ") and positions (" +
                      std::to_string(options.capacity) +
                      ") must be at least 1, and the page size (" +
                      std::to_string(options.page_size) + ") at least 0");
  }
  KvCache cache;
  cache.options_ = options;
  cache.heads_kv_ = heads_kv;
  cache.head_dim_ = head_dim;
  cache.entries_ = options.sequences;
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();  // lengths, page numbers
  bool fits = options.sequences <= kMax && options.capacity <= kMax && options.page_size <= kMax;
  const std::int64_t pages =
      options.page_size == 0 || !fits ? 1 : ceil_div(options.capacity, options.page_size);
  fits = fits && multiply_checked(pages, &cache.entries_) && cache.entries_ <= kMax;
  std::int64_t rows = cache.entries_;
  fits =
      fits && multiply_checked(heads_kv, &rows) && multiply_checked(cache.rows_of_entry(), &rows);
  std::int64_t bytes = rows;
  fits = fits && multiply_checked(cache.row_code_bytes(), &bytes);
  std::int64_t scale_bytes = rows;
  fits = fits && multiply_checked(sizeof(float), &scale_bytes);
  const auto too_large = [&] {
    return Status(StatusCode::kOutOfMemory,
                  "[cache] no memory for " + std::to_string(options.sequences) + " sequences of " +
                      std::to_string(options.capacity) +
                      " positions; reduce --max-seq-length or --num-samples");
  };
  if (!fits) return too_large();
  try {
    const auto scales = static_cast<std::size_t>(rows * cache.scales_of_row());
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      Layer& made = cache.layers_.emplace_back();
      made.k = allocate_rows(bytes);
      made.v = allocate_rows(bytes);
      made.scales_k.assign(scales, 1.0f);
      made.scales_v.assign(scales, 1.0f);
    }
    const auto sequences = static_cast<std::size_t>(options.sequences);
    cache.lengths_.resize(sequences);
    cache.used_.resize(sequences);
    cache.pages_.resize(sequences);
    cache.page_uses_.resize(static_cast<std::size_t>(cache.entries_));
    for (std::int64_t page = cache.entries_; page-- > 0;) {
      cache.free_pages_.push_back(static_cast<std::int32_t>(page));
    }
  } catch (const std::bad_alloc&) {
    return too_large();
  }
  return cache;
}

std::int64_t KvCache::row_code_bytes() const noexcept {
  return regard::bytes_of(options_.dtype, head_dim_);
}

std::int64_t KvCache::scales_of_row() const noexcept {
  if (options_.dtype == Dtype::kU4) return 2 * ceil_div(head_dim_, regard::kGroupSize);
  return regard::is_quantised(options_.dtype) ? 1 : 0;
}

std::int64_t KvCache::rows_of_entry() const noexcept {
  return options_.page_size == 0 ? options_.capacity : options_.page_size;
}

std::int64_t KvCache::row_bytes() const noexcept {
  const std::int64_t scales = scales_of_row() * static_cast<std::int64_t>(sizeof(float));
  return 2 * heads_kv_ * (row_code_bytes() + scales) * static_cast<std::int64_t>(layers_.size());
}

std::int64_t KvCache::free_sequences() const noexcept {
  return std::count(used_.begin(), used_.end(), false);
}

std::int32_t KvCache::add() {
  const auto free = std::find(used_.begin(), used_.end(), false);
  *free = true;
  const auto sequence = static_cast<std::int32_t>(free - used_.begin());
  lengths_[index(sequence)] = 0;
  return sequence;
}

std::int32_t KvCache::fork(std::int32_t sequence) {
  const std::int32_t made = add();
  const std::int64_t length = lengths_[index(sequence)];
  lengths_[index(made)] = length;
  if (options_.page_size == 0) {
    copy_rows(sequence, made, length);
    return made;
  }
  release_pages(sequence, length);  // those of a step that failed are not shared
  pages_[index(made)] = pages_[index(sequence)];
  for (const std::int32_t page : pages_[index(made)]) ++page_uses_[index(page)];
  return made;
}

void KvCache::remove(std::int32_t sequence) {
  release_pages(sequence, 0);
  used_[index(sequence)] = false;
}

void KvCache::truncate(std::int32_t sequence, std::int64_t length) {
  lengths_[index(sequence)] = length;
  release_pages(sequence, length);
}

std::int32_t KvCache::take_page() {
  const std::int32_t page = free_pages_.back();
  free_pages_.pop_back();
  page_uses_[index(page)] = 1;
  return page;
}

void KvCache::release_pages(std::int32_t sequence, std::int64_t keep_rows) {
  if (options_.page_size == 0) return;
  std::vector<std::int32_t>& pages = pages_[index(sequence)];
  const auto keep = static_cast<std::size_t>(ceil_div(keep_rows, options_.page_size));
  while (pages.size() > keep) {
    if (--page_uses_[index(pages.back())] == 0) free_pages_.push_back(pages.back());
    pages.pop_back();
  }
}

void KvCache::copy_rows(std::int32_t from_entry, std::int32_t to_entry, std::int64_t rows) {
  const auto copy = [&](auto* values, std::int64_t row_elements) {
    const std::int64_t head = rows_of_entry() * row_elements;
    for (std::int64_t h = 0; h < heads_kv_; ++h) {
      std::copy_n(values + (from_entry * heads_kv_ + h) * head, rows * row_elements,
                  values + (to_entry * heads_kv_ + h) * head);
    }
  };
  for (Layer& layer : layers_) {
    copy(layer.k.get(), row_code_bytes());
    copy(layer.v.get(), row_code_bytes());
    copy(layer.scales_k.data(), scales_of_row());
    copy(layer.scales_v.data(), scales_of_row());
  }
}

void KvCache::begin_step(std::span<const std::int32_t> sequences, std::int64_t rows) {
  if (options_.page_size != 0) {
    for (const std::int32_t sequence : sequences) reserve_pages(sequence, rows);
  }
  fill_batch(sequences);
}

void KvCache::reserve_pages(std::int32_t sequence, std::int64_t rows) {
  std::vector<std::int32_t>& own = pages_[index(sequence)];
  const std::int64_t kept = length(sequence) % options_.page_size;
  if (kept != 0 && rows > 0 && page_uses_[index(own.back())] > 1) {  // copied before it is written
    const std::int32_t shared = own.back();
    --page_uses_[index(shared)];
    own.back() = take_page();
    copy_rows(shared, own.back(), kept);
  }
  const std::int64_t pages = ceil_div(length(sequence) + rows, options_.page_size);
  while (static_cast<std::int64_t>(own.size()) < pages) own.push_back(take_page());
}

void KvCache::fill_batch(std::span<const std::int32_t> sequences) {
  batch_entries_.assign(sequences.begin(), sequences.end());
  batch_lengths_.clear();
  for (const std::int32_t sequence : sequences) {
    batch_lengths_.push_back(static_cast<std::int32_t>(length(sequence)));
  }
  if (options_.page_size == 0) return;
  const auto width = static_cast<std::size_t>(ceil_div(options_.capacity, options_.page_size));
  batch_pages_.assign(sequences.size() * width, -1);
  for (std::size_t b = 0; b < sequences.size(); ++b) {
    const std::vector<std::int32_t>& own = pages_[index(sequences[b])];
    std::copy(own.begin(), own.end(),
              batch_pages_.begin() + static_cast<std::ptrdiff_t>(b * width));
  }
}

void KvCache::bind(std::int64_t layer, regard::AttentionRequest* request) {
  Layer& own = layers_[static_cast<std::size_t>(layer)];
  const std::int64_t rows = rows_of_entry();
  request->k = make_view(own.k.get(), options_.dtype, {entries_, heads_kv_, rows, head_dim_});
  request->v = make_view(own.v.get(), options_.dtype, {entries_, heads_kv_, rows, head_dim_});
  request->options.hadamard = options_.hadamard;
  if (options_.dtype == Dtype::kU4) {
    const std::int64_t scales = scales_of_row();
    request->scales_k = make_view(own.scales_k.data(), {entries_, heads_kv_, rows, scales});
    request->scales_v = make_view(own.scales_v.data(), {entries_, heads_kv_, rows, scales});
  } else if (scales_of_row() == 1) {
    request->scales_k = make_view(own.scales_k.data(), {entries_, heads_kv_, rows});
    request->scales_v = make_view(own.scales_v.data(), {entries_, heads_kv_, rows});
  }
  const auto batch = static_cast<std::int64_t>(batch_lengths_.size());
  request->seqlens_kv = make_view(batch_lengths_.data(), {batch});
  request->options.page_size = options_.page_size;
  if (options_.page_size == 0) {
    request->cache_batch_idx = make_view(batch_entries_.data(), {batch});
  } else {
    const auto width = static_cast<std::int64_t>(batch_pages_.size()) / batch;
    request->page_table = make_view(batch_pages_.data(), {batch, width});
  }
}

void KvCache::end_step(std::span<const std::int32_t> sequences, std::int64_t rows) {
  for (const std::int32_t sequence : sequences) lengths_[index(sequence)] += rows;
}

}  // namespace llm
