#include "core/describe/check_data.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>

#include "base/message.h"
#include "core/describe/check_scales.h"
#include "core/describe/checked_call.h"
#include "core/describe/describe.h"
#include "core/describe/functions.h"
#include "core/describe/tensor_rules.h"
#include "core/describe/view_checks.h"
#include "core/text/thrown_by.h"
#include "platform/device_memory.h"
#include "problem/make_problem.h"
#include "problem/rotary.h"

namespace regard {
namespace {

/// `starts`: of the packed sequences that the lengths are of; checked before.
Status check_length(const TensorView& lengths, const TensorView& starts, std::int64_t limit,
                    const char* name, const char* where) {
  if (!is_readable(lengths)) return {};
  const bool packed = is_readable(starts);
  for (std::int64_t b = 0; b < lengths.shape[0]; ++b) {
    const std::int64_t length = read_integer(lengths, b * lengths.strides[0]);
    const std::int64_t max = packed ? read_integer(starts, b + 1) - read_integer(starts, b) : limit;
    if (length >= 0 && length <= max) continue;
    return invalid(where, name, "[", b, "] (", length, "), expected 0 to ", max);
  }
  return {};
}

/// Lengths are checked before.
Status check_leftpad(const TensorView& leftpad, const Buffers& buffers, const char* where) {
  if (!is_readable(leftpad) || !is_readable(buffers.seqlens_kv)) return {};
  for (std::int64_t b = 0; b < leftpad.shape[0]; ++b) {
    const std::int64_t rows = read_integer(leftpad, b * leftpad.strides[0]);
    const std::int64_t max = read_integer(buffers.seqlens_kv, b * buffers.seqlens_kv.strides[0]);
    if (rows >= 0 && rows <= max) continue;
    return invalid(where, "cache_leftpad[", b, "] (", rows, "), expected 0 to ", max,
                   ", seqlens_kv of the sequence");
  }
  return {};
}

Status check_starts(const TensorView& starts, std::int64_t total, std::int64_t longest,
                    const char* name, const char* where) {
  if (!is_readable(starts)) return {};
  std::int64_t before = 0;
  for (std::int64_t b = 0; b < starts.shape[0]; ++b) {
    const std::int64_t start = read_integer(starts, b);
    const bool fits = b == 0 ? start == 0 : start >= before && start <= total;
    if (!fits) {
      return b == 0 ? invalid(where, name, "[0] (", start, "), expected 0")
                    : invalid(where, name, "[", b, "] (", start, "), expected ", before, " to ",
                              total, ": starts ascend and end within the tensor");
    }
    if (start - before > longest) {
      return invalid(where, "max_seqlen of ", name, " (", longest,
                     "), expected at least the length of sequence ", b - 1, ", ", start - before);
    }
    before = start;
  }
  return {};
}

/// [1] or of two dimensions.
Status check_scale(const TensorView& scale, const char* name, const char* where) {
  if (!is_readable(scale)) return {};
  const bool per_head = scale.rank == 2;
  for (std::int64_t b = 0; b < scale.shape[0]; ++b) {
    for (std::int64_t h = 0; h < (per_head ? scale.shape[1] : 1); ++h) {
      const std::int64_t at = b * scale.strides[0] + (per_head ? h * scale.strides[1] : 0);
      const auto value = read_float(scale, at);
      if (std::isfinite(value) && value >= 0.0f) continue;
      return invalid(where, name, "[", b, per_head ? concat(",", h) : "", "] (",
                     static_cast<double>(value), "), expected finite and at least 0");
    }
  }
  return {};
}

bool is_within(const semantics::KeyRange& range, std::int64_t n) {
  return n >= range.lo && n < range.hi;
}

/// The pages, by index in a sequence's row of the table, that some of its keys lie in.
semantics::KeyRange pages_of(const problem::Sequence& s, const semantics::KeyRange& keys,
                             std::int64_t page_size) {
  if (is_empty(keys)) return {};
  return {(s.leftpad + keys.lo) / page_size, (s.leftpad + keys.hi - 1) / page_size + 1};
}

/// The pages that new rows are written to: the last rows of a sequence.
semantics::KeyRange written_pages(const problem::Problem& p, std::int64_t b) {
  const problem::Sequence s = problem::sequence_of(p, b);
  return pages_of(s, {s.band.len_kv - p.seqlen_new, s.band.len_kv}, p.pages.page_size);
}

/// No two sequences, and no sequence twice, append to one page or entry: `written(b)` are the
/// indices of those that b appends to, id_at(b, index) which they are, checked before. The
/// comparison of all pairs takes no memory, and is a thousandth of a call that writes so many
/// pages.
template <class Written, class IdAt>
Status check_writers(std::int64_t batch, Written written, IdAt id_at, const char* what,
                     const char* where) {
  const auto is_written_before = [&](std::int64_t a, std::int64_t b, std::int64_t index) {
    const semantics::KeyRange range = written(a);
    for (std::int64_t i = range.lo; i < (a == b ? index : range.hi); ++i) {
      if (id_at(a, i) == id_at(b, index)) return true;
    }
    return false;
  };
  for (std::int64_t b = 0; b < batch; ++b) {
    const semantics::KeyRange range = written(b);
    for (std::int64_t index = range.lo; index < range.hi; ++index) {
      std::int64_t a = 0;
      while (a <= b && !is_written_before(a, b, index)) ++a;
      if (a > b) continue;
      return invalid(where, "sequences ", a, " and ", b, " append to ", what, " ", id_at(b, index),
                     ", expected one of their own each");
    }
  }
  return {};
}

/// Ids of pages that exist, for all keys that a row sees and all rows that are written, which no
/// other sequence writes. Lengths are checked before.
Status check_pages(const TensorView& table, CheckedCall* call) {
  if (!is_readable(table)) return {};
  const problem::Problem& p = call->problem();
  const AttentionParams& params = call->params;
  const char* const where = call->where;
  const auto id_at = [&](std::int64_t b, std::int64_t page) {
    return read_integer(table, b * table.strides[0] + page * table.strides[1]);
  };
  const auto written = [&](std::int64_t b) { return written_pages(p, b); };
  for (std::int64_t b = 0; b < table.shape[0]; ++b) {
    const problem::Sequence s = problem::sequence_of(p, b);
    const auto seen_keys = semantics::visible_keys(s.band, 0, s.len_q);
    const semantics::KeyRange seen_pages = pages_of(s, seen_keys, params.page_size),
                              new_pages = written(b);
    for (std::int64_t page = 0; page < table.shape[1]; ++page) {
      const std::int64_t id = id_at(b, page);
      const bool is_seen = is_within(seen_pages, page), is_written = is_within(new_pages, page);
      if (id >= (is_seen || is_written ? 0 : -1) && id < params.num_pages) continue;
      return invalid(where, "page_table[", b, ",", page, "] (", id, "), expected ",
                     is_seen || is_written ? "0" : "-1", " to ", params.num_pages - 1,
                     is_written ? ": new rows are written to this page"
                     : is_seen  ? ": rows see keys of this page"
                                : "");
    }
  }
  return check_writers(table.shape[0], written, id_at, "page", where);
}

/// Entries that exist, and each of one sequence alone where rows are appended.
Status check_entries(const TensorView& entries, const Buffers& buffers, const char* where) {
  if (!is_readable(entries)) return {};
  const std::int64_t count = buffers.k.shape[0];
  const auto id_at = [&](std::int64_t b, std::int64_t) {
    return read_integer(entries, b * entries.strides[0]);
  };
  for (std::int64_t b = 0; b < entries.shape[0]; ++b) {
    const std::int64_t entry = id_at(b, 0);
    if (entry >= 0 && entry < count) continue;
    return invalid(where, "cache_batch_idx[", b, "] (", entry, "), expected 0 to ", count - 1,
                   ", an entry of the batch of k");
  }
  const bool appends = buffers.k_new.present() && buffers.k_new.shape[2] > 0;
  const auto written = [&](std::int64_t) { return semantics::KeyRange{0, appends ? 1 : 0}; };
  return check_writers(entries.shape[0], written, id_at, "entry", where);
}

/// Positions that the tables of angles have rows for.
Status check_positions(const TensorView& positions, std::int64_t rows, const char* where) {
  if (!is_readable(positions)) return {};
  const std::int64_t columns = positions.rank == 2 ? positions.shape[1] : 1;
  for (std::int64_t b = 0; b < positions.shape[0]; ++b) {
    for (std::int64_t i = 0; i < columns; ++i) {
      const std::int64_t at =
          b * positions.strides[0] + (columns > 1 ? i * positions.strides[1] : 0);
      const std::int64_t position = read_integer(positions, at);
      if (position >= 0 && position < rows) continue;
      return invalid(where, "positions[", b, positions.rank == 2 ? concat(",", i) : "", "] (",
                     position, "), expected 0 to ", rows - 1, ", the rows of rotary_cos");
    }
  }
  return {};
}

/// Rows for all positions that lengths state. Lengths are checked before.
Status check_angles(CheckedCall* call) {
  const Buffers& buffers = call->buffers;
  if (buffers.positions.present() || !is_readable(buffers.seqlens_kv)) return {};
  const problem::Problem& p = call->problem();
  const std::int64_t rows = buffers.rotary_cos.shape[0];
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const problem::Sequence s = problem::sequence_of(p, b);
    std::int64_t needed = 0;
    if (p.seqlen_new > 0) needed = problem::key_position(p, s, p.seqlen_new - 1) + 1;
    if (s.len_q > 0) needed = std::max(needed, problem::query_position(p, s, s.len_q - 1) + 1);
    if (needed <= rows) continue;
    return invalid(call->where, "positions of rotary_cos (", rows, "), expected at least ", needed,
                   ": sequence ", b, " has ", s.leftpad + s.band.len_kv - p.seqlen_new,
                   " rows before this call");
  }
  return {};
}

Status check_data_of(const TensorSpec& spec, CheckedCall* call) {
  const Buffers& buffers = call->buffers;
  const char* const where = call->where;
  const TensorView& view = buffers.*spec.buffer;
  Extents extents = extents_of(call->params);
  switch (spec.data) {
    case DataRule::kNone: return {};
    case DataRule::kBlocks: return check_blocks(view, where);
    case DataRule::kScale: return check_scale(view, spec.name, where);
    case DataRule::kRowScale: return check_row_scales(view, call, spec.name);
    case DataRule::kQueryScale: return check_query_scales(view, call, spec.name);
    case DataRule::kChannelScale: return check_channel_scales(view, spec.name, where);
    case DataRule::kNewRow:
      if (!has_scales(buffers, spec.like)) return {};
      return check_new_rows(view, spec.name, where);
    case DataRule::kPage: return check_pages(view, call);
    case DataRule::kAngles: return check_angles(call);
    case DataRule::kAngle: return check_positions(view, buffers.rotary_cos.shape[0], where);
    case DataRule::kLeftpad: return check_leftpad(view, buffers, where);
    case DataRule::kEntry: return check_entries(view, buffers, where);
    case DataRule::kLength: {
      const bool of_q = spec.data_limit == Extent::kSq;
      // New rows follow those of a sequence within its cache.
      const std::int64_t appended = of_q || !buffers.k_new.present() ? 0 : buffers.k_new.shape[2];
      return check_length(view, of_q ? buffers.cu_seqlens_q : buffers.cu_seqlens_kv,
                          extents[spec.data_limit] - appended, spec.name, where);
    }
    case DataRule::kStarts: {
      const Extent longest = spec.data_limit == Extent::kTotalQ ? Extent::kSq : Extent::kSkv;
      return check_starts(view, extents[spec.data_limit], extents[longest], spec.name, where);
    }
  }
  return {};
}

/// The tensors that are there and whose rule `applies`.
template <class Applies>
Status check_rows(const Buffers& buffers, const AttentionParams& params, const char* where,
                  TensorSpecs specs, const CheckWorkers& workers, Applies applies) {
  CheckedCall call(buffers, params, where, workers);
  for (const TensorSpec& spec : specs) {
    if (spec.buffer == nullptr) break;  // the rows of a backward
    if (!applies(spec.data) || !(buffers.*spec.buffer).present()) continue;
    if (Status s = check_data_of(spec, &call); !s.ok()) return s;
  }
  return {};
}

/// First: lengths are held to what cu_seqlens say.
Status check_all_starts(const Buffers& buffers, const AttentionParams& params, const char* where,
                        TensorSpecs specs) {
  if (!buffers.cu_seqlens_q.present()) return {};
  return check_rows(buffers, params, where, specs, {},
                    [](DataRule rule) { return rule == DataRule::kStarts; });
}

}  // namespace

Status check_lengths(const Buffers& buffers, const AttentionParams& params, const char* where) {
  if (Status s = check_all_starts(buffers, params, where, kTensors); !s.ok()) return s;
  return check_rows(buffers, params, where, kTensors, {},
                    [](DataRule rule) { return rule == DataRule::kLength; });
}

Status check_data(const Buffers& buffers, const AttentionParams& params, const char* where,
                  TensorSpecs specs, const CheckWorkers& workers) {
  if (Status s = check_all_starts(buffers, params, where, specs); !s.ok()) return s;
  // Pages come after lengths in the table.
  const Status rows = check_rows(buffers, params, where, specs, workers, [](DataRule rule) {
    return rule != DataRule::kNone && rule != DataRule::kStarts;
  });
  return rows.ok() ? check_captured_data(buffers, params, where) : rows;
}

namespace {

constexpr const char* kWhere = "check_device_data";

/// A view with its elements on the host, as far as the last of them.
class HostCopy {
 public:
  Status take(TensorView* view, void* stream) {
    if (!view->present()) return {};
    std::int64_t last = 0;
    for (int i = 0; i < view->rank; ++i) {
      if (view->shape[i] == 0) return {};
      last += (view->shape[i] - 1) * view->strides[i];
    }
    const auto bytes = static_cast<std::size_t>((last + 1) * size_of(view->dtype));
    storage_.reset(new (std::nothrow) char[bytes]);
    if (storage_ == nullptr) {
      return failure(StatusCode::kWorkspace, kWhere, "cannot allocate ", bytes,
                     " bytes on the host for a copy of ", to_string(*view));
    }
    const Status status = copy_to_host(kWhere, *view, storage_.get(), bytes, stream);
    view->data = storage_.get();
    view->device = Device{};
    return status;
  }

 private:
  std::unique_ptr<char[]> storage_;
};

}  // namespace

Status check_device_data(const AttentionRequest& request, const Launch& launch) try {
  const Expected<AttentionParams> params = describe_buffers(request, request.options, kWhere);
  if (!params) return params.status();
  Buffers on_host = request;
  HostCopy copies[kMaxTensors];
  std::size_t count = 0;
  for (const TensorSpec& spec : kTensors) {
    // Which pages a sequence's rows see depends on its diagonal.
    const bool is_read = spec.data != DataRule::kNone || spec.buffer == &Buffers::diagonal_offsets;
    if (spec.buffer == nullptr) break;  // the rows of a backward
    if (!is_read || params->device.type == DeviceType::kCpu) continue;
    if (Status status = copies[count++].take(&(on_host.*spec.buffer), launch.stream);
        !status.ok()) {
      return status;
    }
  }
  return check_data(on_host, *params, kWhere);
} catch (...) {
  return status_of_exception(kWhere);
}

Status check_gradient_data(const Buffers& buffers, const GradBuffers& gradients,
                           const AttentionParams& params, const char* where, TensorSpecs specs) {
  CheckedCall call(buffers, params, where);
  for (const TensorSpec& spec : specs) {
    const TensorView* const view = spec.buffer == nullptr ? spec.in(gradients) : nullptr;
    if (view == nullptr || !view->present()) continue;
    Status status;
    if (spec.data == DataRule::kScale) status = check_scale(*view, spec.name, where);
    if (spec.data == DataRule::kQueryScale) status = check_query_scales(*view, &call, spec.name);
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace regard
