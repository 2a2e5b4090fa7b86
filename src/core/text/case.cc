#include "regard/case.h"

#include <algorithm>
#include <numeric>

#include "base/checked.h"
#include "base/message.h"
#include "core/text/case_words.h"
#include "core/text/thrown_by.h"
#include "function/recognise.h"

namespace regard {
namespace {

constexpr const char* kParseCase = "parse_case";
/// Of params that have an origin, whose numbers are data: none that means nothing.
constexpr DropoutOrigin kShownOrigin{0, 8, 0, 0};

// The value in a text, or a base's text, of one word of the table.
struct ParsedWord {
  bool present = false;
  bool own = false;      // by the text, not by its base
  bool removed = false;  // "word=none"
  std::string_view value;
};
using ParsedWords = std::vector<ParsedWord>;  // by place in the table

bool is_digits(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::string usage(const CaseWord& word) {
  switch (word.form) {
    case WordForm::kSize: return concat(word.name, word.value);
    case WordForm::kDtype: return word.value;
    case WordForm::kFlag: return word.name;
    case WordForm::kValue: return concat(word.name, "=", word.value);
    case WordForm::kEither: return concat(word.name, "[=", word.value, "]");
  }
  return word.name;
}

// Levenshtein's distance; names are short.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] != b[j - 1] ? 1 : 0);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

Status unknown_word(std::string_view token) {
  constexpr std::size_t kMaxName = 32;
  const std::string_view name =
      token.substr(0, std::min(token.find_first_of("=0123456789"), kMaxName));
  const CaseWord* nearest = nullptr;
  std::size_t min = 0;
  for (const CaseWord& word : case_words()) {
    const std::size_t distance = edit_distance(name, word.name);
    if (nearest == nullptr || distance < min) {
      nearest = &word;
      min = distance;
    }
  }
  return invalid(kParseCase, "unknown word ", quoted(token), "; the nearest known is ",
                 usage(*nearest), " (", nearest->doc, ")");
}

Status bad_value(const CaseWord& word, std::string_view token) {
  return invalid(kParseCase, "cannot read ", quoted(token), "; expected ", usage(word), ", ",
                 word.doc);
}

// The word of the table that a token is, with its value in *value. Null: none.
const CaseWord* find_word(std::string_view token, std::string_view* value) {
  const std::size_t equals = token.find('=');
  const std::string_view name = token.substr(0, equals);
  *value = equals == std::string_view::npos ? "" : token.substr(equals + 1);
  for (const CaseWord& word : case_words()) {
    if (word.form == WordForm::kDtype && equals == std::string_view::npos &&
        parse_dtype_word(token)) {
      *value = token;
      return &word;
    }
    if (word.form == WordForm::kSize && token.starts_with(word.name)) {
      const std::string_view rest = token.substr(std::string_view(word.name).size());
      if (is_digits(rest)) {
        *value = rest;
        return &word;
      }
    }
    if (name == word.name && (word.takes == nullptr || word.takes(*value))) return &word;
  }
  return nullptr;
}

// Reads one token into the sentence.
Status read_token(std::string_view token, ParsedWords* parsed_words) {
  std::string_view value;
  const CaseWord* word = find_word(token, &value);
  if (word == nullptr) return unknown_word(token);
  const bool has_equals = token.find('=') != std::string_view::npos;
  ParsedWord& parsed = (*parsed_words)[static_cast<std::size_t>(word - case_words().data())];
  if (parsed.present) {
    return invalid(kParseCase, "duplicate word ", quoted(token), "; expected ", usage(*word),
                   " at most once");
  }
  parsed = {true, true, false, value};
  const bool may_be_flag = word->form == WordForm::kFlag || word->form == WordForm::kEither;
  if (has_equals && (value == "none" || (may_be_flag && value == "0"))) {
    parsed.removed = true;
  } else if (word->form == WordForm::kFlag) {
    if (has_equals && value != "1") return bad_value(*word, token);
  } else if (value.empty() && (has_equals || word->form != WordForm::kEither)) {
    return bad_value(*word, token);
  } else if (word->form == WordForm::kEither && value == "1" && has_equals) {
    parsed.value = "";
  }
  return {};
}

Expected<ParsedWords> parse_words(std::string_view text) {
  ParsedWords parsed_words(case_words().size());
  constexpr std::string_view kSpaces = " \t\r\n\f\v";
  while (true) {
    const std::size_t begin = text.find_first_not_of(kSpaces);
    if (begin == std::string_view::npos) return parsed_words;
    text.remove_prefix(begin);
    const std::size_t end = std::min(text.find_first_of(kSpaces), text.size());
    if (Status status = read_token(text.substr(0, end), &parsed_words); !status.ok()) return status;
    text.remove_prefix(end);
  }
}

Status check_literal_lens(const char* name, const std::vector<std::int64_t>& lens,
                          std::int64_t batch, std::int64_t max) {
  if (lens.empty()) return {};
  if (static_cast<std::int64_t>(lens.size()) != batch) {
    return invalid(kParseCase, name, " (", lens.size(),
                   " values) must have one value for each sequence, ", batch);
  }
  for (const std::int64_t len : lens) {
    if (len >= 0 && len <= max) continue;
    return invalid(kParseCase, "a value of ", name, " (", len, ") must be 0..", max);
  }
  return {};
}

// A call states no longest length of 0 (Buffers::max_seqlen_q): that is "not stated".
Status check_longest(const char* word, std::int64_t longest, std::int64_t total) {
  if (longest > 0 || total == 0) return {};
  return invalid(kParseCase, word, " (0) must be at least 1 where there are packed rows (", total,
                 ")");
}

Status check_literal_rows(const char* name, const std::vector<std::int64_t>& rows,
                          std::int64_t batch, std::int64_t max, std::int64_t total) {
  if (Status status = check_literal_lens(name, rows, batch, max); !status.ok()) return status;
  std::int64_t sum = 0;
  for (const std::int64_t n : rows) sum = saturating_add(sum, n);
  if (sum <= total) return {};
  return invalid(kParseCase, "the sum of ", name, " (", sum, ") must be at most the packed rows, ",
                 total);
}

// Applies the words in the table's order.
Expected<Case> build(const ParsedWords& parsed_words) {
  Case c;
  const std::span<const CaseWord> words = case_words();
  const auto is_present = [&](std::string_view name) {
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (name == words[i].name) return parsed_words[i].present && !parsed_words[i].removed;
    }
    return false;
  };
  // Said by the text, not by a base that it changes.
  const auto is_own = [&](std::string_view name) {
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (name == words[i].name && parsed_words[i].own) return is_present(name);
    }
    return false;
  };
  for (const char* required : {"sq", "d"}) {
    if (is_present(required)) continue;
    return invalid(kParseCase, "missing word; expected ", required, "N");
  }
  for (std::size_t i = 0; i < words.size(); ++i) {
    const ParsedWord& parsed = parsed_words[i];
    const CaseWord& word = words[i];
    if (!parsed.present || parsed.removed) continue;
    if (word.needs != nullptr && !is_present(word.needs)) {
      if (!parsed.own) continue;
      return invalid(kParseCase, "word ", word.name, " has no effect without ", word.needs,
                     "; add ", word.needs, ", or remove ", word.name);
    }
    if (!word.parse(parsed.value, &c)) {
      return bad_value(word,
                       concat(word.name, word.form == WordForm::kSize ? "" : "=", parsed.value));
    }
  }
  if (c.params.window_right == 0) c.params.features.set(Feature::kCausal);
  const FeatureSet f = c.params.features;
  if ((is_own("tokens_q") && !f.has(Feature::kSeqlensQ)) ||
      (is_own("tokens_kv") && !f.has(Feature::kSeqlensKv))) {
    return invalid(kParseCase,
                   "words tokens_q and tokens_kv mean nothing without lengths; expected "
                   "lens, lens_q or lens_kv as well");
  }
  if (Status status = validate(c.params, kParseCase); !status.ok()) return status;
  function::recognise_features(&c.params);
  canonicalize(c);
  const AttentionParams& p = c.params;
  Status status = check_literal_lens("lens_q", c.data.seqlens_q, p.batch, p.seqlen_q);
  if (!status.ok()) return status;
  const std::int64_t new_rows = p.features.has(Feature::kAppendKv) ? c.data.new_rows : 0;
  if (p.features.has(Feature::kAppendKv) && (new_rows < 1 || new_rows > p.seqlen_kv)) {
    return invalid(kParseCase, "append (", new_rows, ") must be 1..skv, ", p.seqlen_kv);
  }
  if (p.features.has(Feature::kPositions) && new_rows > 0 && new_rows != p.seqlen_q) {
    return invalid(kParseCase, "append (", new_rows, ") must be sq, ", p.seqlen_q,
                   ", with positions");
  }
  status = check_literal_lens("lens_kv", c.data.seqlens_kv, p.batch, p.seqlen_kv - new_rows);
  if (!status.ok()) return status;
  if (p.features.has(Feature::kPacked)) {
    status = check_longest("sq", p.seqlen_q, p.total_q);
    if (status.ok()) status = check_longest("skv", p.seqlen_kv, p.total_kv);
    if (!status.ok()) return status;
  }
  status = check_literal_rows("rows_q", c.data.rows_q, p.batch, p.seqlen_q, p.total_q);
  if (!status.ok()) return status;
  status = check_literal_rows("rows_kv", c.data.rows_kv, p.batch, p.seqlen_kv, p.total_kv);
  if (!status.ok()) return status;
  return c;
}

}  // namespace

const char* to_string(DataKind kind) noexcept {
  switch (kind) {
    case DataKind::kNormal: return "normal";
    case DataKind::kLarge: return "large";
    case DataKind::kOutlier: return "outlier";
    case DataKind::kConstant: return "constant";
    case DataKind::kFinfoMin: return "finfo_min";
    case DataKind::kDenormal: return "denormal";
  }
  return "?";
}

Expected<Case> parse_case(std::string_view text) try {
  const Expected<ParsedWords> parsed_words = parse_words(text);
  if (!parsed_words) return parsed_words.status();
  return build(*parsed_words);
} catch (...) {
  return status_of_exception(kParseCase);
}

Expected<Case> parse_case(std::string_view text, const Case& base) try {
  Expected<ParsedWords> parsed_words = parse_words(text);
  if (!parsed_words) return parsed_words.status();
  const std::span<const CaseWord> words = case_words();
  Case rest = base;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if ((*parsed_words)[i].present && words[i].reset != nullptr) words[i].reset(&rest);
  }
  const std::string rest_text = to_string(rest);
  const Expected<ParsedWords> base_words = parse_words(rest_text);
  if (!base_words) return base_words.status();
  for (std::size_t i = 0; i < words.size(); ++i) {
    if ((*parsed_words)[i].present) continue;
    (*parsed_words)[i] = (*base_words)[i];
    (*parsed_words)[i].own = false;
  }
  return build(*parsed_words);
} catch (...) {
  return status_of_exception(kParseCase);
}

std::string to_string(const Case& c) {
  std::string out;
  for (const CaseWord& word : case_words()) {
    std::string value;
    if (!word.print(c, &value)) continue;
    if (!out.empty()) out += ' ';
    if (word.form != WordForm::kDtype) out += word.name;
    if (word.form == WordForm::kValue || word.form == WordForm::kEither) out += '=';
    out += value;
  }
  return out;
}

std::string to_string(const AttentionParams& params) {
  Case c;
  c.params = params;
  c.data.tree_keys = 1;
  c.data.dropout_origin = kShownOrigin;
  return to_string(c);
}

void canonicalize(Case& c) noexcept {
  canonicalize(c.params);
  const FeatureSet f = c.params.features;
  if (!f.has(Feature::kDiagonalOffset)) c.data.diagonal_offset = 0;
  DropoutOrigin& origin = c.data.dropout_origin;
  if (!f.has(Feature::kDropoutOrigin)) {
    origin = {};
  } else if (origin == DropoutOrigin{}) {
    origin = kShownOrigin;
  }
  if (!f.has(Feature::kSeqlensQ)) c.data.seqlens_q.clear();
  if (!f.has(Feature::kSeqlensKv)) c.data.seqlens_kv.clear();
  if (!f.has(Feature::kAppendKv)) c.data.new_rows = 1;
  std::int64_t& tree = c.data.tree_keys;  // of k_new where there is one: their shapes agree
  if (!f.has(Feature::kTreeMask)) {
    tree = 0;
  } else if (f.has(Feature::kAppendKv)) {
    tree = c.data.new_rows;
  } else {
    tree = std::clamp<std::int64_t>(tree, 1, std::max<std::int64_t>(c.params.seqlen_kv, 1));
  }
  if (!f.has(Feature::kPacked)) {
    c.data.rows_q.clear();
    c.data.rows_kv.clear();
  }
  if (c.params.device.type != DeviceType::kCuda) c.env.sm_version = 0;
}

std::string case_syntax_help() {
  std::string out;
  for (const CaseWord& word : case_words()) {
    std::string line = "  " + usage(word);
    constexpr std::size_t kColumn = 30;
    line.resize(std::max(line.size() + 1, kColumn), ' ');
    out += line + word.doc + "\n";
  }
  return out;
}

Env apply_overrides(const Env& env, const Case& c) {
  Env out = c.params.device.type == DeviceType::kCuda ? with_devices(env) : env;
  if (c.env.isa) {
    out.isa = *c.env.isa;
    if (!out.isa_available.includes(out.isa)) out.isa_available = out.isa;
  }
  out.device = c.params.device.type;
  if (c.env.sm_version != 0) {  // no device of this machine
    out.sm_version = c.env.sm_version;
    out.device_name.clear();
    out.cuda_devices.clear();
  }
  return out;
}

}  // namespace regard
