#include "conformance/random.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "conformance/generator.h"
#include "conformance/rng.h"

namespace regard::conformance {
namespace {

Guard guard_of(std::int64_t index, bool guard_pages) {
  if (!guard_pages || index % 4 != 0) return Guard::kCanaries;
  return index % 8 == 0 ? Guard::kUpperPage : Guard::kLowerPage;
}

/// Scores within 16: what a stated error bound is measured on.
bool bounded_scores(const PreparedCase& prepared) {
  if (prepared.source.data.kind == DataKind::kLarge) return false;
  return std::all_of(prepared.truth.rows.begin(), prepared.truth.rows.end(),
                     [](const oracle::RowFacts& f) { return f.smax <= 16.0; });
}

void add_worst(const PreparedCase& prepared, const BackendRef& backend, const Report& report,
               std::vector<RandomResult::Worst>* worst) {
  const std::string name = to_string(backend) + " " + to_string(prepared.params.dtype_q);
  auto found = std::find_if(worst->begin(), worst->end(),
                            [&](const RandomResult::Worst& w) { return w.name == name; });
  if (found == worst->end()) {
    worst->push_back({name});
    found = worst->end() - 1;
  }
  if (bounded_scores(prepared)) {
    found->out_error = std::max(found->out_error, report.comparison.out_error);
    found->grad_error = std::max(found->grad_error, report.gradients.error);
  }
  found->out_margin = std::max(found->out_margin, report.comparison.out_margin);
  found->lse_margin = std::max(found->lse_margin, report.comparison.lse_margin);
  found->grad_margin = std::max(found->grad_margin, report.gradients.margin);
}

/// Whether one of the backends offers a backward: without any, gradient cases are refusals alone.
bool any_has_backward(const Context& context, const std::vector<BackendRef>& backends) {
  const std::vector<BackendInfo> all = context.backends();
  return std::any_of(all.begin(), all.end(), [&](const BackendInfo& info) {
    const bool asked = std::find(backends.begin(), backends.end(), info.ref) != backends.end();
    return asked && info.built && info.backward.offered;
  });
}

std::string check_text_form(const Case& c) {
  const std::string text = to_string(c);
  const Expected<Case> again = parse_case(text);
  if (!again) return "its own text does not parse: " + again.status().to_string();
  if (!(*again == c)) return "its text means another case: " + to_string(*again);
  return "";
}

}  // namespace

RandomResult run_random(Context& context, const RandomOptions& options) {
  RandomResult result;
  std::vector<BackendRef> backends = options.backends;
  if (backends.empty()) {
    for (const BackendInfo& info : context.backends()) {
      if (info.built) backends.push_back(info.ref);
    }
  }
  const bool gradients = any_has_backward(context, backends);
  const auto add_failure = [&](std::string text) { result.failures.push_back(std::move(text)); };
  for (std::int64_t n = 0; n < options.count && !result.stopped; ++n) {
    const auto index = static_cast<std::uint64_t>(n);
    const bool back = gradients && Rng(options.seed, index).uniform() < options.gradients;
    const Case c = back ? random_grad_case(options.seed, index) : random_case(options.seed, index);
    if (std::string wrong = check_text_form(c); !wrong.empty()) {
      add_failure(wrong + "\n  " + to_string(c));
    }
    RunOptions run;
    run.guard = guard_of(n, options.guard_pages);
    Expected<PreparedCase> prepared = prepare(c, run.guard);
    ++result.cases;
    if (!prepared) {
      add_failure(prepared.status().to_string() + "\n  " + to_string(c));
    } else {
      result.coverage.add_case(*prepared);
      for (const BackendRef& backend : backends) {
        Report report = run_prepared(context, &*prepared, backend, run);
        result.coverage.add_run(*prepared, backend, report.outcome);
        if (report.outcome == Outcome::kPassed)
          add_worst(*prepared, backend, report, &result.worst);
        if (!report.ok()) add_failure(std::move(report.text));
      }
    }
    result.stopped = result.failures.size() >= options.max_failures ||
                     (options.progress && !options.progress(n + 1));
  }
  return result;
}

std::string RandomResult::table() const {
  std::string text = coverage.table();
  text +=
      "  backend, dtype     worst error (|score| <= 16): out, grad   error / tolerance: out    lse "
      "  "
      "grad\n";
  for (const Worst& w : worst) {
    char line[128];
    std::snprintf(line, sizeof line, "  %-18s %28.2e %9.2e %20.2f %6.2f %6.2f\n", w.name.c_str(),
                  w.out_error, w.grad_error, w.out_margin, w.lse_margin, w.grad_margin);
    text += line;
  }
  return text;
}

}  // namespace regard::conformance
