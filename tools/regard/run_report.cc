#include "tools/regard/run_report.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "tools/regard/profile_report.h"

namespace regard::cli {
namespace {

std::string gflops_text(double flops, double seconds) {
  return seconds > 0.0 ? fmt::format("{:.2f}", flops / seconds * 1e-9) : "-";
}

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
  cells.push_back(gflops_text(flops, seconds));
  cells.push_back(bytes_text(run.workspace_bytes));
  return cells;
}

// How far gradient `name` is from the truth: error and share of the tolerance.
std::string grad_cell(const Checked& checked, const OwnedTensor& gradient,
                      const std::string& name) {
  if (gradient.shape.empty() || !checked.gradients) return "-";
  for (const conformance::GradPart& part : checked.gradients->parts) {
    if (part.name == name) return fmt::format("{:.2e}, {:.0f} %", part.error, 100.0 * part.margin);
  }
  return "-";  // one before it is outside
}

void show_gradients(Output& output, const RunInput& input, const std::vector<Checked>& results) {
  if (!results.front().back) return;
  Table table({"backward", "kernel", "d_q", "d_k", "d_v", "d_bias", "d_sinks", "within tolerance",
               "time", "GFLOP/s", "workspace"});
  const double flops = backward_flop_count(input);
  for (const Checked& checked : results) {
    const GradRun& back = *checked.back;
    const GradOutputs& g = back.outputs;
    const bool wrong = checked.gradients && !checked.gradients->ok;
    const Colour verdict = !checked.gradients ? Colour::kWarning
                           : wrong            ? Colour::kBad
                                              : Colour::kGood;
    table.add({to_string(checked.run.backend), back.kernel.kernel, grad_cell(checked, g.d_q, "d_q"),
               grad_cell(checked, g.d_k, "d_k"), grad_cell(checked, g.d_v, "d_v"),
               grad_cell(checked, g.d_bias, "d_bias"), grad_cell(checked, g.d_sinks, "d_sinks"),
               !checked.gradients ? "not checked"
               : wrong            ? "NO"
                                  : "yes",
               seconds_text(back.median_seconds()), gflops_text(flops, back.median_seconds()),
               bytes_text(back.workspace_bytes)},
              {Colour::kStrong, Colour::kPlain, Colour::kPlain, Colour::kPlain, Colour::kPlain,
               Colour::kPlain, Colour::kPlain, verdict});
  }
  output.print(table.text(output));
}

// A kernel, what it took and how fast it was.
Json json_of(const KernelPlan& kernel, const std::vector<double>& seconds, double median,
             double flops) {
  return {{"kernel", kernel.kernel},
          {"isa", to_string(kernel.isa)},
          {"workers", kernel.workers},
          {"workspace_bytes", kernel.workspace_bytes},
          {"seconds", median},
          {"runs", seconds.size()},
          {"gflops", median > 0.0 ? Json(flops / median * 1e-9) : Json(nullptr)},
          {"within_tolerance", nullptr}};
}

Json json_of_backward(const Checked& checked, const RunInput& input) {
  const GradRun& back = *checked.back;
  Json json = json_of(back.kernel, back.seconds, back.median_seconds(), backward_flop_count(input));
  if (!checked.gradients) return json;
  json["within_tolerance"] = checked.gradients->ok;
  json["gradients"] = Json::array();
  for (const conformance::GradPart& part : checked.gradients->parts) {
    json["gradients"].push_back(
        {{"name", part.name}, {"error", part.error}, {"error_over_tolerance", part.margin}});
  }
  if (!checked.gradients->ok) json["first_outside"] = checked.gradients->text;
  return json;
}

Json json_of(const Checked& checked, const RunInput& input, double flops) {
  const BackendRun& run = checked.run;
  Json json = {{"backend", to_string(run.backend)}, {"ok", checked.ok()}};
  json.update(json_of(run.kernel, run.seconds, run.median_seconds(), flops));
  json["padding_rows"] = checked.padding.rows;
  json["padding_exactly_zero"] = checked.padding.wrong == 0;
  if (checked.back) json["backward"] = json_of_backward(checked, input);
  if (checked.profile) json["profile"] = json_of(*checked.profile, input);
  if (!checked.comparison) return json;
  const conformance::Comparison& c = *checked.comparison;
  json["within_tolerance"] = c.ok;
  json["error"] = c.out_error;
  json["lse_error"] = c.lse_error;
  json["error_over_tolerance"] = c.out_margin;
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
  Table table({"backend", "kernel", "error", "error / tolerance", "within tolerance", "time",
               "GFLOP/s", "workspace"});
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
  show_gradients(output, input, results);
  show_agreement(output, results);
  for (const Checked& checked : results) {
    if (checked.profile) print_profile(output, *checked.profile, checked.run, input);
  }
  for (const Checked& checked : results) {
    if (checked.comparison && !checked.comparison->ok) {
      output.warn(fmt::format("{}: {}", to_string(checked.run.backend), checked.comparison->text));
    }
    if (checked.gradients && !checked.gradients->ok) {
      output.warn(fmt::format("{}: {}", to_string(checked.run.backend), checked.gradients->text));
    }
  }
  return ok;
}

}  // namespace regard::cli
