#include "tools/regard/run_report.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "tools/regard/profile_report.h"

namespace regard::cli {
namespace {

std::vector<std::string> cells_of(const Checked& checked, double flops) {
  const BackendRun& run = checked.run;
  const double seconds = run.median_seconds();
  std::vector<std::string> cells = {to_string(run.backend), run.kernel.kernel};
  if (checked.comparison) {
    cells.push_back(fmt::format("{:.2e}", checked.comparison->out_error));
    cells.push_back(fmt::format("{:.0f} %", 100.0 * checked.comparison->out_margin));
    cells.push_back(checked.comparison->ok ? "yes" : "NO");
  } else {
    cells.insert(cells.end(), {"-", "-", "not checked"});
  }
  cells.push_back(seconds_text(seconds));
  cells.push_back(seconds > 0.0 ? fmt::format("{:.2f}", flops / seconds * 1e-9) : "-");
  cells.push_back(bytes_text(run.workspace_bytes));
  return cells;
}

Json json_of(const Checked& checked, const RunInput& input, double flops) {
  const BackendRun& run = checked.run;
  const double seconds = run.median_seconds();
  Json json = {{"backend", to_string(run.backend)},
               {"ok", checked.ok()},
               {"kernel", run.kernel.kernel},
               {"isa", to_string(run.kernel.isa)},
               {"slots", run.kernel.slots},
               {"workspace_bytes", run.workspace_bytes},
               {"seconds", seconds},
               {"runs", run.seconds.size()},
               {"gflops", seconds > 0.0 ? Json(flops / seconds * 1e-9) : Json(nullptr)},
               {"padding_rows", checked.padding.rows},
               {"padding_exactly_zero", checked.padding.wrong == 0},
               {"within_bar", nullptr}};
  if (checked.profile) json["profile"] = json_of(*checked.profile, input);
  if (!checked.comparison) return json;
  const conformance::Comparison& c = *checked.comparison;
  json["within_bar"] = c.ok;
  json["error"] = c.out_error;
  json["lse_error"] = c.lse_error;
  json["share_of_bar"] = c.out_margin;
  json["dead_rows"] = c.dead_rows;
  if (!c.ok) json["first_outside"] = c.text;
  return json;
}

void show_padding(Output& output, const RunInput& input, const std::vector<Checked>& results) {
  const AttentionParams& params = input.c.params;
  if (!params.features.has(Feature::kSeqlensQ)) return;
  std::int64_t wrong = 0;
  for (const Checked& checked : results) wrong += checked.padding.wrong;
  const std::string verdict =
      wrong == 0 ? output.paint("exactly zero (lse -inf) on every backend", Colour::kGood)
                 : output.paint(fmt::format("NOT zero in {} rows", wrong), Colour::kBad);
  output.print(fmt::format("padding   {} of {} rows, {}\n", results.front().padding.rows,
                           params.batch * params.num_heads_q * params.seqlen_q, verdict));
}

void show_agreement(Output& output, const std::vector<Checked>& results) {
  Json list = Json::array();
  for (std::size_t i = 0; i < results.size(); ++i) {
    for (std::size_t j = i + 1; j < results.size(); ++j) {
      const std::string a = to_string(results[i].run.backend);
      const std::string b = to_string(results[j].run.backend);
      const double difference = largest_difference(results[i].run.outputs, results[j].run.outputs);
      list.push_back({{"a", a}, {"b", b}, {"max_difference", difference}});
      output.print(
          fmt::format("agreement {} and {}: max |a - b| / max |a| = {:.2e}\n", a, b, difference));
    }
  }
  output.document()["agreement"] = std::move(list);
}

}  // namespace

bool show_results(Output& output, const RunInput& input, const std::vector<Checked>& results) {
  const double flops = flop_count(input);
  Table table(
      {"backend", "kernel", "error", "of bar", "within bar", "time", "GFLOP/s", "workspace"});
  Json list = Json::array();
  bool ok = true;
  for (const Checked& checked : results) {
    ok = ok && checked.ok();
    const Colour verdict = !checked.comparison      ? Colour::kWarning
                           : checked.comparison->ok ? Colour::kGood
                                                    : Colour::kBad;
    table.add(cells_of(checked, flops),
              {Colour::kStrong, Colour::kPlain, Colour::kPlain, Colour::kPlain, verdict});
    list.push_back(json_of(checked, input, flops));
  }
  output.document()["results"] = std::move(list);
  output.print(table.text(output));
  show_padding(output, input, results);
  show_agreement(output, results);
  for (const Checked& checked : results) {
    if (checked.profile) print_profile(output, *checked.profile, checked.run, input);
  }
  for (const Checked& checked : results) {
    if (!checked.comparison || checked.comparison->ok) continue;
    output.warn(fmt::format("{}: {}", to_string(checked.run.backend), checked.comparison->text));
  }
  return ok;
}

}  // namespace regard::cli
