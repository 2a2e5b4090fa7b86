#include "core/select/tuning.h"

#include <algorithm>
#include <optional>

#include "core/text/backend_names.h"
#include "core/text/number_parse.h"
#include "core/text/thrown_by.h"
#include "platform/read_file.h"

namespace regard {
namespace {

struct Extent {
  const char* word;
  std::int64_t AttentionParams::*field;
};
constexpr Extent kExtents[] = {
    {"b", &AttentionParams::batch},          {"hq", &AttentionParams::num_heads_q},
    {"hkv", &AttentionParams::num_heads_kv}, {"sq", &AttentionParams::seqlen_q},
    {"skv", &AttentionParams::seqlen_kv},    {"d", &AttentionParams::head_dim_qk},
    {"dv", &AttentionParams::head_dim_v},
};

// One word of a condition: "sq<=32", "d>=128", "hq=8", a dtype of q, a feature's name, or
// "device=cpu". nullopt when it is none of these.
std::optional<bool> holds(std::string_view word, const AttentionParams& params) noexcept {
  if (const auto dtype = parse_dtype(word)) return params.dtype_q == *dtype;
  if (const auto feature = parse_feature(word)) return params.features.has(*feature);
  if (word == "device=cpu") return params.device.type == DeviceType::kCpu;
  if (word == "device=cuda") return params.device.type == DeviceType::kCuda;
  const std::size_t op = word.find_first_of("<>=");
  if (op == std::string_view::npos) return std::nullopt;
  std::string_view number = word.substr(op + 1);
  const char kind = word[op];
  if (kind != '=') {
    if (number.empty() || number[0] != '=') return std::nullopt;
    number.remove_prefix(1);
  }
  std::int64_t limit = 0;
  if (!parse_number(number, &limit)) return std::nullopt;
  for (const Extent& extent : kExtents) {
    if (word.substr(0, op) != extent.word) continue;
    const std::int64_t actual = params.*extent.field;
    return kind == '<' ? actual <= limit : kind == '>' ? actual >= limit : actual == limit;
  }
  return std::nullopt;
}

// Calls f on each word; stops and returns false when f does.
template <class F>
bool each_word(std::string_view text, F&& f) {
  while (true) {
    const std::size_t start = text.find_first_not_of(' ');
    if (start == std::string_view::npos) return true;
    text.remove_prefix(start);
    const std::size_t end = std::min(text.find(' '), text.size());
    if (!f(text.substr(0, end))) return false;
    text.remove_prefix(end);
  }
}

Status line_error(const std::string& source, int line, const std::string& what) {
  return Status(StatusCode::kInvalidArgument,
                "[parse_tuning_table] " + source + ":" + std::to_string(line) + ": " + what);
}

// "order <condition> : <backends>"
Expected<TuningTable::Rule> parse_rule(std::string_view text) {
  const std::size_t colon = text.find(" : ");
  if (colon == std::string_view::npos) {
    return Status(StatusCode::kInvalidArgument, "expected \"order <condition> : <backends>\"");
  }
  TuningTable::Rule rule;
  rule.condition = std::string(text.substr(0, colon));
  std::string unknown;
  each_word(rule.condition, [&](std::string_view word) {
    if (!holds(word, AttentionParams{})) unknown = std::string(word);
    return unknown.empty();
  });
  if (!unknown.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "unknown condition \"" + unknown +
                      "\"; expected an extent (sq<=32), a dtype, a feature or device=cpu|cuda");
  }
  std::string_view names = text.substr(colon + 3);
  while (!names.empty() && names.front() == ' ') names.remove_prefix(1);
  Expected<std::vector<BackendRef>> order = parse_backend_list(names);
  if (!order) return order.status();
  rule.order = std::move(*order);
  return rule;
}

// One line after the header; `rest` is what follows its first word.
Status read_line(const std::string& word, const std::string& rest, TuningTable* table) {
  const auto read_number = [&](std::int32_t* number) -> Status {
    if (parse_number(rest, number) && *number > 0) return {};
    return Status(StatusCode::kInvalidArgument,
                  word + " \"" + rest + "\", expected a number of at least 1");
  };
  if (word == "version") {
    table->version = rest;
  } else if (word == "isa") {
    table->isa = rest;
  } else if (word == "cpu") {
    table->cpu_model = rest;
  } else if (word == "concurrency") {
    return read_number(&table->concurrency);
  } else if (word == "sm") {
    return read_number(&table->sm_version);
  } else if (word == "gpu") {
    table->device_name = rest;
  } else if (word == "order") {
    Expected<TuningTable::Rule> rule = parse_rule(rest.empty() ? rest : " " + rest);
    if (!rule) return rule.status();
    table->rules.push_back(std::move(*rule));
  } else {
    return Status(
        StatusCode::kInvalidArgument,
        "unknown word \"" + word + "\"; expected version, isa, cpu, concurrency, sm, gpu or order");
  }
  return {};
}

}  // namespace

Expected<TuningTable> parse_tuning_table(std::string_view text, std::string source) try {
  TuningTable table;
  table.source = std::move(source);
  bool header_seen = false;
  for (int number = 1; !text.empty(); ++number) {
    const std::string line(text.substr(0, text.find('\n')));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.empty() || line[0] == '#') continue;
    if (!header_seen) {
      if (line != "regard-tuning 1") {
        return line_error(table.source, number, "\"" + line + "\", expected \"regard-tuning 1\"");
      }
      header_seen = true;
      continue;
    }
    const std::size_t space = line.find(' ');
    const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
    const Status status = read_line(line.substr(0, space), rest, &table);
    if (!status.ok()) return line_error(table.source, number, status.message());
  }
  if (!header_seen) return line_error(table.source, 1, "empty, expected \"regard-tuning 1\"");
  return table;
} catch (...) {
  return status_of_exception("parse_tuning_table");
}

Expected<TuningTable> read_tuning_table(const std::string& path) {
  constexpr std::int64_t kMaxBytes = 1 << 20;
  const Expected<std::string> text = read_regular_file(path, kMaxBytes, "read_tuning_table");
  if (!text) return text.status();
  Expected<TuningTable> table = parse_tuning_table(*text, path);
  unless_out_of_memory(table.status());
  return table;
}

std::string tuning_mismatch(const TuningTable& table, const Env& env, DeviceType device) {
  const auto differs = [](const char* what, const std::string& theirs, const std::string& ours) {
    return std::string(what) + " " + theirs + ", not " + ours;
  };
  const auto number = [](auto n) { return std::to_string(n); };
  if (table.version != env.version) return differs("version", table.version, env.version);
  if (device == DeviceType::kCuda) {
    if (table.sm_version == 0) return differs("device", "cpu", "cuda");
    if (table.sm_version != env.sm_version) {
      return differs("sm", number(table.sm_version), number(env.sm_version));
    }
    if (table.device_name == env.device_name) return "";
    return differs("gpu", table.device_name, env.device_name);
  }
  if (table.isa.empty()) return differs("device", "cuda", "cpu");
  if (table.isa != to_string(env.isa)) return differs("isa", table.isa, to_string(env.isa));
  if (table.cpu_model != env.cpu_model) return differs("cpu", table.cpu_model, env.cpu_model);
  if (table.concurrency == env.concurrency) return "";
  return differs("concurrency", number(table.concurrency), number(env.concurrency));
}

const std::vector<BackendRef>* tuned_order(const TuningTable& table,
                                           const AttentionParams& params) noexcept {
  for (const TuningTable::Rule& rule : table.rules) {
    const bool all = each_word(
        rule.condition, [&](std::string_view word) { return holds(word, params).value_or(false); });
    if (all) return &rule.order;
  }
  return nullptr;
}

}  // namespace regard
