#include "backends/cudnn/record.h"

#include "backends/cudnn/record_91900.h"

namespace regard::cudnn {
namespace {

constexpr Record kRecords[] = {{91900, kTraits91900, kHeadDims91900}};

// From the frontend's own list of workarounds, which depends on the frontend that a build has.
constexpr Denied kDenied[] = {
    {91000, 91001, 0, "9.10.0 and 9.10.1 have known bugs in f16 and bf16"},
    {91400, 91400, kWindowLeft, "9.14.0 has a known bug in windows of more than 1024 keys"},
};

constexpr const char* kTraitNames[kTraitCount] = {
    "causal", "window_left",          "window_right",  "diagonal_bottom_right",
    "gqa",    "seqlen_q > seqlen_kv", "seqlen_q == 1", "seqlen_kv == 1",
    "lse",    "out of 16 bits"};

}  // namespace

const char* trait_name(int bit) noexcept { return kTraitNames[bit]; }

Traits traits_of(const AttentionParams& p) noexcept {
  Traits traits = 0;
  const auto add = [&](bool has, Traits trait) { traits |= has ? trait : 0; };
  add(p.features.has(Feature::kCausal), kCausal);
  add(p.features.has(Feature::kWindowLeft), kWindowLeft);
  add(p.features.has(Feature::kWindowRight), kWindowRight);
  add(p.features.has(Feature::kDiagonalBottomRight), kBottomRight);
  add(p.features.has(Feature::kGqa), kGroups);
  add(p.features.has(Feature::kSeqlenQGreaterKv), kRowsExceedKeys);
  add(p.seqlen_q == 1, kOneRow);
  add(p.seqlen_kv == 1, kOneKey);
  add(p.features.has(Feature::kLse), kLse);
  add(is_f8(p.dtype_q) && !is_f8(p.dtype_out), kWideOut);
  return traits;
}

std::span<const Record> records() noexcept { return kRecords; }
std::span<const Denied> denied() noexcept { return kDenied; }

const Record* find_record(std::int32_t version) noexcept {
  const Record* found = nullptr;
  for (const Record& record : kRecords) {
    if (record.version <= version) found = &record;
  }
  return found;
}

std::int32_t recorded_sm(std::int32_t sm_version) noexcept {
  const std::int32_t major = sm_version / 10;
  return major >= 8 && major <= 10 ? major * 10 : 0;
}

const char* find_refusal(const Record& record, const AttentionParams& params, Node node,
                         std::int32_t sm_version) noexcept {
  const std::int32_t sm = recorded_sm(sm_version);
  const Traits traits = traits_of(params);
  for (const TraitRefusal& r : record.traits) {
    if (r.sm == sm && r.node == node && (r.traits & traits) == r.traits) return r.words;
  }
  for (const HeadDimRefusal& r : record.head_dims) {
    if (r.sm == sm && r.node == node && r.qk_min <= params.head_dim_qk &&
        params.head_dim_qk <= r.qk_max && r.v_min <= params.head_dim_v &&
        params.head_dim_v <= r.v_max) {
      return r.words;
    }
  }
  return nullptr;
}

}  // namespace regard::cudnn
