#include "oracle/rules.h"

#include <cmath>
#include <limits>

#include "oracle/number.h"
#include "oracle/philox.h"

namespace regard::oracle {

double element(const TensorView& view, std::int64_t i0, std::int64_t i1, std::int64_t i2,
               std::int64_t i3) {
  const std::int64_t index[kMaxRank] = {i0, i1, i2, i3};
  std::int64_t offset = 0;
  for (int dim = 0; dim < view.rank; ++dim) {
    if (view.shape[dim] > 1) offset += index[dim] * view.strides[dim];
  }
  if (view.dtype == Dtype::kU4) {  // two in a byte, the first in its low half
    const unsigned pair = static_cast<const unsigned char*>(view.data)[offset / 2];
    return static_cast<double>(offset % 2 == 0 ? pair & 15u : pair >> 4);
  }
  return decode(static_cast<const char*>(view.data) + offset * size_of(view.dtype), view.dtype);
}

TensorView as_codes(TensorView bytes) {
  bytes.dtype = Dtype::kU4;
  bytes.shape[bytes.rank - 1] *= 2;
  for (int dim = 0; dim + 1 < bytes.rank; ++dim) bytes.strides[dim] *= 2;
  return bytes;
}

void set_element(const TensorView& view, const std::int64_t (&index)[kMaxRank], double value) {
  std::int64_t offset = 0;
  for (int dim = 0; dim < view.rank; ++dim) offset += index[dim] * view.strides[dim];
  if (view.dtype != Dtype::kU4) {
    return encode(value, static_cast<char*>(view.data) + offset * size_of(view.dtype), view.dtype);
  }
  unsigned char code = 0;
  encode(value, &code, Dtype::kU4);
  unsigned char& pair = static_cast<unsigned char*>(view.data)[offset / 2];
  pair = static_cast<unsigned char>(offset % 2 == 0 ? (pair & 0xf0u) | code
                                                    : (pair & 0x0fu) | code << 4);
}

double Rules::number(const TensorView& rows, const TensorView& scales, const Place& at) const {
  const double code = element(rows, at.b, at.h, at.i, at.j);
  if (!scales.present() || fault_ == Fault::kScalesIgnored) return code;
  if (rows.dtype != Dtype::kU4) return code * element(scales, at.b, at.h, at.i, at.j);
  const std::int64_t group = at.j / 32;  // a scale and a minimum for each
  return code * element(scales, at.b, at.h, at.i, 2 * group) +
         element(scales, at.b, at.h, at.i, 2 * group + 1);
}

std::int64_t Rules::len_q(std::int64_t b) const {
  if (!request_.seqlens_q.present()) return request_.q.shape[2];
  return static_cast<std::int64_t>(element(request_.seqlens_q, b));
}

std::int64_t Rules::len_kv(std::int64_t b) const {
  if (!request_.seqlens_kv.present()) return request_.k.shape[2];
  return static_cast<std::int64_t>(element(request_.seqlens_kv, b));
}

std::int64_t Rules::kv_head(std::int64_t h) const {
  const std::int64_t heads_kv = request_.k.shape[1];
  const std::int64_t head = h / (request_.q.shape[1] / heads_kv);
  return fault_ == Fault::kNeighbourHead ? (head + 1) % heads_kv : head;
}

Int128 Rules::window_right() const {
  return request_.options.is_causal ? 0 : request_.options.window_right;
}

Int128 Rules::position(std::int64_t b, std::int64_t i) const {
  Int128 shift = 0;
  if (request_.options.diagonal == Diagonal::kBottomRight) {
    shift = Int128{len_kv(b)} - len_q(b);
  } else if (request_.options.diagonal == Diagonal::kOffset) {
    shift = request_.diagonal_offset;
    if (const TensorView& offsets = request_.diagonal_offsets; offsets.present()) {
      // Read as the integer it is: a double holds only 53 bits.
      const auto* data = static_cast<const std::int64_t*>(offsets.data);
      shift = data[offsets.shape[0] > 1 ? b * offsets.strides[0] : 0];
    }
  }
  if (fault_ == Fault::kDiagonalOffByOne) shift += 1;
  return i + shift;
}

bool Rules::in_window(const Place& at) const {
  const Int128 distance = at.j - position(at.b, at.i);  // right of the diagonal: positive
  if (window_right() >= 0 && distance > window_right()) return false;
  const Int128 left = request_.options.window_left;
  if (left < 0) return true;
  return fault_ == Fault::kWindowExclusive ? -distance < left : -distance <= left;
}

bool Rules::hidden_by_tree(const Place& at) const {
  const TensorView& tree = request_.tree_mask;
  if (!tree.present() || fault_ == Fault::kTreeIgnored) return false;
  const std::int64_t column = at.j - (len_kv(at.b) - tree.shape[2]);
  return column >= 0 && element(tree, at.b, at.i, column) == 0.0;
}

bool Rules::visible_without_functions(const Place& at) const {
  if (at.i >= len_q(at.b) || at.j >= len_kv(at.b)) return false;
  if (!in_window(at)) return false;
  if (request_.attn_mask.present() && element(request_.attn_mask, at.b, at.h, at.i, at.j) == 0.0) {
    return false;
  }
  if (hidden_by_tree(at)) return false;
  if (request_.segment_ids_q.present() &&
      element(request_.segment_ids_q, at.b, at.i) != element(request_.segment_ids_kv, at.b, at.j)) {
    return false;
  }
  return bias(at) != -std::numeric_limits<double>::infinity();
}

FunctionPlace Rules::function_place(const Place& at) const {
  const Int128 shifted = fault_ == Fault::kQueryPositionUnshifted ? at.i : position(at.b, at.i);
  return {static_cast<std::int32_t>(at.b),
          static_cast<std::int32_t>(at.h),
          static_cast<std::int32_t>(at.i),
          static_cast<std::int32_t>(at.j),
          static_cast<std::int32_t>(static_cast<std::uint32_t>(shifted)),
          static_cast<std::int32_t>(len_q(at.b)),
          static_cast<std::int32_t>(len_kv(at.b))};
}

Sight Rules::see(const Place& at) const {
  if (!visible_without_functions(at)) return {false, true};
  return functions_->see(function_place(at), fault_);
}

double Rules::softmax_scale() const {
  if (request_.options.softmax_scale) return *request_.options.softmax_scale;
  const std::int64_t head_dim = request_.q.shape[3];
  return head_dim == 0 ? 1.0 : 1.0 / std::sqrt(static_cast<double>(head_dim));
}

double Rules::bias(const Place& at) const {
  if (!request_.attn_bias.present()) return 0.0;
  return element(request_.attn_bias, at.b, at.h, at.i, at.j);
}

double Rules::alibi(const Place& at) const {
  const TensorView& slopes = request_.alibi_slopes;
  if (!slopes.present()) return 0.0;
  const double slope = slopes.rank == 1 ? element(slopes, at.h) : element(slopes, at.b, at.h);
  const Int128 distance = position(at.b, at.i) - at.j;
  return -slope * static_cast<double>(distance < 0 ? -distance : distance);
}

double Rules::dropout_keep_factor() const {
  if (request_.options.dropout_p == 0.0 || fault_ == Fault::kDropoutNotScaled) return 1.0;
  return 65536.0 / dropout_threshold(request_.options.dropout_p);
}

double Rules::dropout_factor(const Place& at) const {
  if (request_.options.dropout_p == 0.0) return 1.0;
  const DropoutOrigin& origin = request_.dropout_origin;
  const DropoutPlace place{
      static_cast<std::uint64_t>(at.b),
      static_cast<std::uint64_t>(origin.heads != 0 ? origin.heads : request_.q.shape[1]),
      static_cast<std::uint64_t>(origin.head + at.h),
      static_cast<std::uint32_t>(position(at.b, at.i) + origin.position),
      static_cast<std::uint64_t>(origin.key + at.j)};
  const std::uint32_t draw = dropout_draw(request_.rng_seed, request_.rng_offset, place);
  const bool kept = draw < dropout_threshold(request_.options.dropout_p);
  return kept ? dropout_keep_factor() : 0.0;
}

}  // namespace regard::oracle
