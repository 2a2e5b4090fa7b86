#include <algorithm>
#include <array>
#include <map>

#include "base/message.h"
#include "core/text/number_parse.h"
#include "core/text/thrown_by.h"
#include "regard/case.h"
#include "regard/frozen.h"

namespace regard {
namespace {

constexpr const char* kParseFrozen = "parse_frozen";
constexpr std::string_view kFrozenHeader = "regard-frozen 1";
constexpr std::size_t kMaxCases = 65536;

struct EnvironmentName {
  const char* name;
  DifferenceCause cause;
};
// In the order of a file, which has every one of them.
constexpr EnvironmentName kEnvironmentNames[] = {
    {"version", DifferenceCause::kVersion},
    {"compiler", DifferenceCause::kVersion},
    {"isa", DifferenceCause::kIsa},
    {"isa_available", DifferenceCause::kIsa},
    {"cpu", DifferenceCause::kIsa},
    {"caches", DifferenceCause::kIsa},
    {"threads", DifferenceCause::kThreads},
    {"policy", DifferenceCause::kPolicy},
    {"tuning", DifferenceCause::kTable},
    {"cuda", DifferenceCause::kCapability},
    {"backends", DifferenceCause::kCapability},
};

struct DecisionField {
  const char* name;
  std::string FrozenDecision::*value;
  bool may_be_absent;
};
// After "case WORDS", in this order.
constexpr DecisionField kFields[] = {
    {"backend", &FrozenDecision::backend, false},
    {"decided_by", &FrozenDecision::decided_by, false},
    {"forward", &FrozenDecision::forward, true},
    {"backward", &FrozenDecision::backward, true},
    {"others", &FrozenDecision::refusals, true},
};

/// The lines of a file, one after another.
class Lines {
 public:
  Lines(std::string_view text, const std::string& source) : text_(text), source_(source) {}

  bool at_end() const { return text_.empty(); }
  /// Without the newline; what the last line lacks is an error of parse().
  std::string_view peek() const { return text_.substr(0, text_.find('\n')); }
  void next() {
    text_.remove_prefix(std::min(peek().size() + 1, text_.size()));
    ++number_;
  }
  /// The rest of a line that begins with "word "; false where another one is next.
  bool take(std::string_view word, std::string* rest) {
    const std::string_view line = peek();
    if (text_.empty() || !line.starts_with(word)) return false;
    if (line.size() == word.size()) {
      rest->clear();
    } else if (line[word.size()] == ' ') {
      *rest = line.substr(word.size() + 1);
    } else {
      return false;
    }
    next();
    return true;
  }
  Status error(const std::string& what) const {
    return invalid(kParseFrozen, source_.empty() ? "frozen decisions" : source_, ":", number_, ": ",
                   what);
  }
  Status expected(const std::string& what) const {
    return error(
        concat("expected ", what, ", got ", at_end() ? "the end of the file" : quoted(peek())));
  }

 private:
  std::string_view text_;
  const std::string& source_;
  int number_ = 1;
};

Status read_decision(Lines& lines, const std::string& words, FrozenDecision* decision) {
  const Expected<Case> parsed = parse_case(words);
  if (!parsed) return lines.error(parsed.status().message());
  if (to_string(parsed->params) != words) {
    return lines.error(concat(quoted(words), " must be in canonical order, as ",
                              quoted(to_string(parsed->params))));
  }
  decision->words = words;
  for (const DecisionField& field : kFields) {
    if (lines.take(field.name, &(decision->*field.value)) || field.may_be_absent) continue;
    return lines.expected(concat("\"", field.name, " ...\""));
  }
  if (decision->backend != "error" && !parse_backend(decision->backend)) {
    return lines.error(concat(quoted(decision->backend), " is no backend's name"));
  }
  return {};
}

Status read_environment(Lines& lines, FrozenDecisions* frozen) {
  for (const EnvironmentName& name : kEnvironmentNames) {
    std::string value;
    if (!lines.take(concat("env ", name.name), &value)) {
      return lines.expected(concat("\"env ", name.name, " ...\""));
    }
    frozen->environment.emplace_back(name.name, value);
  }
  return {};
}

std::string one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text;
}

std::string part_of(const std::string& text, std::string_view name) {
  const std::size_t at = text.find(name);
  return at == text.npos ? "" : text.substr(at, text.find(' ', at) - at);
}

/// What may explain that a case's field differs: of the causes whose environment differs.
class Causes {
 public:
  void add(DifferenceCause cause) { differs_[static_cast<std::size_t>(cause)] = true; }

  DifferenceCause of(const DecisionField& field, const std::string& a, const std::string& b) const {
    const bool is_kernel =
        field.value == &FrozenDecision::forward || field.value == &FrozenDecision::backward;
    const bool others = part_of(a, "workers=") == part_of(b, "workers=");
    if (is_kernel && !others && has(DifferenceCause::kThreads)) return DifferenceCause::kThreads;
    if (is_kernel && has(DifferenceCause::kIsa)) return DifferenceCause::kIsa;
    for (const DifferenceCause cause :
         {DifferenceCause::kPolicy, DifferenceCause::kTable, DifferenceCause::kCapability,
          DifferenceCause::kVersion, DifferenceCause::kIsa, DifferenceCause::kThreads}) {
      if (has(cause)) return cause;
    }
    return DifferenceCause::kCapability;
  }

 private:
  bool has(DifferenceCause cause) const { return differs_[static_cast<std::size_t>(cause)]; }
  std::array<bool, 8> differs_{};
};

using ByWords = std::map<std::string, const FrozenDecision*>;

ByWords by_words(const FrozenDecisions& frozen) {
  ByWords found;
  for (const FrozenDecision& decision : frozen.decisions) found[decision.words] = &decision;
  return found;
}

std::string value_of(const FrozenDecisions& frozen, const char* name) {
  for (const auto& [key, value] : frozen.environment) {
    if (key == name) return value;
  }
  return "";
}

}  // namespace

const char* to_string(DifferenceCause cause) noexcept {
  switch (cause) {
    case DifferenceCause::kVersion: return "version";
    case DifferenceCause::kIsa: return "isa";
    case DifferenceCause::kThreads: return "threads";
    case DifferenceCause::kPolicy: return "policy";
    case DifferenceCause::kTable: return "table";
    case DifferenceCause::kCapability: return "capability";
    case DifferenceCause::kCase: return "case";
  }
  return "?";
}

Expected<FrozenDecisions> parse_frozen(std::string_view text, const std::string& source) try {
  FrozenDecisions frozen;
  frozen.source = source;
  Lines lines(text, frozen.source);
  std::string rest;
  if (lines.peek() != kFrozenHeader) return lines.expected(quoted(kFrozenHeader));
  if (text.back() != '\n') return lines.error("the file ends within a line");
  lines.next();
  if (Status s = read_environment(lines, &frozen); !s.ok()) return s;
  std::map<std::string, int> seen;
  while (lines.take("case", &rest)) {
    if (frozen.decisions.size() == kMaxCases) {
      return lines.error(concat("more than ", kMaxCases, " cases"));
    }
    FrozenDecision decision;
    if (Status s = read_decision(lines, rest, &decision); !s.ok()) return s;
    if (!seen.emplace(rest, 0).second) return lines.error(concat("two decisions for ", rest));
    frozen.decisions.push_back(std::move(decision));
  }
  std::size_t count = 0;
  if (!lines.take("end", &rest)) return lines.expected("\"case ...\" or \"end ...\"");
  if (!parse_number(rest, &count) || count != frozen.decisions.size()) {
    return lines.error(
        concat("end ", quoted(rest), ", but ", frozen.decisions.size(), " cases come before it"));
  }
  if (!lines.at_end()) return lines.expected("the end of the file");
  return frozen;
} catch (...) {
  return status_of_exception(kParseFrozen);
}

std::string to_string(const FrozenDecisions& frozen) {
  std::string text = concat(kFrozenHeader, "\n");
  for (const EnvironmentName& name : kEnvironmentNames) {
    text += concat("env ", name.name, " ", one_line(value_of(frozen, name.name)), "\n");
  }
  for (const FrozenDecision& decision : frozen.decisions) {
    text += concat("case ", decision.words, "\n");
    for (const DecisionField& field : kFields) {
      const std::string& value = decision.*field.value;
      if (!value.empty() || !field.may_be_absent) {
        text += concat(field.name, " ", one_line(value), "\n");
      }
    }
  }
  return text + concat("end ", frozen.decisions.size(), "\n");
}

std::vector<FrozenDifference> diff(const FrozenDecisions& a, const FrozenDecisions& b) {
  std::vector<FrozenDifference> found;
  Causes causes;
  for (const EnvironmentName& name : kEnvironmentNames) {
    const std::string of_a = one_line(value_of(a, name.name));
    const std::string of_b = one_line(value_of(b, name.name));
    if (of_a == of_b) continue;
    causes.add(name.cause);
    found.push_back({name.cause, name.name, of_a, of_b});
  }
  const ByWords in_a = by_words(a), in_b = by_words(b);
  for (const FrozenDecision& of_a : a.decisions) {
    const auto at = in_b.find(of_a.words);
    if (at == in_b.end()) {
      found.push_back({DifferenceCause::kCase, of_a.words, of_a.backend, ""});
      continue;
    }
    for (const DecisionField& field : kFields) {
      const std::string left = one_line(of_a.*field.value);
      const std::string right = one_line(at->second->*field.value);
      if (left == right) continue;
      found.push_back(
          {causes.of(field, left, right), concat(field.name, " of ", of_a.words), left, right});
    }
  }
  for (const FrozenDecision& of_b : b.decisions) {
    if (in_a.contains(of_b.words)) continue;
    found.push_back({DifferenceCause::kCase, of_b.words, "", of_b.backend});
  }
  return found;
}

std::string to_string(const std::vector<FrozenDifference>& differences) {
  std::string text;
  for (const FrozenDifference& d : differences) {
    const auto shown = [](const std::string& value) { return value.empty() ? "(none)" : value; };
    text += concat(to_string(d.cause), ": ", d.what, ": ", shown(d.a), " -> ", shown(d.b), "\n");
  }
  return text;
}

}  // namespace regard
