#include "regard/lengths.h"
#include "c_api/errors.h"
#include "c_api/handles.h"
#include "c_api/read.h"

namespace regard::c_api {
namespace {

/// make(view) as a handle.
template <class Make>
Status make_lengths(const char* where, const char* name, const regard_tensor* given,
                    regard_lengths** lengths, Make make) {
  if (Status s = require(where, "lengths", lengths); !s.ok()) return s;
  *lengths = nullptr;
  if (Status s = require(where, name, given); !s.ok()) return s;
  TensorView view;
  if (Status s = read_tensor(where, name, given, &view); !s.ok()) return s;
  Expected<Lengths> made = make(view);
  if (!made) return made.status();
  *lengths = new regard_lengths{*std::move(made)};
  return {};
}

/// Both tensors of a copy, then the copy.
Status copy_rows(const char* where, const regard_lengths* lengths, const regard_tensor* padded,
                 const regard_tensor* packed, bool to_packed) {
  if (Status s = require(where, "lengths", lengths); !s.ok()) return s;
  if (Status s = require(where, "padded", padded); !s.ok()) return s;
  if (Status s = require(where, "packed", packed); !s.ok()) return s;
  TensorView padded_view, packed_view;
  if (Status s = read_tensor(where, "padded", padded, &padded_view); !s.ok()) return s;
  if (Status s = read_tensor(where, "packed", packed, &packed_view); !s.ok()) return s;
  return to_packed ? unpad(lengths->lengths, padded_view, packed_view)
                   : pad(lengths->lengths, packed_view, padded_view);
}

}  // namespace
}  // namespace regard::c_api

using namespace regard;
using namespace regard::c_api;

regard_status regard_lengths_from_mask(const regard_tensor* mask, regard_lengths** lengths) {
  return guarded(__func__, [&](const char* where) {
    return make_lengths(where, "mask", mask, lengths, Lengths::from_mask);
  });
}

regard_status regard_lengths_from_seqlens(const regard_tensor* seqlens, int64_t seqlen,
                                          regard_lengths** lengths) {
  return guarded(__func__, [&](const char* where) {
    return make_lengths(where, "seqlens", seqlens, lengths, [&](const TensorView& view) {
      return Lengths::from_seqlens(view, seqlen);
    });
  });
}

regard_status regard_lengths_from_position_ids(const regard_tensor* position_ids,
                                               regard_lengths** lengths) {
  return guarded(__func__, [&](const char* where) {
    return make_lengths(where, "position_ids", position_ids, lengths, Lengths::from_position_ids);
  });
}

void regard_lengths_destroy(regard_lengths* lengths) { delete lengths; }

regard_status regard_lengths_read(const regard_lengths* lengths, regard_lengths_view* view) {
  return guarded(__func__, [&](const char* where) -> Status {
    if (Status s = require(where, "lengths", lengths); !s.ok()) return s;
    if (Status s = require(where, "view", view); !s.ok()) return s;
    const Lengths& from = lengths->lengths;
    *view = {from.batch(),      from.seqlen(),         from.num_sequences(),    from.total(),
             from.max_seqlen(), from.indices().data(), from.cu_seqlens().data()};
    return {};
  });
}

regard_status regard_unpad(const regard_lengths* lengths, const regard_tensor* padded,
                           const regard_tensor* packed) {
  return guarded(__func__, [&](const char* where) {
    return copy_rows(where, lengths, padded, packed, /*to_packed=*/true);
  });
}

regard_status regard_pad(const regard_lengths* lengths, const regard_tensor* packed,
                         const regard_tensor* padded) {
  return guarded(__func__, [&](const char* where) {
    return copy_rows(where, lengths, padded, packed, /*to_packed=*/false);
  });
}
