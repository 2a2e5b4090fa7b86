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

bool is_readable(const TensorView& view) noexcept {
  return view.present() && view.device.type == DeviceType::kCpu;
}

float read_float(const TensorView& view, std::int64_t offset) noexcept {
  float value = 0.0f;
  std::memcpy(&value, static_cast<const char*>(view.data) + offset * std::int64_t{sizeof value},
              sizeof value);
  return value;
}

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

/// The call whose data is checked.
class CheckedCall {
 public:
  CheckedCall(const Buffers& of_buffers, const AttentionParams& of_params, const char* function)
      : buffers(of_buffers), params(of_params), where(function) {}
  /// Made when the first rule needs it: most calls have none that does.
  const problem::Problem& problem() {
    if (!problem_) problem::make_problem(params, buffers, &problem_.emplace());
    return *problem_;
  }

  const Buffers& buffers;
  const AttentionParams& params;
  const char* const where;

 private:
  std::optional<problem::Problem> problem_;
};

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

/// Codes of finite and positive numbers are 1 to the greatest one's; without its sign that of a
/// finite number is 0 to that.
constexpr std::uint64_t kPositiveCodes = 0x7f7fffffu;
bool is_bad_scale(std::uint32_t code) noexcept { return code - 1u >= kPositiveCodes; }
bool is_bad_minimum(std::uint32_t code) noexcept { return (code & 0x7fffffffu) > kPositiveCodes; }

/// Scales of rows [0, count), `step` bytes apart: the first that is not finite and positive, or
/// `count`.
std::int64_t first_bad_scale(const char* first, std::int64_t step, std::int64_t count) noexcept {
  std::int64_t j = 0;
  // Dense ones in blocks of a length that compilers make vectors of: a decode may have a million.
  std::uint32_t codes[64];
  for (; step == sizeof(float) && j + std::ssize(codes) <= count; j += std::ssize(codes)) {
    std::memcpy(codes, first + j * step, sizeof codes);
    std::uint32_t bad = 0;
    for (const std::uint32_t code : codes) bad |= is_bad_scale(code) ? 1u : 0u;
    if (bad != 0) break;
  }
  for (; j < count; ++j) {
    std::memcpy(codes, first + j * step, sizeof codes[0]);
    if (is_bad_scale(codes[0])) return j;
  }
  return count;
}

/// Of `count` numbers, a scale and a minimum in turn, the first scale that is not finite and
/// positive or minimum that is not finite, or `count`.
std::int64_t first_bad_group(const char* first, std::int64_t count) noexcept {
  constexpr std::int64_t kBytes = sizeof(float);
  std::int64_t n = 0;
  // Blocks of pairs, the scale in the low half, without a branch: a decode may have two million.
  // Where a code is out of its range one of the differences is negative.
  std::uint64_t pairs[32];
  for (; n + 2 * std::ssize(pairs) <= count; n += 2 * std::ssize(pairs)) {
    std::memcpy(pairs, first + n * kBytes, sizeof pairs);
    std::uint64_t bad = 0;
    for (const std::uint64_t pair : pairs) {
      const std::uint64_t scale = pair & 0xffffffffu, minimum = (pair >> 32) & 0x7fffffffu;
      bad |= (scale - 1) | (kPositiveCodes - scale) | (kPositiveCodes - minimum);
    }
    if (bad >> 63 != 0) break;
  }
  for (; n < count; ++n) {
    std::uint32_t code = 0;
    std::memcpy(&code, first + n * kBytes, sizeof code);
    if (n % 2 == 0 ? is_bad_scale(code) : is_bad_minimum(code)) return n;
  }
  return count;
}

/// Scales and minima of rows [0, count) of u4, `step` bytes apart and `numbers` each: the first of
/// them that is bad, counted through all rows, or as many as there are.
std::int64_t first_bad_row(const char* first, std::int64_t step, std::int64_t count,
                           std::int64_t numbers) noexcept {
  const bool dense = step == numbers * std::int64_t{sizeof(float)};
  const std::int64_t rows = dense ? 1 : count, each = dense ? numbers * count : numbers;
  for (std::int64_t j = 0; j < rows; ++j) {
    const std::int64_t bad = first_bad_group(first + j * step, each);
    if (bad < each) return j * each + bad;
  }
  return count * numbers;
}

Status refuse_scale(const char* where, const char* name, std::string_view index, float value) {
  return invalid(where, name, "[", index, "] (", static_cast<double>(value),
                 "), expected finite and more than 0");
}

/// Where a sequence's row lies in k.
struct RowPlace {
  std::int64_t entry;  // -1: nowhere
  std::int64_t row;
  std::int64_t left;  // rows from this one on that follow one another
};

/// `entries`: of k. Entries of a cache are checked after the scales.
RowPlace place_of_row(const problem::Problem& p, std::int64_t entries, std::int64_t b,
                      std::int64_t j, std::int64_t rows) noexcept {
  if (p.pages.ids != nullptr) {
    const std::int64_t page = j / p.pages.page_size, row = j % p.pages.page_size;
    const std::int64_t id = p.pages.ids[b * p.pages.stride[0] + page * p.pages.stride[1]];
    return {id, row, std::min(p.pages.page_size - row, rows - j)};
  }
  if (p.k.starts.data != nullptr) return {0, problem::row_start(p.k.starts, b) + j, rows - j};
  std::int64_t entry = b;
  if (p.cache_entries.present) {
    entry = *problem::element_at<std::int32_t>(p.cache_entries, b * p.cache_entries.stride[0]);
  }
  return {entry < entries ? entry : -1, j, rows - j};
}

/// The scale, `index` of those from row `place` on, each row having `numbers` of u4, or one.
struct BadScale {
  std::int64_t place[3];
  std::int64_t index;
  std::int64_t numbers;
};

Status refuse_row_scale(const char* where, const char* name, const TensorView& scales,
                        const BadScale& bad) {
  const std::int64_t each = std::max<std::int64_t>(bad.numbers, 1);
  const std::int64_t row = bad.place[2] + bad.index / each, number = bad.index % each;
  const std::int64_t at = bad.place[0] * scales.strides[0] + bad.place[1] * scales.strides[1] +
                          (scales.shape[2] == 1 ? 0 : row * scales.strides[2]) + number;
  const float value = read_float(scales, at);
  const std::string index = concat(bad.place[0], ",", bad.place[1], ",", row);
  if (bad.numbers == 0) return refuse_scale(where, name, index, value);
  if (number % 2 == 0) return refuse_scale(where, name, concat(index, ",", number), value);
  return invalid(where, name, "[", index, ",", number, "] (", static_cast<double>(value),
                 "), expected finite: it is the minimum of a group");
}

/// Those of keys that a sequence has before new rows bring theirs. Lengths and pages are checked
/// before; what no row sees may lie in no page.
Status check_row_scales(const TensorView& scales, CheckedCall* call, const char* name) {
  if (!is_readable(scales)) return {};
  const problem::Problem& p = call->problem();
  const bool of_k = scales.data == call->buffers.scales_k.data;
  const problem::View& view = of_k ? p.scales_k : p.scales_v;
  const bool of_rows = of_k ? p.scales_k_of_rows : p.scales_v_of_rows;
  const std::int64_t numbers = scales.rank == 4 ? scales.shape[3] : 0;  // of u4
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const problem::Sequence s = problem::sequence_of(p, b);
    const std::int64_t rows = s.leftpad + s.band.len_kv - (of_rows ? p.seqlen_new : 0);
    for (std::int64_t j = s.leftpad; j < rows;) {
      const RowPlace place = place_of_row(p, scales.shape[0], b, j, rows);
      const std::int64_t count = of_rows ? place.left : 1;
      for (std::int64_t h = 0; h < p.num_heads_kv && place.entry >= 0; ++h) {
        const std::int64_t at = place.entry * view.stride[0] + h * view.stride[1];
        const std::int64_t step = view.stride[2] * std::int64_t{sizeof(float)};
        const auto* const first = problem::element_at<char>(view, 0) +
                                  at * std::int64_t{sizeof(float)} + place.row * step;
        const std::int64_t bad = numbers == 0 ? first_bad_scale(first, step, count)
                                              : first_bad_row(first, step, count, numbers);
        if (bad == count * std::max<std::int64_t>(numbers, 1)) continue;
        const BadScale at_fault{{place.entry, h, of_rows ? place.row : 0}, bad, numbers};
        return refuse_row_scale(call->where, name, scales, at_fault);
      }
      j += place.left;
    }
  }
  return {};
}

Status check_channel_scales(const TensorView& scales, const char* name, const char* where) {
  if (!is_readable(scales)) return {};
  for (std::int64_t h = 0; h < scales.shape[0]; ++h) {
    for (std::int64_t d = 0; d < scales.shape[1]; ++d) {
      const float value = read_float(scales, h * scales.strides[0] + d * scales.strides[1]);
      if (std::isfinite(value) && value > 0.0f) continue;
      return refuse_scale(where, name, concat(h, ",", d), value);
    }
  }
  return {};
}

/// Rows that are quantised: no scale suits an infinity, and integers have no NaN.
Status check_new_rows(const TensorView& rows, const char* name, const char* where) {
  if (!is_readable(rows)) return {};
  float numbers[64];
  const std::int64_t size = size_of(rows.dtype);
  const auto* const data = static_cast<const char*>(rows.data);
  for (std::int64_t row = 0; row < rows.shape[0] * rows.shape[1] * rows.shape[2]; ++row) {
    const std::int64_t i = row % rows.shape[2], h = row / rows.shape[2] % rows.shape[1],
                       b = row / rows.shape[2] / rows.shape[1];
    const std::int64_t at = b * rows.strides[0] + h * rows.strides[1] + i * rows.strides[2];
    for (std::int64_t d = 0; d < rows.shape[3]; d += std::ssize(numbers)) {
      const std::int64_t count = std::min<std::int64_t>(rows.shape[3] - d, std::ssize(numbers));
      problem::load_row(static_cast<problem::Element>(rows.dtype), data + (at + d) * size, 1, count,
                        numbers);
      float zero = 0.0f;  // NaN where a number is not finite
      for (std::int64_t x = 0; x < count; ++x) zero += numbers[x] * 0.0f;
      if (zero == 0.0f) continue;
      std::int64_t x = 0;
      while (std::isfinite(numbers[x])) ++x;
      return invalid(where, name, "[", b, ",", h, ",", i, ",", d + x, "] (",
                     static_cast<double>(numbers[x]),
                     "), expected finite: the row is quantised as it is appended");
    }
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
                  TensorSpecs specs, Applies applies) {
  CheckedCall call(buffers, params, where);
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
  return check_rows(buffers, params, where, specs,
                    [](DataRule rule) { return rule == DataRule::kStarts; });
}

}  // namespace

Status check_lengths(const Buffers& buffers, const AttentionParams& params, const char* where) {
  if (Status s = check_all_starts(buffers, params, where, kTensors); !s.ok()) return s;
  return check_rows(buffers, params, where, kTensors,
                    [](DataRule rule) { return rule == DataRule::kLength; });
}

Status check_data(const Buffers& buffers, const AttentionParams& params, const char* where,
                  TensorSpecs specs) {
  if (Status s = check_all_starts(buffers, params, where, specs); !s.ok()) return s;
  // Pages come after lengths in the table.
  const Status rows = check_rows(buffers, params, where, specs, [](DataRule rule) {
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

Status check_gradient_data(const GradBuffers& gradients, const char* where, TensorSpecs specs) {
  for (const TensorSpec& spec : specs) {
    if (spec.data != DataRule::kScale) continue;
    const TensorView* const view = spec.in(gradients);
    if (view == nullptr || !view->present()) continue;
    if (Status s = check_scale(*view, spec.name, where); !s.ok()) return s;
  }
  return {};
}

}  // namespace regard
