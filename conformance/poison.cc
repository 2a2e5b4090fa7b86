#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "conformance/fill.h"
#include "conformance/rng.h"
#include "oracle/number.h"
#include "oracle/padded.h"
#include "oracle/rules.h"

namespace regard::conformance {
namespace {

constexpr std::uint64_t kPoisonStream = 0x706f69736f6e;
constexpr std::uint64_t kPoisonDOutStream = 0x706f69646f75;

/// How many (query head, query) pairs see each row of K and V in memory: [B,Hkv,Skv], packed
/// [1,Hkv,total_kv], or in pages [pages,Hkv,page_size].
class Viewers {
 public:
  Viewers(const AttentionRequest& r, const oracle::Padded& padded)
      : heads_(r.k.shape[1]),
        rows_(r.k.shape[2]),
        counts_(static_cast<std::size_t>(r.k.shape[0] * heads_ * rows_)) {
    const oracle::Rules rules(padded.request(), oracle::Fault::kNone);
    for (std::int64_t b = 0; b < padded.request().q.shape[0]; ++b) {
      // New rows are written over those of the cache.
      const std::int64_t appended = r.k_new.present() ? r.k_new.shape[2] : 0;
      for (std::int64_t j = 0; j < rules.len_kv(b) - appended; ++j) {
        const oracle::KeyPlace place = padded.place_of_key(b, j);
        for (std::int64_t h = 0; h < r.q.shape[1] && place.entry >= 0; ++h) {
          at(place.entry, rules.kv_head(h), place.row) += count(rules, {b, j}, h);
        }
      }
    }
  }

  std::int64_t& at(std::int64_t b, std::int64_t h, std::int64_t row) {
    return counts_[static_cast<std::size_t>((b * heads_ + h) * rows_ + row)];
  }

 private:
  static std::int64_t count(const oracle::Rules& rules, const oracle::PackedRow& key,
                            std::int64_t h) {
    std::int64_t viewers = 0;
    for (std::int64_t i = 0; i < rules.len_q(key.b); ++i) {
      if (rules.visible({key.b, h, i, key.position})) ++viewers;
    }
    return viewers;
  }

  std::int64_t heads_, rows_;
  std::vector<std::int64_t> counts_;
};

unsigned char* row_of(const TensorView& view, std::int64_t b, std::int64_t h, std::int64_t s) {
  const std::int64_t offset = b * view.strides[0] + h * view.strides[1] + s * view.strides[2];
  return static_cast<unsigned char*>(view.data) + offset * size_of(view.dtype);
}

/// An expanded dimension's rows are one row: all that see it count.
std::int64_t viewers_of(const TensorView& view, Viewers& viewers, std::int64_t b, std::int64_t h,
                        std::int64_t j) {
  const bool all_b = view.strides[0] == 0, all_h = view.strides[1] == 0;
  std::int64_t count = 0;
  for (std::int64_t bb = all_b ? 0 : b; bb < (all_b ? view.shape[0] : b + 1); ++bb) {
    for (std::int64_t hh = all_h ? 0 : h; hh < (all_h ? view.shape[1] : h + 1); ++hh) {
      count += viewers.at(bb, hh, j);
    }
  }
  return count;
}

/// Codes of u4 stand two in a byte, and each is a number.
void poison_row(const TensorView& view, unsigned char* row, Rng* rng) {
  if (view.dtype == Dtype::kU4) return;
  const double poisons[] = {std::numeric_limits<double>::quiet_NaN(),
                            std::numeric_limits<double>::infinity(),
                            -std::numeric_limits<double>::infinity()};
  for (std::int64_t d = 0; d < view.shape[3]; ++d) {
    oracle::encode(rng->pick(poisons), row + d * size_of(view.dtype), view.dtype);
  }
}

void poison_unseen(const TensorView& view, Viewers& viewers, Rng* rng) {
  for (std::int64_t b = 0; b < view.shape[0]; ++b) {
    for (std::int64_t h = 0; h < view.shape[1]; ++h) {
      for (std::int64_t j = 0; j < view.shape[2]; ++j) {
        if (viewers_of(view, viewers, b, h, j) == 0) poison_row(view, row_of(view, b, h, j), rng);
      }
    }
  }
}

/// The rows of q, or of d_out, past their sequence's length, or behind all packed sequences.
void poison_padding_queries(const oracle::Padded& padded, const TensorView& view, Rng* rng) {
  const oracle::Rules rules(padded.request(), oracle::Fault::kNone);
  for (std::int64_t b = 0; b < view.shape[0]; ++b) {
    for (std::int64_t h = 0; h < view.shape[1]; ++h) {
      for (std::int64_t row = 0; row < view.shape[2]; ++row) {
        const oracle::PackedRow query = padded.query_of(b, row);
        if (query.b >= 0 && query.position < rules.len_q(query.b)) continue;
        poison_row(view, row_of(view, b, h, row), rng);
      }
    }
  }
}

bool sees_something(const oracle::Rules& rules, std::int64_t h, const oracle::PackedRow& query) {
  for (std::int64_t j = 0; query.b >= 0 && j < rules.len_kv(query.b); ++j) {
    if (rules.visible({query.b, h, query.position, j})) return true;
  }
  return false;
}

/// d_out of rows that see nothing. Not beside a sink: only `out` and the statistics show a backward
/// of such a row, and with a sink they are those of a row whose sink takes all.
void poison_dead_rows(const oracle::Padded& padded, const TensorView& d_out, Rng* rng) {
  const oracle::Rules rules(padded.request(), oracle::Fault::kNone);
  const bool has_sinks = padded.request().sinks.present();
  for (std::int64_t b = 0; b < d_out.shape[0] && !has_sinks; ++b) {
    for (std::int64_t h = 0; h < d_out.shape[1]; ++h) {
      for (std::int64_t i = 0; i < d_out.shape[2]; ++i) {
        if (sees_something(rules, h, padded.query_of(b, i))) continue;
        poison_row(d_out, row_of(d_out, b, h, i), rng);
      }
    }
  }
}

/// A NaN in one element of a row of d_out that sees something: it reaches its keys and no other.
void poison_one_row(const TensorView& d_out, Rng* rng) {
  if (d_out.num_elements() == 0) return;
  const std::int64_t b = rng->between(0, d_out.shape[0] - 1);
  const std::int64_t h = rng->between(0, d_out.shape[1] - 1);
  const std::int64_t i = rng->between(0, d_out.shape[2] - 1);
  const std::int64_t d = rng->between(0, d_out.shape[3] - 1);
  oracle::encode(std::numeric_limits<double>::quiet_NaN(),
                 row_of(d_out, b, h, i) + d * size_of(d_out.dtype), d_out.dtype);
}

/// A NaN in one element of a key that fewer than half of its queries see.
void poison_one_seen(const TensorView& view, Viewers& viewers, std::int64_t rows, Rng* rng) {
  if (view.shape[0] == 0 || view.shape[1] == 0 || view.shape[2] == 0 || view.shape[3] == 0) return;
  for (int tries = 0; tries < 8; ++tries) {
    const std::int64_t b = rng->between(0, view.shape[0] - 1);
    const std::int64_t h = rng->between(0, view.shape[1] - 1);
    const std::int64_t j = rng->between(0, view.shape[2] - 1);
    const std::int64_t d = rng->between(0, view.shape[3] - 1);
    const std::int64_t count = viewers_of(view, viewers, b, h, j);
    if (count == 0 || 2 * count >= rows) continue;
    oracle::encode(std::numeric_limits<double>::quiet_NaN(),
                   row_of(view, b, h, j) + d * size_of(view.dtype), view.dtype);
    return;
  }
}

/// Whether no weight of a visible key underflows: there 0 * NaN is NaN for some and 0 for others.
bool weights_stay_positive(const Case& c) {
  const FeatureSet features = c.params.features;
  return c.data.kind == DataKind::kNormal && std::fabs(c.params.softmax_scale) <= 1.0 &&
         !features.has(Feature::kAlibi) && !features.has(Feature::kDropout) &&
         !features.has(Feature::kScoreFunction) && !features.has(Feature::kScoreCallback) &&
         !features.has(Feature::kSinks);
}

}  // namespace

void poison(const Case& c, AttentionGradRequest* request) {
  const Expected<oracle::Padded> padded = oracle::Padded::make(*request);
  if (!padded) return;  // the oracle will say so
  Rng rng(c.data.seed, kPoisonStream);
  Viewers viewers(*request, *padded);
  poison_unseen(request->k, viewers, &rng);
  poison_unseen(request->v, viewers, &rng);
  poison_padding_queries(*padded, request->q, &rng);
  const TensorView& d_out = request->d_out;
  if (d_out.present()) {
    Rng rng_d_out(c.data.seed, kPoisonDOutStream);
    poison_padding_queries(*padded, d_out, &rng_d_out);
    poison_dead_rows(*padded, d_out, &rng_d_out);
    if (weights_stay_positive(c) && rng_d_out.chance(0.3)) poison_one_row(d_out, &rng_d_out);
  }
  if (!is_float(request->k.dtype) || !rng.chance(0.5)) return;
  const std::int64_t heads_kv = request->k.shape[1];
  const std::int64_t rows =
      heads_kv == 0 ? 0 : request->q.shape[1] / heads_kv * request->q.shape[2];
  const bool in_k = rng.chance(0.5);
  // On the way back a key's NaN probabilities are multiplied by dropout's zeros and probabilities
  // that flush.
  const bool k_too = !d_out.present() || weights_stay_positive(c);
  if (in_k && k_too) poison_one_seen(request->k, viewers, rows, &rng);
  if (!in_k && weights_stay_positive(c)) poison_one_seen(request->v, viewers, rows, &rng);
}

}  // namespace regard::conformance
