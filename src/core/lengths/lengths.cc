#include "regard/lengths.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "base/message.h"
#include "core/describe/view_checks.h"
#include "core/text/thrown_by.h"

namespace regard {
namespace {

Status check_source(const char* where, const NamedView& source, int rank, const char* letters,
                    std::initializer_list<Dtype> dtypes) {
  ByteSpan span;
  if (Status s = check_view(where, source, Device{}, &span); !s.ok()) return s;
  if (Status s = expect_rank(where, source, rank, letters); !s.ok()) return s;
  return expect_dtype(where, source, dtypes);
}

}  // namespace

struct Lengths::Rows {
  std::int64_t batch = 0, seqlen = 0, longest = 0;
  std::vector<std::int64_t> indices{};
  std::vector<std::int32_t> cu_seqlens{0};

  /// Ends the sequence whose rows were added last.
  Status end_sequence(const char* where) {
    constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
    const auto total = static_cast<std::int64_t>(indices.size());
    if (total > kMax) {
      return failure(StatusCode::kOverflow, where, "rows of a batch (", total, ") must be at most ",
                     kMax);
    }
    longest = std::max(longest, total - cu_seqlens.back());
    cu_seqlens.push_back(static_cast<std::int32_t>(total));
    return {};
  }

  Status add_mask(const char* where, const TensorView& mask) {
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t s = 0; s < seqlen; ++s) {
        const std::int64_t at = b * mask.strides[0] + s * mask.strides[1];
        if (read_integer(mask, at) != 0) indices.push_back(b * seqlen + s);
      }
      if (Status status = end_sequence(where); !status.ok()) return status;
    }
    return {};
  }

  Status add_seqlens(const char* where, const TensorView& seqlens) {
    for (std::int64_t b = 0; b < batch; ++b) {
      const std::int64_t length = read_integer(seqlens, b * seqlens.strides[0]);
      if (length < 0 || length > seqlen) {
        return invalid(where, "seqlens[", b, "] (", length, "), expected 0 to ", seqlen);
      }
      for (std::int64_t s = 0; s < length; ++s) indices.push_back(b * seqlen + s);
      if (Status status = end_sequence(where); !status.ok()) return status;
    }
    return {};
  }

  Status add_position_ids(const char* where, const TensorView& ids) {
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t s = 0, before = -1; s < seqlen; ++s) {
        const std::int64_t id = read_integer(ids, b * ids.strides[0] + s * ids.strides[1]);
        if (id == 0 && s > 0) {
          if (Status status = end_sequence(where); !status.ok()) return status;
        } else if (id != before + 1) {
          return invalid(where, "position_ids[", b, ",", s, "] (", id, "), expected 0",
                         s == 0 ? std::string(" where a row of the tensor begins")
                                : concat(" where a sequence begins, or ", before + 1));
        }
        before = id;
        indices.push_back(b * seqlen + s);
      }
      if (seqlen == 0) continue;
      if (Status status = end_sequence(where); !status.ok()) return status;
    }
    return {};
  }
};

Lengths::Lengths() {
  static const auto empty = std::make_shared<const Rows>();
  rows_ = empty;
}

Lengths::Lengths(std::shared_ptr<const Rows> rows) noexcept : rows_(std::move(rows)) {}

Expected<Lengths> Lengths::from_mask(const TensorView& mask) {
  constexpr const char* kWhere = "Lengths::from_mask";
  try {
    Status status = check_source(kWhere, {"mask", mask}, 2, "[batch,seqlen]",
                                 {Dtype::kBool, Dtype::kU8, Dtype::kI32, Dtype::kI64});
    if (!status.ok()) return status;
    Rows rows{.batch = mask.shape[0], .seqlen = mask.shape[1]};
    status = rows.add_mask(kWhere, mask);
    if (!status.ok()) return status;
    return Lengths(std::make_shared<const Rows>(std::move(rows)));
  } catch (...) {
    return status_of_exception(kWhere);
  }
}

Expected<Lengths> Lengths::from_seqlens(const TensorView& seqlens, std::int64_t seqlen) {
  constexpr const char* kWhere = "Lengths::from_seqlens";
  try {
    if (seqlen < 0) return invalid(kWhere, "seqlen (", seqlen, ") must be at least 0");
    Status status =
        check_source(kWhere, {"seqlens", seqlens}, 1, "[batch]", {Dtype::kI32, Dtype::kI64});
    if (!status.ok()) return status;
    Rows rows{.batch = seqlens.shape[0], .seqlen = seqlen};
    if (std::int64_t positions = 0; __builtin_mul_overflow(rows.batch, seqlen, &positions)) {
      return failure(StatusCode::kOverflow, kWhere, "batch * seqlen (", rows.batch, " * ", seqlen,
                     ") does not fit 64 bits");
    }
    status = rows.add_seqlens(kWhere, seqlens);
    if (!status.ok()) return status;
    return Lengths(std::make_shared<const Rows>(std::move(rows)));
  } catch (...) {
    return status_of_exception(kWhere);
  }
}

Expected<Lengths> Lengths::from_position_ids(const TensorView& position_ids) {
  constexpr const char* kWhere = "Lengths::from_position_ids";
  try {
    Status status = check_source(kWhere, {"position_ids", position_ids}, 2, "[batch,seqlen]",
                                 {Dtype::kI32, Dtype::kI64});
    if (!status.ok()) return status;
    Rows rows{.batch = position_ids.shape[0], .seqlen = position_ids.shape[1]};
    status = rows.add_position_ids(kWhere, position_ids);
    if (!status.ok()) return status;
    return Lengths(std::make_shared<const Rows>(std::move(rows)));
  } catch (...) {
    return status_of_exception(kWhere);
  }
}

std::int64_t Lengths::batch() const noexcept { return rows_->batch; }
std::int64_t Lengths::seqlen() const noexcept { return rows_->seqlen; }
std::int64_t Lengths::num_sequences() const noexcept {
  return static_cast<std::int64_t>(rows_->cu_seqlens.size()) - 1;
}
std::int64_t Lengths::total() const noexcept {
  return static_cast<std::int64_t>(rows_->indices.size());
}
std::int64_t Lengths::max_seqlen() const noexcept { return rows_->longest; }
std::span<const std::int64_t> Lengths::indices() const noexcept { return rows_->indices; }
std::span<const std::int32_t> Lengths::cu_seqlens() const noexcept { return rows_->cu_seqlens; }

TensorView Lengths::cu_seqlens_view() const noexcept {
  return make_view(rows_->cu_seqlens.data(), Dtype::kI32, {num_sequences() + 1});
}

bool operator==(const Lengths& a, const Lengths& b) noexcept {
  return a.rows_ == b.rows_ ||
         (a.batch() == b.batch() && a.seqlen() == b.seqlen() &&
          a.rows_->cu_seqlens == b.rows_->cu_seqlens && a.rows_->indices == b.rows_->indices);
}

std::string to_string(const Lengths& lengths) {
  return concat("<", lengths.num_sequences(), " sequences of at most ", lengths.max_seqlen(),
                " rows, ", lengths.total(), " of ", lengths.batch(), " x ", lengths.seqlen(),
                " positions>");
}

std::int64_t longest_sequence(const TensorView& starts) noexcept {
  const bool is_index = starts.dtype == Dtype::kI32 || starts.dtype == Dtype::kI64;
  const bool fits = starts.device.type == DeviceType::kCpu && starts.data != nullptr &&
                    starts.rank == 1 && is_index &&
                    (starts.shape[0] <= 1 || starts.strides[0] == 1);
  std::int64_t longest = 0;
  for (std::int64_t b = 0; fits && b + 1 < starts.shape[0]; ++b) {
    std::int64_t length = 0;
    if (__builtin_sub_overflow(read_integer(starts, b + 1), read_integer(starts, b), &length)) {
      return 0;
    }
    longest = std::max(longest, length);
  }
  return longest;
}

}  // namespace regard
