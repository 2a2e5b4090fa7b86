#include "core/describe/check_scales.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

#include "base/message.h"
#include "problem/element.h"

namespace regard {
namespace {

constexpr std::int64_t kFloatBytes = sizeof(float);

/// Codes of finite and positive numbers are 1 to the greatest one's; without its sign that of a
/// finite number is 0 to that.
constexpr std::uint32_t kPositiveCodes = 0x7f7fffffu;
bool is_bad_scale(std::uint32_t code) noexcept { return code - 1u >= kPositiveCodes; }
bool is_bad_minimum(std::uint32_t code) noexcept { return (code & 0x7fffffffu) > kPositiveCodes; }

/// What a loop reads 2 KB further on: scales come from memory, a stretch of each head in turn.
void prefetch_block(const char* from, std::size_t bytes) noexcept {
  constexpr std::size_t kAhead = 2048, kLine = 64;
  for (std::size_t at = 0; at < bytes; at += kLine) __builtin_prefetch(from + kAhead + at);
}

/// Codes of four numbers; vectors of the base instruction set, which compilers do not make of a
/// loop over pairs (4 times as slow with GCC 12).
typedef std::uint32_t FourCodes __attribute__((vector_size(16)));

/// What is good of four numbers that follow one another: `mask` of a code is at least `least` and
/// at most kPositiveCodes.
struct GoodCodes {
  FourCodes mask, least;
};
constexpr GoodCodes kScales{{~0u, ~0u, ~0u, ~0u}, {1, 1, 1, 1}};
constexpr GoodCodes kScalesAndMinima{{~0u, 0x7fffffffu, ~0u, 0x7fffffffu}, {1, 0, 1, 0}};

/// As many of `count` dense numbers as lie in whole blocks of which all is good. There is no branch
/// in a block: a decode may have two million.
std::int64_t count_good_blocks(const char* first, std::int64_t count, GoodCodes good) noexcept {
  constexpr std::int64_t kBlock = 64;
  constexpr FourCodes kMost = FourCodes{} + kPositiveCodes;
  std::int64_t n = 0;
  for (; n + kBlock <= count; n += kBlock) {
    const char* const block = first + n * kFloatBytes;
    prefetch_block(block, kBlock * kFloatBytes);
    FourCodes bad{};  // where a code is out of its range, one of the differences is negative
    for (std::int64_t at = 0; at < kBlock * kFloatBytes; at += sizeof(FourCodes)) {
      FourCodes codes;
      std::memcpy(&codes, block + at, sizeof codes);
      codes &= good.mask;
      bad |= (codes - good.least) | (kMost - codes);
    }
    if ((bad[0] | bad[1] | bad[2] | bad[3]) >> 31 != 0) break;
  }
  return n;
}

/// Scales of rows [0, count), `step` bytes apart: the first that is not finite and positive, or
/// `count`.
std::int64_t first_bad_scale(const char* first, std::int64_t step, std::int64_t count) noexcept {
  std::int64_t n = step == kFloatBytes ? count_good_blocks(first, count, kScales) : 0;
  for (; n < count; ++n) {
    std::uint32_t code = 0;
    std::memcpy(&code, first + n * step, sizeof code);
    if (is_bad_scale(code)) break;
  }
  return n;
}

/// Of `count` numbers, a scale and a minimum in turn, the first scale that is not finite and
/// positive or minimum that is not finite, or `count`.
std::int64_t first_bad_group(const char* first, std::int64_t count) noexcept {
  std::int64_t n = count_good_blocks(first, count, kScalesAndMinima);
  for (; n < count; ++n) {
    std::uint32_t code = 0;
    std::memcpy(&code, first + n * kFloatBytes, sizeof code);
    if (n % 2 == 0 ? is_bad_scale(code) : is_bad_minimum(code)) break;
  }
  return n;
}

/// Scales and minima of rows [0, count) of u4, `step` bytes apart and `numbers` each: the first of
/// them that is bad, counted through all rows, or as many as there are.
std::int64_t first_bad_row(const char* first, std::int64_t step, std::int64_t count,
                           std::int64_t numbers) noexcept {
  const bool dense = step == numbers * kFloatBytes;
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

/// Rows [begin, end) of a tensor of scales, in blocks or not: its rows of one entry and head.
struct ScaleRows {
  std::int64_t entry, head;
  std::int64_t begin, end;
};

Status check_scale_rows(const TensorView& scales, const ScaleRows& rows, const char* name,
                        const char* where) {
  const std::int64_t columns = scales.rank == 4 ? scales.shape[3] : 1;
  if (columns == 0) return {};
  const std::int64_t step = columns == 1 ? scales.strides[2] : 1;  // of blocks the last stride is 1
  const bool dense = columns == 1 || scales.strides[2] == columns;
  const std::int64_t count = rows.end - rows.begin;
  const std::int64_t runs = dense ? 1 : count, each = dense ? columns * count : columns;
  const std::int64_t first = rows.entry * scales.strides[0] + rows.head * scales.strides[1] +
                             rows.begin * scales.strides[2];
  for (std::int64_t run = 0; run < runs; ++run) {
    const std::int64_t at = first + run * scales.strides[2];
    const auto* const data = static_cast<const char*>(scales.data) + at * kFloatBytes;
    const std::int64_t bad = first_bad_scale(data, step * kFloatBytes, each);
    if (bad == each) continue;
    const std::int64_t row = rows.begin + run + bad / columns;
    const std::string index = concat(rows.entry, ",", rows.head, ",", row);
    return refuse_scale(where, name, scales.rank == 4 ? concat(index, ",", bad % columns) : index,
                        read_float(scales, at + bad * step));
  }
  return {};
}

/// Those of blocks of k or v that hold a row of a sequence.
Status check_block_scales(const TensorView& scales, CheckedCall* call, const char* name) {
  const problem::Problem& p = call->problem();
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const problem::Sequence s = problem::sequence_of(p, b);
    const std::int64_t rows = s.leftpad + s.band.len_kv;
    for (std::int64_t j = s.leftpad; j < rows;) {
      const RowPlace place = place_of_row(p, scales.shape[0], b, j, rows);
      const std::int64_t last = place.row + place.left - 1;
      for (std::int64_t h = 0; h < p.num_heads_kv && place.entry >= 0; ++h) {
        const ScaleRows held{place.entry, h, place.row >> p.scale_rows_log2,
                             (last >> p.scale_rows_log2) + 1};
        if (Status bad = check_scale_rows(scales, held, name, call->where); !bad.ok()) return bad;
      }
      j += place.left;
    }
  }
  return {};
}

/// Those of k or of v, of which each page, entry or row has one, or each row `numbers` of u4.
struct KvScales {
  const problem::Problem& p;
  const problem::View& view;
  std::int64_t entries;
  bool of_rows;
  std::int64_t numbers;
};

/// Rows [begin, end) of a sequence.
struct ScaledRows {
  std::int64_t begin, end;
};

/// New rows bring their own.
ScaledRows scaled_rows(const KvScales& of, std::int64_t b) noexcept {
  const problem::Sequence s = problem::sequence_of(of.p, b);
  return {s.leftpad, s.leftpad + s.band.len_kv - (of.of_rows ? of.p.seqlen_new : 0)};
}

std::optional<BadScale> first_bad_scale_of(const KvScales& of, std::int64_t b,
                                           ScaledRows rows) noexcept {
  for (std::int64_t j = rows.begin; j < rows.end;) {
    const RowPlace place = place_of_row(of.p, of.entries, b, j, rows.end);
    const std::int64_t count = of.of_rows ? place.left : 1;
    for (std::int64_t h = 0; h < of.p.num_heads_kv && place.entry >= 0; ++h) {
      const std::int64_t at = place.entry * of.view.stride[0] + h * of.view.stride[1];
      const std::int64_t step = of.view.stride[2] * kFloatBytes;
      const auto* const first =
          problem::element_at<char>(of.view, 0) + at * kFloatBytes + place.row * step;
      const std::int64_t bad = of.numbers == 0 ? first_bad_scale(first, step, count)
                                               : first_bad_row(first, step, count, of.numbers);
      if (bad == count * std::max<std::int64_t>(of.numbers, 1)) continue;
      return BadScale{{place.entry, h, of.of_rows ? place.row : 0}, bad, of.numbers};
    }
    j += place.left;
  }
  return std::nullopt;
}

/// Rows that workers take in turns.
constexpr std::int64_t kRowsOfWorker = 512;

/// What the workers of a check share: each takes every count-th run of kRowsOfWorker rows.
struct SharedCheck {
  const KvScales& of;
  int count;
  std::atomic<bool> is_bad{false};

  static void run(void* state, int worker) {
    auto* const self = static_cast<SharedCheck*>(state);
    std::int64_t turn = 0;
    for (std::int64_t b = 0; b < self->of.p.batch; ++b) {
      const ScaledRows rows = scaled_rows(self->of, b);
      for (std::int64_t j = rows.begin; j < rows.end; j += kRowsOfWorker, ++turn) {
        if (turn % self->count != worker) continue;
        const ScaledRows run{j, std::min(j + kRowsOfWorker, rows.end)};
        if (first_bad_scale_of(self->of, b, run)) return self->is_bad.store(true);
      }
    }
  }
};

/// False where a scale is bad, or where there are too few for several workers: on two threads the
/// check of u4 was a quarter of a decode's time.
bool has_only_good_scales(const KvScales& of, const CheckWorkers& workers) {
  constexpr std::int64_t kFewBytes = 512 << 10;
  if (workers.executor == nullptr || workers.count < 2 || !of.of_rows) return false;
  std::int64_t rows = 0;
  for (std::int64_t b = 0; b < of.p.batch; ++b) {
    const ScaledRows held = scaled_rows(of, b);
    rows += std::max<std::int64_t>(held.end - held.begin, 0);
  }
  const std::int64_t row_bytes = std::max<std::int64_t>(of.numbers, 1) * kFloatBytes;
  if (rows * row_bytes * of.p.num_heads_kv < kFewBytes) return false;
  SharedCheck check{of, workers.count};
  workers.executor->run(workers.count, SharedCheck::run, &check);
  return !check.is_bad.load();
}

}  // namespace

Status check_query_scales(const TensorView& scales, CheckedCall* call, const char* name) {
  if (!is_readable(scales)) return {};
  const problem::Problem& p = call->problem();
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const std::int64_t len = problem::sequence_of(p, b).len_q;
    const bool packed = p.q.starts.data != nullptr;
    const std::int64_t first = packed ? problem::row_start(p.q.starts, b) : 0;
    for (std::int64_t h = 0; h < p.num_heads_q && len > 0; ++h) {
      const ScaleRows held{packed ? 0 : b, h, first >> p.scale_rows_log2,
                           ((first + len - 1) >> p.scale_rows_log2) + 1};
      if (Status bad = check_scale_rows(scales, held, name, call->where); !bad.ok()) return bad;
    }
  }
  return {};
}

Status check_row_scales(const TensorView& scales, CheckedCall* call, const char* name) {
  if (!is_readable(scales)) return {};
  const problem::Problem& p = call->problem();
  const bool of_k = scales.data == call->buffers.scales_k.data;
  const Dtype codes = of_k ? call->buffers.k.dtype : call->buffers.v.dtype;
  if (p.scale_columns != 0 && codes != Dtype::kU4) return check_block_scales(scales, call, name);
  const KvScales of{p, of_k ? p.scales_k : p.scales_v, scales.shape[0],
                    of_k ? p.scales_k_of_rows : p.scales_v_of_rows,
                    scales.rank == 4 ? scales.shape[3] : 0};
  if (has_only_good_scales(of, call->workers)) return {};
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const ScaledRows rows = scaled_rows(of, b);
    const std::optional<BadScale> bad = first_bad_scale_of(of, b, rows);
    if (bad) return refuse_row_scale(call->where, name, scales, *bad);
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

}  // namespace regard
