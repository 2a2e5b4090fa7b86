#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "regard/env.h"
#include "regard/export.h"
#include "regard/params.h"
#include "regard/request.h"

namespace regard {

enum class DataKind : std::uint8_t {
  kNormal = 0,
  kLarge,
  kOutlier,
  kConstant,
  kFinfoMin,
  kDenormal
};
REGARD_EXPORT const char* to_string(DataKind kind) noexcept;

/// How a case's tensors are made; the generator is in conformance/.
struct DataSpec {
  std::uint64_t seed = 0;
  DataKind kind = DataKind::kNormal;
  bool poison = false;                   // NaN and inf in K and V behind every mask
  std::int64_t diagonal_offset = 0;      // diag=N
  std::vector<std::int64_t> seqlens_q;   // literal lens_q=...; empty: drawn from the seed
  std::vector<std::int64_t> seqlens_kv;  // literal lens_kv=...
  std::vector<std::int64_t> rows_q;      // literal rows_q=..., of packed sequences; empty: drawn
  std::vector<std::int64_t> rows_kv;     // literal rows_kv=...
  std::int64_t new_rows = 1;             // append=N: rows of k_new and v_new, with append
  std::int64_t tree_keys = 0;            // tree=N: keys that tree_mask speaks of
  DropoutOrigin dropout_origin;          // dropout_origin=POSITION,KEY,HEAD,HEADS
  friend bool operator==(const DataSpec&, const DataSpec&) = default;
};

struct EnvOverrides {
  std::optional<Isa> isa;
  std::int32_t sm_version = 0;  // device=sm90 gives 90
  friend bool operator==(const EnvOverrides&, const EnvOverrides&) = default;
};

/// A named problem: "b2 hq8 hkv2 sq128 skv1024 d64 bf16 causal diag=br lens seed=7".
struct Case {
  AttentionParams params;
  EnvOverrides env;
  DataSpec data;
  friend bool operator==(const Case&, const Case&) = default;
};

/// Parses a case. Words come in any order; case_syntax_help() lists them; `sq` and `d` are
/// required. Errors name the word and what was expected.
REGARD_EXPORT Expected<Case> parse_case(std::string_view text);

/// Parses `text` as changes to `base` (flags over a file's options, for instance): a word replaces
/// the base's word of that name, "word=none" removes it.
REGARD_EXPORT Expected<Case> parse_case(std::string_view text, const Case& base);

/// The words in canonical order; parse_case(to_string(c)) == c for canonical cases.
REGARD_EXPORT std::string to_string(const Case& c);

/// Makes the params canonical and clears overrides and data that they do not use. parse_case ends
/// with this.
REGARD_EXPORT void canonicalize(Case& c) noexcept;

/// Every word with its values and meaning, one a line, in canonical order.
REGARD_EXPORT std::string case_syntax_help();

/// `env` with the case's overrides applied.
REGARD_EXPORT Env apply_overrides(const Env& env, const Case& c);

}  // namespace regard
