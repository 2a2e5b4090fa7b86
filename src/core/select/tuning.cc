#include "core/select/tuning.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/text.h"
#include "core/text/backend_names.h"
#include "core/text/number_parse.h"
#include "core/text/thrown_by.h"
#include "platform/atomic_file.h"
#include "platform/read_file.h"
#include "regard/case.h"

namespace regard {
namespace {

struct ExtentWord {
  const char* word;
  std::int64_t AttentionParams::*field;
};
constexpr ExtentWord kExtentWords[] = {
    {"b", &AttentionParams::batch},          {"hq", &AttentionParams::num_heads_q},
    {"hkv", &AttentionParams::num_heads_kv}, {"sq", &AttentionParams::seqlen_q},
    {"skv", &AttentionParams::seqlen_kv},    {"d", &AttentionParams::head_dim_qk},
    {"dv", &AttentionParams::head_dim_v},
};

// One word of a condition: "sq<=32", "d>=128", "hq=8", a dtype of q, a feature's name, or
// "device=cpu". nullopt when it is none of these.
std::optional<bool> holds_for(std::string_view word, const AttentionParams& params) noexcept {
  if (const auto dtype = parse_dtype(word)) return params.dtype_q == *dtype;
  if (const auto feature = parse_feature(word)) return params.features.has(*feature);
  if (word.starts_with('!')) {
    const auto feature = parse_feature(word.substr(1));
    if (!feature) return std::nullopt;
    return !params.features.has(*feature);
  }
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
  for (const ExtentWord& extent : kExtentWords) {
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

bool all_hold(std::string_view condition, const AttentionParams& params) noexcept {
  return each_word(condition,
                   [&](std::string_view word) { return holds_for(word, params).value_or(false); });
}

Status tuning_error(const std::string& source, int line, const std::string& what) {
  return Status(StatusCode::kInvalidArgument,
                "[parse_tuning_table] " + source + ":" + std::to_string(line) + ": " + what);
}

Status bad(const std::string& what) { return Status(StatusCode::kInvalidArgument, what); }

// "<condition> : <rest>": the rest, without the spaces before it.
Expected<std::string_view> parse_condition(std::string_view text, const char* expected,
                                           std::string* condition) {
  const std::size_t colon = text.find(" : ");
  if (colon == std::string_view::npos) return bad(std::string("expected \"") + expected + "\"");
  const std::size_t start = std::min(text.find_first_not_of(' '), colon);
  *condition = std::string(text.substr(start, colon - start));
  std::string unknown;
  each_word(*condition, [&](std::string_view word) {
    if (!holds_for(word, AttentionParams{})) unknown = std::string(word);
    return unknown.empty();
  });
  if (!unknown.empty()) {
    return bad("unknown condition \"" + unknown +
               "\"; expected an extent (sq<=32), a dtype, a feature or device=cpu|cuda");
  }
  std::string_view rest = text.substr(colon + 3);
  while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
  return rest;
}

// "order <condition> : <backends>"
Expected<TuningTable::Rule> parse_rule(std::string_view text) {
  TuningTable::Rule rule;
  const auto names = parse_condition(text, "order <condition> : <backends>", &rule.condition);
  if (!names) return names.status();
  Expected<std::vector<BackendRef>> order = parse_backend_list(*names);
  if (!order) return order.status();
  rule.order = std::move(*order);
  return rule;
}

// "flash/row_blocks_2", or "flash" for the default.
Status parse_variant(std::string_view word, BackendRef* backend, std::string* variant) {
  const std::size_t slash = std::min(word.find('/'), word.size());
  const Expected<BackendRef> ref = parse_backend(word.substr(0, slash));
  if (!ref) return ref.status();
  *backend = *ref;
  *variant = std::string(word.substr(std::min(slash + 1, word.size())));
  const auto is_part_of_name = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  };
  const bool is_name = std::ranges::all_of(*variant, is_part_of_name) && variant->size() <= 64;
  if (is_name && (slash == word.size()) == variant->empty()) return {};
  return bad("variant \"" + std::string(word) + "\"");
}

// "variant <condition> : <backend>/<variant>"
Expected<TuningTable::VariantRule> parse_variant_rule(std::string_view text) {
  TuningTable::VariantRule rule;
  constexpr const char* kExpected = "variant <condition> : <backend>/<variant>";
  const auto word = parse_condition(text, kExpected, &rule.condition);
  if (!word) return word.status();
  if (Status s = parse_variant(*word, &rule.backend, &rule.variant); !s.ok()) return s;
  if (rule.variant.empty()) return bad(std::string("expected \"") + kExpected + "\"");
  return rule;
}

// A number of 0 to 1e15.
bool parse_amount(std::string_view word, double* value) {
  return parse_number(word, value) && *value >= 0.0 && *value <= 1e15;
}

struct Rate {
  const char* word;
  double MachineRates::*field;
};
constexpr Rate kRates[] = {{"f32", &MachineRates::f32_gflops},
                           {"f64", &MachineRates::f64_gflops},
                           {"bf16", &MachineRates::bf16_gflops},
                           {"read", &MachineRates::read_gbps}};

// "f32=236.1 f64=118 bf16=470 read=31 l2=1048576 l3=33554432": all of them, in any order.
Status parse_rates(std::string_view text, CostModel* model) {
  std::string wrong;
  int seen = 0;
  each_word(text, [&](std::string_view word) {
    const std::string_view name = word.substr(0, word.find('='));
    const std::string_view number = word.substr(std::min(name.size() + 1, word.size()));
    bool known = false;
    for (const Rate& rate : kRates) {
      double& amount = model->rates.*rate.field;
      known = known || (name == rate.word && parse_amount(number, &amount) &&
                        (amount == 0.0 || (amount >= 1e-3 && amount <= 1e9)));
    }
    if (name == "l2") known = parse_number(number, &model->l2_bytes) && model->l2_bytes > 0;
    if (name == "l3") known = parse_number(number, &model->l3_bytes) && model->l3_bytes > 0;
    if (!known) wrong = std::string(word);
    ++seen;
    return known;
  });
  if (!wrong.empty()) return bad("unknown rate \"" + wrong + "\"");
  return seen == 6 ? Status() : bad("expected \"rates f32= f64= bf16= read= l2= l3=\"");
}

// The member of an enumeration with this name.
template <class Enum>
std::optional<Enum> named(std::string_view name, int count) {
  for (int i = 0; i < count; ++i) {
    if (name == to_string(static_cast<Enum>(i))) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

// "flash prefill floats call=3e-06 task=... spread=1.2": all terms, in order.
Status parse_cost(std::string_view text, CostModel* model) {
  std::vector<std::string_view> words;
  each_word(text, [&](std::string_view word) {
    words.push_back(word);
    return words.size() < 16;
  });
  constexpr std::size_t kNames = 3, kTerms = 7;
  if (words.size() != kNames + kTerms) return bad("expected a backend, a kind, types and 7 terms");
  CostEntry entry;
  const Expected<BackendRef> backend = parse_backend(words[0]);
  const auto kind = named<CostKind>(words[1], kCostKindCount);
  const auto types = named<CostTypes>(words[2], kCostTypesCount);
  if (!backend || backend->id == BackendId::kCustom || backend->id == BackendId::kError || !kind ||
      !types) {
    return bad("unknown backend, kind or types \"" + std::string(words[0]) + " " +
               std::string(words[1]) + " " + std::string(words[2]) + "\"");
  }
  entry.backend = backend->id;
  entry.kind = *kind;
  entry.types = *types;
  std::size_t next = kNames;
  std::string wrong;
  for_each_cost_term(entry.terms, [&](const char* name, double& term) {
    const std::string_view word = words[next++];
    const std::string start = std::string(name) + "=";
    if (!word.starts_with(start) || !parse_amount(word.substr(start.size()), &term)) {
      wrong = std::string(word);
    }
  });
  if (!wrong.empty()) return bad("term \"" + wrong + "\"");
  if (entry.terms.spread < 1.0) return bad("a spread below 1");
  if (model->find(entry.backend, entry.kind, entry.types) != nullptr) {
    return bad("a second cost of \"" + std::string(words[0]) + " " + std::string(words[1]) + " " +
               std::string(words[2]) + "\"");
  }
  model->entries.push_back(entry);
  return {};
}

// "flash forward 1.3e-05 1.2e-05 1.4e-05 : b1 hq8 sq64 d64 f32": the median and the quartiles, of
// flash/VARIANT where it is not the default.
Status parse_time(std::string_view text, TuningTable* table) {
  const std::size_t colon = text.find(" : ");
  if (colon == std::string_view::npos) return bad("expected \"time <backend> ... : <case>\"");
  std::vector<std::string_view> words;
  each_word(text.substr(0, colon), [&](std::string_view word) {
    words.push_back(word);
    return words.size() < 8;
  });
  if (words.size() != 5) return bad("expected a backend, a direction and 3 times");
  TuningTable::Time time;
  BackendRef backend;
  const bool is_known = parse_variant(words[0], &backend, &time.variant).ok() &&
                        backend.id != BackendId::kCustom && backend.id != BackendId::kError;
  time.observation.backward = words[1] == "backward";
  if (!is_known || (!time.observation.backward && words[1] != "forward")) {
    return bad("unknown backend or direction \"" + std::string(words[0]) + " " +
               std::string(words[1]) + "\"");
  }
  time.observation.backend = backend.id;
  double* const numbers[] = {&time.observation.seconds, &time.first_quartile, &time.third_quartile};
  for (std::size_t i = 0; i < 3; ++i) {
    if (!parse_amount(words[i + 2], numbers[i]) || !(*numbers[i] > 0.0)) {
      return bad("time \"" + std::string(words[i + 2]) + "\"");
    }
  }
  const Expected<Case> measured = parse_case(std::string(text.substr(colon + 3)));
  if (!measured) return measured.status();
  time.observation.params = measured->params;
  table->times.push_back(std::move(time));
  return {};
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
  } else if (word == "rates") {
    return parse_rates(rest, &table->costs);
  } else if (word == "cost") {
    return parse_cost(rest, &table->costs);
  } else if (word == "time") {
    return parse_time(rest, table);
  } else if (word == "order") {
    Expected<TuningTable::Rule> rule = parse_rule(rest.empty() ? rest : " " + rest);
    if (!rule) return rule.status();
    table->rules.push_back(std::move(*rule));
  } else if (word == "variant") {
    Expected<TuningTable::VariantRule> rule = parse_variant_rule(" " + rest);
    if (!rule) return rule.status();
    table->variants.push_back(std::move(*rule));
  } else {
    return Status(StatusCode::kInvalidArgument,
                  "unknown word \"" + word +
                      "\"; expected version, isa, cpu, concurrency, sm, "
                      "gpu, rates, cost, time, order or variant");
  }
  return {};
}

}  // namespace

namespace {

// A file that a tool wrote begins with the number of its other lines, so that a part of it is not
// taken for the whole.
Status check_lines(std::string_view text) {
  constexpr std::string_view kStart = "regard-tuning 1\nlines ";
  if (!text.starts_with(kStart)) return {};
  const std::string_view rest = text.substr(kStart.size());
  const std::size_t end = std::min(rest.find('\n'), rest.size());
  std::int64_t lines = 0;
  const auto found =
      std::count(rest.begin() + static_cast<std::ptrdiff_t>(end), rest.end(), '\n') - 1;
  if (parse_number(rest.substr(0, end), &lines) && lines == found && rest.ends_with('\n'))
    return {};
  return bad("lines \"" + std::string(rest.substr(0, std::min<std::size_t>(end, 20))) + "\", but " +
             std::to_string(std::max<std::ptrdiff_t>(found, 0)) +
             " whole ones follow: the file is not complete");
}

}  // namespace

Expected<TuningTable> parse_tuning_table(std::string_view text, std::string source) try {
  TuningTable table;
  table.source = std::move(source);
  bool header_seen = false;
  if (Status status = check_lines(text); !status.ok()) {
    return tuning_error(table.source, 2, status.message());
  }
  for (int number = 1; !text.empty(); ++number) {
    const std::string line(text.substr(0, text.find('\n')));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.empty() || line[0] == '#') continue;
    if (header_seen && line.starts_with("lines ") && number == 2) continue;
    if (!header_seen) {
      if (line != "regard-tuning 1") {
        return tuning_error(table.source, number, "\"" + line + "\", expected \"regard-tuning 1\"");
      }
      header_seen = true;
      continue;
    }
    const std::size_t space = line.find(' ');
    const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
    const Status status = read_line(line.substr(0, space), rest, &table);
    if (!status.ok()) return tuning_error(table.source, number, status.message());
  }
  if (!header_seen) return tuning_error(table.source, 1, "empty, expected \"regard-tuning 1\"");
  if (Expected<Isa> isa = parse_isa(table.isa)) table.costs.rates.isa = *isa;
  table.costs.rates.threads = std::max(table.concurrency, 1);
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

std::string tuning_folder(const Env& env) {
  const std::string cache = user_cache_folder();
  if (cache.empty()) return "";
  Hasher hasher;
  hasher.add_bytes(env.version);
  hasher.add_bytes(env.compiler);
  hasher.add_bytes(to_string(env.isa));
  hasher.add_bytes(env.cpu_model);
  hasher.add(static_cast<std::uint64_t>(env.concurrency));
  char name[17];
  std::snprintf(name, sizeof name, "%016llx", static_cast<unsigned long long>(hasher.value()));
  return cache + "/tuning/" + name;
}

TuningTable find_tuning(const Env& env, std::string* skipped) {
  const std::string folder = tuning_folder(env);
  const std::string path = folder + "/table.txt";
  std::error_code error;
  if (folder.empty() || !std::filesystem::exists(path, error)) return {};
  Expected<TuningTable> table = read_tuning_table(path);
  if (table) return *std::move(table);
  *skipped = "tuning table " + path + " is skipped: " + table.status().message();
  return {};
}

std::string to_text(const TuningTable& table) {
  std::string out;
  const auto line = [&](const char* word, const std::string& value) {
    if (!value.empty()) out += std::string(word) + " " + value + "\n";
  };
  const auto number = [](std::int32_t n) { return n > 0 ? std::to_string(n) : std::string(); };
  line("version", table.version);
  line("isa", table.isa);
  line("cpu", table.cpu_model);
  line("concurrency", number(table.concurrency));
  line("sm", number(table.sm_version));
  line("gpu", table.device_name);
  CostModel unmeasured;
  unmeasured.rates.isa = table.costs.rates.isa;
  unmeasured.rates.threads = table.costs.rates.threads;
  unmeasured.entries = table.costs.entries;
  unmeasured.source = table.costs.source;
  if (table.costs != unmeasured || !table.costs.empty()) {
    std::string rates;
    for (const Rate& rate : kRates) {
      rates += std::string(rate.word) + "=" + number_text(table.costs.rates.*rate.field) + " ";
    }
    line("rates", rates + "l2=" + std::to_string(table.costs.l2_bytes) +
                      " l3=" + std::to_string(table.costs.l3_bytes));
  }
  for (const CostEntry& entry : table.costs.entries) {
    std::string terms = to_string(BackendRef(entry.backend)) + " " + to_string(entry.kind) + " " +
                        to_string(entry.types);
    for_each_cost_term(entry.terms, [&](const char* name, double term) {
      terms += std::string(" ") + name + "=" + number_text(term);
    });
    line("cost", terms);
  }
  for (const TuningTable::Rule& rule : table.rules) {
    std::string names;
    for (const BackendRef& ref : rule.order) names += (names.empty() ? "" : ",") + to_string(ref);
    out += "order " + rule.condition + (rule.condition.empty() ? ": " : " : ") + names + "\n";
  }
  const auto with_variant = [](const BackendRef& backend, const std::string& variant) {
    return to_string(backend) + (variant.empty() ? "" : "/") + variant;
  };
  for (const TuningTable::VariantRule& rule : table.variants) {
    out += "variant " + rule.condition + (rule.condition.empty() ? ": " : " : ") +
           with_variant(rule.backend, rule.variant) + "\n";
  }
  for (const TuningTable::Time& time : table.times) {
    line("time", with_variant(time.observation.backend, time.variant) +
                     (time.observation.backward ? " backward " : " forward ") +
                     number_text(time.observation.seconds) + " " +
                     number_text(time.first_quartile) + " " + number_text(time.third_quartile) +
                     " : " + to_string(time.observation.params));
  }
  const auto lines = std::count(out.begin(), out.end(), '\n');
  return "regard-tuning 1\nlines " + std::to_string(lines) + "\n" + out;
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
    if (all_hold(rule.condition, params)) return &rule.order;
  }
  return nullptr;
}

std::string tuned_variant(const TuningTable& table, const AttentionParams& params,
                          const BackendRef& backend, const std::vector<std::string>& offered) {
  for (const TuningTable::VariantRule& rule : table.variants) {
    if (rule.backend == backend && std::ranges::find(offered, rule.variant) != offered.end() &&
        all_hold(rule.condition, params)) {
      return rule.variant;
    }
  }
  return "";
}

}  // namespace regard
