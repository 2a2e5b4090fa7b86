#include <cstring>

#include "base/message.h"
#include "core/describe/check_data.h"
#include "core/describe/overlap.h"
#include "core/describe/view_checks.h"
#include "core/text/thrown_by.h"
#include "regard/dropout.h"
#include "semantics/philox.h"
#include "semantics/row_bounds.h"

namespace regard {
namespace {

constexpr const char* kWhere = "dropout_mask";

// Tensors of a problem that hold where its sequences end and its diagonal lies.
struct PerSequence {
  const char* name;
  TensorView Buffers::*view;
  Feature feature;
  Dtype dtype;
};
constexpr PerSequence kPerSequence[] = {
    {"seqlens_q", &Buffers::seqlens_q, Feature::kSeqlensQ, Dtype::kI32},
    {"seqlens_kv", &Buffers::seqlens_kv, Feature::kSeqlensKv, Dtype::kI32},
    {"diagonal_offsets", &Buffers::diagonal_offsets, Feature::kDiagonalPerSequence, Dtype::kI64},
};

// A tensor that params do not have was not described, and the reverse.
Status check_per_sequence(const PerSequence& t, const AttentionParams& p, const TensorView& view,
                          const TensorView& kept) {
  // describe() takes no notice of offsets from which nothing is measured.
  if (t.feature == Feature::kDiagonalPerSequence && p.diagonal == Diagonal::kUnnamed) return {};
  if (p.features.has(t.feature) != view.present()) {
    return invalid(kWhere, t.name, view.present() ? " (present)" : " (absent)", " must be ",
                   view.present() ? "absent" : "present", ", as the params state");
  }
  if (!view.present()) return {};
  const NamedView named{t.name, view};
  ByteSpan span, written;
  if (Status s = expect_dtype(kWhere, named, {t.dtype}); !s.ok()) return s;
  if (Status s = expect_shape(kWhere, named, {p.batch}, "[B]"); !s.ok()) return s;
  if (Status s = check_view(kWhere, named, Device{}, &span); !s.ok()) return s;
  byte_span(kept, &written);
  if (!intersects(span, written) || proves_disjoint(view, kept)) return {};
  return invalid(kWhere, "kept ", to_string(kept), " must not overlap ", t.name, " ",
                 to_string(view));
}

Status check_arguments(const AttentionParams& p, const Buffers& buffers, const TensorView& kept) {
  if (Status s = validate(p, kWhere); !s.ok()) return s;
  if (p.features.has(Feature::kPacked)) {
    return invalid(kWhere, "params (", to_string(p), ") must not be packed");
  }
  const NamedView named{"kept", kept};
  ByteSpan span;
  if (Status s = expect_dtype(kWhere, named, {Dtype::kBool, Dtype::kU8}); !s.ok()) return s;
  Status status = expect_shape(kWhere, named, {p.batch, p.num_heads_q, p.seqlen_q, p.seqlen_kv},
                               "[B,Hq,Sq,Skv]");
  if (!status.ok()) return status;
  if (Status s = check_view(kWhere, named, Device{}, &span); !s.ok()) return s;
  if (Status s = check_writable(kWhere, named); !s.ok()) return s;
  if (!proves_injective(kept)) {
    return invalid(kWhere, "kept ", to_string(kept), " must not overlap itself");
  }
  for (const PerSequence& tensor : kPerSequence) {
    status = check_per_sequence(tensor, p, buffers.*tensor.view, kept);
    if (!status.ok()) return status;
  }
  return check_lengths(buffers, p, kWhere);
}

// Element b of a [B] tensor, or `otherwise` where there is none.
template <class T>
std::int64_t element_or(const TensorView& view, std::int64_t b, std::int64_t otherwise) {
  if (!view.present()) return otherwise;
  T value{};
  std::memcpy(&value, static_cast<const T*>(view.data) + b * view.strides[0], sizeof(value));
  return value;
}

std::int64_t shift_of(const AttentionParams& p, const Buffers& buffers, std::int64_t b,
                      std::int64_t len_q, std::int64_t len_kv) {
  switch (p.diagonal) {
    case Diagonal::kBottomRight: return semantics::bottom_right_shift(len_q, len_kv);
    case Diagonal::kOffset:
      return element_or<std::int64_t>(buffers.diagonal_offsets, b, buffers.diagonal_offset);
    case Diagonal::kUnnamed:
    case Diagonal::kTopLeft: break;
  }
  return 0;
}

// The keys of one row, of which `len_kv` are in its sequence; the rest of `seqlen_kv` is false.
void write_row(const semantics::Dropout& dropout, semantics::DropoutRow row, std::int64_t len_kv,
               const TensorView& kept, unsigned char* to) {
  constexpr std::int64_t kBlock = semantics::kDropoutKeysPerBlock;
  semantics::PhiloxBlock block{};
  for (std::int64_t j = 0; j < kept.shape[3]; ++j) {
    if (dropout.threshold != 0 && j < len_kv && j % kBlock == 0) {
      block = semantics::dropout_block(dropout, row, j);
    }
    const bool keeps =
        dropout.threshold == 0 || semantics::dropout_draw(block, j) < dropout.threshold;
    to[j * kept.strides[3]] = j < len_kv && keeps ? 1 : 0;
  }
}

}  // namespace

Status dropout_mask(const AttentionParams& params, const Buffers& buffers,
                    const TensorView& kept) try {
  if (Status s = check_arguments(params, buffers, kept); !s.ok()) return s;
  semantics::Dropout dropout =
      semantics::make_dropout(params.dropout_p, buffers.rng_seed, buffers.rng_offset);
  const DropoutOrigin& origin = buffers.dropout_origin;
  semantics::begin_dropout_at(&dropout, origin.position, origin.key, origin.head, origin.heads);
  for (std::int64_t b = 0; b < params.batch; ++b) {
    const std::int64_t len_q = element_or<std::int32_t>(buffers.seqlens_q, b, params.seqlen_q);
    const std::int64_t len_kv = element_or<std::int32_t>(buffers.seqlens_kv, b, params.seqlen_kv) -
                                element_or<std::int32_t>(buffers.cache_leftpad, b, 0);
    const std::int64_t shift = shift_of(params, buffers, b, len_q, len_kv);
    for (std::int64_t h = 0; h < params.num_heads_q; ++h) {
      for (std::int64_t i = 0; i < params.seqlen_q; ++i) {
        const auto row = semantics::dropout_row(dropout, i, shift, b, h, params.num_heads_q);
        auto* const to = static_cast<unsigned char*>(kept.data) + b * kept.strides[0] +
                         h * kept.strides[1] + i * kept.strides[2];
        write_row(dropout, row, i < len_q ? len_kv : 0, kept, to);
      }
    }
  }
  return {};
} catch (...) {
  return status_of_exception(kWhere);
}

}  // namespace regard
