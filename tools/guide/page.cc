#include "tools/guide/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "tools/guide/answers.h"
#include "tools/guide/html.h"
#include "tools/guide/style.h"

namespace regard::guide {
namespace {

using Style = HtmlCell::Style;

/// What one reads in a sweep's chart.
struct Lead {
  const char* id;
  const char* text;
};
constexpr Lead kLeads[] = {
    {"problems", "The shapes that were named on the command line."},
    {"length_f32",
     "One sequence, 8 heads, head_dim 64, causal: every query sees the keys before it. Longer is "
     "faster for each operation until the machine's limit is near."},
    {"length_bf16",
     "The same in bf16. Where the CPU has a dot product of bf16 pairs its limit is twice as high."},
    {"head_dim", "One sequence of 1,024 positions, 8 heads, f32, causal."},
    {"gradients",
     "The backward alone: gradients of q, k and v for the problems of prompts in f32."},
    {"decode",
     "One query for each of 32 heads, 8 heads of keys, head_dim 128, bf16. Each step reads the "
     "whole cache, so that the bandwidth of memory is the limit once no CPU cache holds it."},
    {"cache",
     "The same step over caches of other types: fewer bytes to read, more work for each. i8 and u4 "
     "have scales for each row."},
    {"padding",
     "Eight sequences of at most 512 positions, 8 heads, head_dim 64, f32. The lengths differ; the "
     "rest of the tensor is padding. Packed includes the copies to packed tensors and back; auto "
     "is "
     "what attention_padded() takes by itself."},
    {"threads", "One prompt of 1,024 positions in f32, and one step of decode over 16,384 keys."},
    {"memory",
     "Workspace beside the tensors, for one sequence with 8 heads and head_dim 64 in f32, causal. "
     "It is planned, not measured."}};

std::string threads_words(std::int32_t count) {
  return fmt::format("{} thread{}", count, count == 1 ? "" : "s");
}

std::string lead_of(const std::string& id) {
  for (const Lead& lead : kLeads) {
    if (id == lead.id) return lead.text;
  }
  return "";
}

std::string y_title(Unit unit) {
  switch (unit) {
    case Unit::kGflops: return "GFLOP/s (more is faster)";
    case Unit::kGbps: return "GB/s (more is faster)";
    case Unit::kSeconds: return "ms (less is faster)";
    case Unit::kBytes: break;
  }
  return "KiB (less is better)";
}

double in_chart_unit(Unit unit, double value) {
  if (unit == Unit::kSeconds) return value * 1e3;
  return unit == Unit::kBytes ? value / 1024.0 : value;
}

HtmlTable table_of(const Sweep& sweep) {
  const bool is_bytes = sweep.unit == Unit::kBytes;
  HtmlTable table{sweep.id + "-table", "", {sweep.x_title}, {}};
  table.caption = is_bytes ? "Workspace of each backend"
                           : fmt::format("{}: the median of a call, and {}", sweep.title,
                                         sweep.unit == Unit::kSeconds ? "the middle half of rounds"
                                                                      : "its rate");
  const std::vector<std::string> names = row_names(sweep);
  table.header.insert(table.header.end(), names.begin(), names.end());
  for (const Point& point : sweep.points) {
    std::vector<HtmlCell> cells = {{point.label}};
    // Lines of threads are different problems.
    const Measured* const best = sweep.id == "threads" ? nullptr : fastest(point);
    for (const std::string& name : names) {
      const Measured* const row = find_row(point, name);
      const double value = row == nullptr ? NAN : figure(sweep, point, *row);
      if (std::isnan(value)) {
        cells.push_back({row == nullptr ? "" : row->reason, Style::kText});
        continue;
      }
      std::string text = is_bytes ? bytes_words(value) : seconds_words(row->median());
      if (sweep.unit == Unit::kSeconds) {
        text += fmt::format(" ({} to {})", seconds_words(row->quantile(0.25)),
                            seconds_words(row->quantile(0.75)));
      } else if (!is_bytes) {
        text += ", " + figure_words(sweep.unit, value);
      }
      const bool is_best = best != nullptr && (row == best || !differ(*row, *best));
      if (is_best && !is_bytes && !row->is_peer) text += " *";
      cells.push_back({text, is_best && !row->is_peer ? Style::kBest : Style::kNumber});
    }
    table.rows.push_back(std::move(cells));
  }
  return table;
}

std::string section(const std::string& id, const std::string& title, const std::string& content) {
  return fmt::format("<section aria-labelledby=\"{0}\">\n<h2 id=\"{0}\">{1}</h2>\n{2}</section>\n",
                     escape(id), escape(title), content);
}

std::string sweep_section(const Sweep& sweep) {
  std::string content = paragraph(lead_of(sweep.id));
  if (sweep.points.size() > 1 && sweep.id != "problems") {
    const std::string svg = to_svg(chart_of(sweep));
    if (!svg.empty()) {
      content += fmt::format(
          "<figure>\n<div class=\"scroll\" role=\"region\" tabindex=\"0\" "
          "aria-label=\"{}\">\n{}</div>\n"
          "</figure>\n",
          escape("Chart: " + sweep.title), svg);
    }
  }
  content += to_html(table_of(sweep));
  const Point* const first = sweep.points.empty() ? nullptr : &sweep.points.front();
  if (first != nullptr && !first->problem.empty()) {
    content += fmt::format("<p>To repeat a row: <code>regard {} {}</code></p>\n",
                           sweep.unit == Unit::kBytes ? "explain" : "bench",
                           escape("\"" + first->problem + "\""));
  }
  return section(sweep.id, sweep.title, content);
}

/// Sections of sweeps are there where something was measured.
bool has_section(const Report& report, const std::string& id) {
  const Sweep* const sweep = find_sweep(report, id);
  if (sweep != nullptr) return !sweep->points.empty();
  return id == "support" || id == "errors" || id == "refusals";
}

std::string answers_section(const Report& report) {
  std::string content;
  for (const Answer& answer : answers(report)) {
    std::string link;
    if (has_section(report, answer.section)) {
      link = fmt::format(" <a href=\"#{}\" aria-label=\"{}\">figures</a>", escape(answer.section),
                         escape("Figures: " + answer.question));
    }
    content += fmt::format("<h3>{}{}</h3>\n<ul>\n", escape(answer.question), link);
    for (const std::string& sentence : answer.sentences) {
      content += fmt::format("<li>{}</li>\n", escape(sentence));
    }
    content += "</ul>\n";
  }
  return fmt::format(
      "<section id=\"answers\" aria-labelledby=\"answers-title\">\n"
      "<h2 id=\"answers-title\">The answers</h2>\n{}</section>\n",
      content);
}

std::string errors_section(const Report& report) {
  HtmlTable table{"errors-table",
                  "Errors of this machine, and the bounds that backends state",
                  {"types", "backend", "error", "stated bound", "of the bound"},
                  {}};
  for (const ErrorRow& row : report.errors) {
    const std::string types = row.types + (row.gradients ? ", gradients" : "");
    std::vector<HtmlCell> cells = {{types}, {row.backend}};
    if (!row.reason.empty()) {
      cells.push_back({row.reason});
      cells.insert(cells.end(), 2, HtmlCell{"", Style::kText});
    } else {
      cells.push_back({fmt::format("{:.1e}", row.error), Style::kNumber});
      const bool bounded = row.bound > 0.0;
      cells.push_back({bounded ? fmt::format("{:.1e}", row.bound) : "", Style::kNumber});
      cells.push_back(
          {bounded ? fmt::format("{:.0f} %", 100.0 * row.error / row.bound) : "", Style::kNumber});
    }
    table.rows.push_back(std::move(cells));
  }
  return section("errors", "Errors against float64",
                 paragraph("The largest difference from a reference in float64, divided by the "
                           "largest output, for random tensors of 64 queries and 512 keys.") +
                     to_html(table));
}

std::string support_table(const SupportMatrix& matrix, const char* id, const char* caption,
                          const char* what, const std::vector<SupportRow>& rows) {
  HtmlTable table{id, caption, {what}, {}};
  for (const std::string& name : matrix.backends) {
    table.header.push_back(name);
    table.header.push_back(name + ", gradients");
  }
  const auto cell = [](const SupportCell& support) {
    switch (support.kind) {
      case SupportCell::Kind::kYes: return HtmlCell{support.text, Style::kYes};
      case SupportCell::Kind::kNo: return HtmlCell{"no", Style::kNo};
      case SupportCell::Kind::kNotApplicable: break;
    }
    return HtmlCell{"", Style::kText};
  };
  for (const SupportRow& row : rows) {
    std::vector<HtmlCell> cells = {{row.name}};
    for (std::size_t i = 0; i < matrix.backends.size(); ++i) {
      cells.push_back(cell(row.forward[i]));
      cells.push_back(cell(row.backward[i]));
      if (cells.back().style == Style::kYes) cells.back().text = "yes";
    }
    table.rows.push_back(std::move(cells));
  }
  return to_html(table);
}

std::string support_section(const SupportMatrix& matrix) {
  HtmlTable limits{"limits-table", "Sizes and memory", {"limit"}, {}};
  limits.header.insert(limits.header.end(), matrix.backends.begin(), matrix.backends.end());
  for (const SupportLimit& limit : matrix.limits) {
    std::vector<HtmlCell> cells = {{limit.name}};
    for (const std::string& value : limit.values) cells.push_back({value, Style::kText});
    limits.rows.push_back(std::move(cells));
  }
  return section(
      "support", "What each backend supports here",
      paragraph("From the records that the selector reads. Types have the error that "
                "the backend states; the reason for each \"no\" is below.") +
          to_html(limits) +
          support_table(matrix, "types-table", "Element types, with the stated error", "types",
                        matrix.types) +
          support_table(matrix, "features-table", "Features", "feature", matrix.features));
}

std::string refusals_section(const Report& report) {
  HtmlTable table{"refusals-table",
                  "Each \"no\", as explain states it",
                  {"request", "refused by", "reason"},
                  {}};
  for (const RefusedRequest& refused : refused_requests(report.support)) {
    table.rows.push_back({{refused.request}, {list_words(refused.backends)}, {refused.sentence}});
  }
  for (const AbsentBackend& backend : report.elsewhere) {
    table.rows.push_back({{"anything"}, {backend.name}, {backend.reason}});
  }
  return section("refusals", "Why not: every refusal", to_html(table));
}

std::string method_section(const Report& report) {
  std::string content = paragraph(fmt::format(
      "{} rounds in {:.0f} s. In each round every problem had one turn, in which its backends took "
      "turns of some 20 ms, so that a change of the machine's speed reaches all of them. A figure "
      "is the median over rounds. Two figures differ where their ratio within a round "
      "has a median of at least 5 % and a middle half on one side of 1; else they count as equal, "
      "marked * beside the fastest.",
      report.rounds, report.seconds));
  content += paragraph(fmt::format(
      "Limits: {:.0f} GFLOP/s in f32, {:.0f} in bf16 and {:.1f} GB/s from memory on {}, "
      "measured with loops of their own.",
      report.rates.f32_gflops, report.rates.bf16_gflops, report.rates.read_gbps,
      threads_words(report.rates.threads)));
  if (!report.notes.empty()) {
    content += "<ul>\n";
    for (const std::string& note : report.notes) {
      content += fmt::format("<li>{}</li>\n", escape(note));
    }
    content += "</ul>\n";
  }
  return section("method", "How it was measured", content);
}

std::string head(const Report& report) {
  const std::string title = "regard on " + report.env.cpu_model;
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<link rel=\"icon\" "
      "href=\"data:,\">\n<title>{0}</title>\n<style>{1}</style>\n</head>\n<body>\n"
      "<a class=\"skip\" href=\"#answers\">Skip to the answers</a>\n"
      "<header>\n<h1>{0}</h1>\n<p class=\"facts\">regard {2}, {3}, {4}, {5}{6}</p>\n",
      escape(title), style_sheet(), escape(report.env.version), escape(to_string(report.env.isa)),
      threads_words(report.env.concurrency), escape(report.made),
      report.peer.empty() ? "" : ", beside " + escape(report.peer));
}

}  // namespace

Chart chart_of(const Sweep& sweep) {
  Chart chart;
  chart.id = sweep.id + "-chart";
  chart.title = sweep.title;
  chart.x_title = sweep.x_title;
  chart.y_title = y_title(sweep.unit);
  chart.log_x = sweep.log_x;
  chart.limit = in_chart_unit(sweep.unit, sweep.limit);
  chart.limit_title = sweep.limit_title;
  double min = std::numeric_limits<double>::infinity(), max = 0.0;
  for (const std::string& name : row_names(sweep)) {
    ChartLine line{name, {}};
    for (const Point& point : sweep.points) {
      const Measured* const row = find_row(point, name);
      const double value = row == nullptr ? NAN : figure(sweep, point, *row);
      if (std::isnan(value)) continue;
      const double shown = in_chart_unit(sweep.unit, value);
      min = std::min(min, shown);
      max = std::max(max, shown);
      line.points.push_back({point.x, shown,
                             fmt::format("{}, {} {}: {}", name, point.label, sweep.x_title,
                                         figure_words(sweep.unit, value))});
    }
    chart.lines.push_back(std::move(line));
  }
  for (const Point& point : sweep.points) chart.ticks.push_back({point.x, point.label});
  const bool small_is_better = sweep.unit == Unit::kSeconds || sweep.unit == Unit::kBytes;
  chart.log_y = small_is_better && max > 20.0 * min;
  chart.description =
      fmt::format("{} against {}; the table below has the figures.", chart.y_title, sweep.x_title);
  return chart;
}

std::string to_page(const Report& report) {
  std::vector<std::pair<std::string, std::string>> links;
  std::string content;
  for (const Sweep& sweep : report.sweeps) {
    if (sweep.points.empty()) continue;
    links.emplace_back(sweep.id, sweep.title);
    content += sweep_section(sweep);
  }
  links.insert(links.end(), {{"errors", "Errors"},
                             {"support", "Support"},
                             {"refusals", "Refusals"},
                             {"method", "Method"}});
  std::string page = head(report) + "<nav aria-label=\"Sections\"><ul>\n";
  for (const auto& [id, title] : links) {
    page += fmt::format("<li><a href=\"#{}\">{}</a></li>\n", escape(id), escape(title));
  }
  page += "</ul></nav>\n</header>\n<main>\n" + answers_section(report) + content +
          errors_section(report) + support_section(report.support) + refusals_section(report) +
          method_section(report);
  return page +
         "</main>\n<footer>Written by <code>regard guide</code>.</footer>\n</body>\n</html>\n";
}

}  // namespace regard::guide
