#include "core/execute/packed_copies.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/checked.h"

namespace regard {
namespace {

constexpr std::int64_t kAlign = 64;

std::int64_t bytes_of_copy(const TensorView& padded, std::int64_t total) {
  const std::int64_t row = padded.shape[1] * (padded.rank == 4 ? padded.shape[3] : 1);
  return round_up(total * row * size_of(padded.dtype), kAlign);
}

/// [total,H,D]; or [total,H] that lies as [H,total].
TensorView rows_at(void* data, const TensorView& padded, std::int64_t total) {
  const std::int64_t heads = padded.shape[1];
  return padded.rank == 4 ? make_view(data, padded.dtype, {total, heads, padded.shape[3]})
                          : make_view(data, padded.dtype, {total, heads}, {1, total});
}

/// As a request has them: [1,H,total,D] or [H,total].
TensorView as_packed(const TensorView& rows) {
  if (rows.rank == 2) return make_view(rows.data, rows.dtype, {rows.shape[1], rows.shape[0]});
  return make_view(rows.data, rows.dtype, {1, rows.shape[1], rows.shape[0], rows.shape[2]},
                   {rows.num_elements(), rows.strides[1], rows.strides[0], 1});
}

/// The mask or bias of the longest sequences.
void crop(TensorView* view, std::int64_t seqlen_q, std::int64_t seqlen_kv) {
  if (!view->present()) return;
  if (view->shape[2] != 1) view->shape[2] = seqlen_q;
  if (view->shape[3] != 1) view->shape[3] = seqlen_kv;
}

}  // namespace

TensorView by_position(const TensorView& view) {
  TensorView made = view;
  std::swap(made.shape[1], made.shape[2]);
  std::swap(made.strides[1], made.strides[2]);
  return made;
}

PackedCopies::~PackedCopies() {
  if (block_.data != nullptr) context_.workspaces.give_back(block_);
}

void PackedCopies::add(TensorView* view, const Lengths& lengths, Role role) {
  if (view->present()) copies_.push_back({view, *view, &lengths, role, {}});
}

Status PackedCopies::pack() {
  std::int64_t bytes = kAlign;
  for (const Copy& copy : copies_) bytes += bytes_of_copy(copy.padded, copy.lengths->total());
  const Expected<Workspace> block = context_.workspaces.lease(static_cast<std::size_t>(bytes));
  if (!block) return block.status();
  block_ = *block;
  char* at = static_cast<char*>(block_.data);
  for (Copy& copy : copies_) {
    const std::int64_t total = copy.lengths->total();
    copy.rows = rows_at(at, copy.padded, total);
    at += bytes_of_copy(copy.padded, total);
    *copy.view = as_packed(copy.rows);
    if (copy.role != Role::kInput) continue;
    const Status status = unpad(*copy.lengths, by_position(copy.padded), copy.rows);
    if (!status.ok()) return status;
  }
  return {};
}

Status PackedCopies::unpack() const {
  for (const Copy& copy : copies_) {
    if (copy.role != Role::kOutput) continue;
    const Status status = pad(*copy.lengths, copy.rows, by_position(copy.padded));
    if (!status.ok()) return status;
  }
  return {};
}

void set_packed(const PaddedSequences& sequences, AttentionRequest* request, TensorView* d_bias) {
  const Lengths &q = sequences.q, &kv = sequences.kv;
  request->cu_seqlens_q = q.cu_seqlens_view();
  // The same sequences are one view: a diagonal may then stay unnamed.
  request->cu_seqlens_kv = q == kv ? request->cu_seqlens_q : kv.cu_seqlens_view();
  request->max_seqlen_q = q.max_seqlen();
  request->max_seqlen_kv = kv.max_seqlen();
  for (TensorView* view : {&request->attn_mask, &request->attn_bias, d_bias}) {
    if (view != nullptr) crop(view, q.max_seqlen(), kv.max_seqlen());
  }
}

}  // namespace regard
