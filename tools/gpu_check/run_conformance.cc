#include <algorithm>

#include "conformance/generator.h"
#include "tools/gpu_check/cases.h"
#include "tools/gpu_check/phase.h"

// Small cases on every backend against the double-precision reference.

namespace regard::gpu_check {
namespace {

void list_on_backends(const Setup& setup, const std::string& words, std::vector<Item>* items) {
  for (const BackendInfo& info : setup.backends) {
    items->push_back({words, to_string(info.ref), ""});
  }
}

}  // namespace

std::vector<Item> list_conformance(const Setup& setup) {
  std::vector<Item> items;
  for (const char* words : kDirected) list_on_backends(setup, words, &items);
  return items;
}

std::vector<Item> list_random(const Setup& setup) {
  constexpr std::uint64_t kSeed = 1;
  static std::vector<Item> items;  // a process has one setup, and drawing takes a while
  if (!items.empty()) return items;
  for (long i = 0; i < setup.random_cases; ++i) {
    const auto index = static_cast<std::uint64_t>(i / 2);
    const Case c = i % 2 == 0 ? conformance::random_case(kSeed, index)
                              : conformance::random_grad_case(kSeed, index);
    list_on_backends(setup, to_string(c), &items);
  }
  return items;
}

namespace {

JsonLine run_on_backend(Session& session, const Item& item, const Case& c) {
  if (session.prepared_words != item.words || !session.prepared) {
    session.prepared.reset();
    session.prepared_words = item.words;
    Expected<conformance::PreparedCase> made = conformance::prepare(c);
    if (!made) return JsonLine().add("result", "failed").add("detail", made.status().to_string());
    session.prepared.emplace(*std::move(made));
  }
  const auto info = std::find_if(
      session.setup.backends.begin(), session.setup.backends.end(),
      [&](const BackendInfo& backend) { return to_string(backend.ref) == item.backend; });
  conformance::RunOptions run;
  run.device_runner = &session.runner();
  run.check_fixes = false;  // decisions are checked where there is no device
  run.twice = info->determinism != Determinism::kNone;
  session.runner().begin_case();
  const conformance::Report seen =
      conformance::run_prepared(session.context(), &*session.prepared, info->ref, run);
  JsonLine line;
  switch (seen.outcome) {
    case conformance::Outcome::kPassed: line.add("result", "passed"); break;
    case conformance::Outcome::kRefused: line.add("result", "refused"); break;
    case conformance::Outcome::kFailed: line.add("result", "failed"); break;
  }
  if (!seen.text.empty()) line.add("detail", seen.text);
  if (seen.outcome == conformance::Outcome::kRefused) return line;
  const double error =
      std::max({seen.comparison.out_margin, seen.comparison.lse_margin, seen.gradients.margin});
  return line.add("kernel", seen.kernel).add("error_over_tolerance", error, 3);
}

}  // namespace

JsonLine run_conformance(Session& session, const Item& item) {
  return run_on_backend(session, item, case_of(session.setup, item.words));
}

JsonLine run_random(Session& session, const Item& item) {
  Case c = parse_case(item.words).value();  // whole: its words depend on each other
  c.params.device = session.memory().device();
  canonicalize(c);
  return run_on_backend(session, item, c);
}

}  // namespace regard::gpu_check
