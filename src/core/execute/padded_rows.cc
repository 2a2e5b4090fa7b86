#include "core/execute/padded_rows.h"

#include <cstddef>
#include <cstring>
#include <limits>

namespace regard {
namespace {

std::vector<std::int32_t> seqlens_of(const Lengths& lengths) {
  std::vector<std::int32_t> seqlens;
  const auto starts = lengths.cu_seqlens();
  for (std::size_t b = 0; b + 1 < starts.size(); ++b) {
    seqlens.push_back(starts[b + 1] - starts[b]);
  }
  return seqlens;
}

/// Calls f(offset) with the first element of each head at each position that holds no row.
template <class F>
void for_each_padding(const Lengths& lengths, const TensorView& view, F f) {
  auto next = lengths.indices().begin();
  for (std::int64_t b = 0; b < lengths.batch(); ++b) {
    for (std::int64_t s = 0; s < lengths.seqlen(); ++s) {
      if (next != lengths.indices().end() && *next == b * lengths.seqlen() + s) {
        ++next;
        continue;
      }
      for (std::int64_t h = 0; h < view.shape[1]; ++h) {
        f(b * view.strides[0] + h * view.strides[1] + s * view.strides[2]);
      }
    }
  }
}

template <class T>
void clear_statistics_of(const Lengths& lengths, const TensorView& view) {
  T* const data = static_cast<T*>(view.data);
  for_each_padding(lengths, view, [&](std::int64_t at) {
    data[at] = -std::numeric_limits<T>::infinity();
    if (view.rank == 4) data[at + view.strides[3]] = T(0);
  });
}

}  // namespace

SeqlensOf::SeqlensOf(const PaddedSequences& sequences)
    : sequences_(sequences), q_(seqlens_of(sequences.q)), kv_(seqlens_of(sequences.kv)) {}

void SeqlensOf::set(AttentionRequest* request) const {
  const Lengths &q = sequences_.q, &kv = sequences_.kv;
  request->seqlens_q = make_view(q_.data(), Dtype::kI32, {q.batch()});
  // The same lengths are one view: a diagonal may then stay unnamed.
  request->seqlens_kv =
      q == kv ? request->seqlens_q : make_view(kv_.data(), Dtype::kI32, {kv.batch()});
  request->options.tokens_q = q.total();
  request->options.tokens_kv = kv.total();
}

MaskOf::MaskOf(const Lengths& kv)
    : kv_(kv), keys_(static_cast<std::size_t>(kv.batch() * kv.seqlen()), 0) {
  for (const std::int64_t index : kv.indices()) keys_[static_cast<std::size_t>(index)] = 1;
}

TensorView MaskOf::view() const {
  return make_view(keys_.data(), Dtype::kU8, {kv_.batch(), 1, 1, kv_.seqlen()});
}

void clear_rows(const Lengths& lengths, const TensorView& view) {
  if (!view.present()) return;
  const std::int64_t size = size_of(view.dtype);
  for_each_padding(lengths, view, [&](std::int64_t at) {
    std::memset(static_cast<char*>(view.data) + at * size, 0,
                static_cast<std::size_t>(view.shape[3] * size));
  });
}

void clear_statistics(const Lengths& lengths, const TensorView& view) {
  if (!view.present()) return;
  if (view.dtype == Dtype::kF64) {
    clear_statistics_of<double>(lengths, view);
  } else {
    clear_statistics_of<float>(lengths, view);
  }
}

}  // namespace regard
