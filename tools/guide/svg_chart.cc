#include "tools/guide/svg_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "tools/guide/html.h"
#include "tools/guide/report.h"

namespace regard::guide {
namespace {

constexpr double kWidth = 720, kHeight = 340;
constexpr double kLeft = 80, kRight = 134, kTop = 18, kBottom = 52;
constexpr std::size_t kStyles = 6;  // of lines, in the style sheet

struct Box {
  double min_x, max_x, min_y, max_y;
};

/// Places of values in the drawing.
class Scale {
 public:
  Scale(const Chart& chart, const Box& box) : chart_(chart), box_(box) {}

  double x(double value) const {
    return kLeft + share(value, box_.min_x, box_.max_x, chart_.log_x) * (kWidth - kLeft - kRight);
  }
  double y(double value) const {
    return kHeight - kBottom -
           share(value, box_.min_y, box_.max_y, chart_.log_y) * (kHeight - kTop - kBottom);
  }

 private:
  static double share(double value, double min, double max, bool log) {
    if (log) {
      value = std::log(value);
      min = std::log(min);
      max = std::log(max);
    }
    return max > min ? (value - min) / (max - min) : 0.5;
  }
  const Chart& chart_;
  Box box_;
};

bool fits(const Chart& chart, const ChartPoint& point) {
  const bool finite = std::isfinite(point.x) && std::isfinite(point.y);
  return finite && (!chart.log_x || point.x > 0) && (!chart.log_y || point.y > 0);
}

/// False where there is nothing to draw.
bool find_box(const Chart& chart, Box* box) {
  bool any = false;
  for (const ChartLine& line : chart.lines) {
    for (const ChartPoint& point : line.points) {
      if (!fits(chart, point)) continue;
      if (!any) *box = {point.x, point.x, point.y, point.y};
      any = true;
      box->min_x = std::min(box->min_x, point.x);
      box->max_x = std::max(box->max_x, point.x);
      box->min_y = std::min(box->min_y, point.y);
      box->max_y = std::max(box->max_y, point.y);
    }
  }
  if (!any) return false;
  box->max_y = std::max(box->max_y, chart.limit);
  const std::vector<double> ticks = axis_ticks(box->min_y, box->max_y, chart.log_y);
  box->min_y = chart.log_y ? ticks.front() : 0.0;
  box->max_y = ticks.back();
  return true;
}

std::string text_at(double x, double y, const char* style, const std::string& words) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\">{}</text>\n", x, y, style,
                     escape(words));
}

std::string marker(std::size_t style, double x, double y) {
  constexpr double r = 4.5;
  switch (style % kStyles) {
    case 0: return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\"/>", x, y, r - 0.5);
    case 1:
      return fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"8\" height=\"8\"/>", x - 4,
                         y - 4);
    case 2:
      return fmt::format("<path d=\"M{:.1f} {:.1f}l{} {}h{}z\"/>", x, y - r, r, 1.8 * r, -2 * r);
    case 3:
      return fmt::format("<path d=\"M{:.1f} {:.1f}l{} {}l{} {}l{} {}z\"/>", x, y - r - 1, r + 1,
                         r + 1, -r - 1, r + 1, -r - 1, -r - 1);
    case 4:
      return fmt::format("<path d=\"M{:.1f} {:.1f}l9 9m0 -9l-9 9\" class=\"stroke\"/>", x - 4.5,
                         y - 4.5);
    default:
      return fmt::format("<path d=\"M{:.1f} {:.1f}h10m-5 -5v10\" class=\"stroke\"/>", x - 5, y);
  }
}

std::string tick_words(double value) {
  const bool whole = value == std::floor(value) && std::abs(value) < 1e15;
  return whole ? count_words(static_cast<std::int64_t>(value)) : fmt::format("{:g}", value);
}

std::string axes(const Chart& chart, const Box& box, const Scale& scale) {
  const double bottom = kHeight - kBottom, right = kWidth - kRight;
  std::string out;
  for (const double value : axis_ticks(box.min_y, box.max_y, chart.log_y)) {
    const double y = scale.y(value);
    out += fmt::format("<path d=\"M{} {:.1f}H{}\" class=\"grid\"/>\n", kLeft, y, right);
    out += text_at(kLeft - 8, y + 4, "tick end", tick_words(value));
  }
  out += fmt::format("<path d=\"M{} {}H{}\" class=\"axis\"/>\n", kLeft, bottom, right);
  double last = -1e9;
  for (const ChartTick& tick : chart.ticks) {
    if (tick.x < box.min_x || tick.x > box.max_x) continue;
    const double x = scale.x(tick.x);
    if (x - last < 8.0 * static_cast<double>(tick.label.size()) + 8.0) continue;
    last = x;
    out += fmt::format("<path d=\"M{:.1f} {}v5\" class=\"axis\"/>\n", x, bottom);
    out += text_at(x, bottom + 19, "tick middle", tick.label);
  }
  out += text_at((kLeft + right) / 2, kHeight - 10, "name middle", chart.x_title);
  out += fmt::format(
      "<text transform=\"translate(14 {:.1f}) rotate(-90)\" class=\"name middle\">{}</text>\n",
      (kTop + bottom) / 2, escape(chart.y_title));
  if (chart.limit > 0.0) {
    const double y = scale.y(chart.limit);
    out += fmt::format("<path d=\"M{} {:.1f}H{}\" class=\"limit\"/>\n", kLeft, y, right);
    out += text_at(kLeft + 6, y + 14, "tick", chart.limit_title);
  }
  return out;
}

/// Heights of the names at the lines' ends: as near to the ends as their size allows.
std::vector<double> spread(std::vector<double> wanted) {
  constexpr double kStep = 15.0;
  std::vector<std::size_t> order(wanted.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return wanted[a] < wanted[b]; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    wanted[order[i]] = std::max(wanted[order[i]], wanted[order[i - 1]] + kStep);
  }
  double bottom = kHeight - kBottom + kStep;
  for (std::size_t i = order.size(); i-- > 0; bottom -= kStep) {
    wanted[order[i]] = std::min(wanted[order[i]], bottom);
    bottom = std::min(bottom, wanted[order[i]]);
  }
  return wanted;
}

std::string draw_line(const Chart& chart, const ChartLine& line, std::size_t style,
                      const Scale& scale) {
  std::string path, markers;
  for (const ChartPoint& point : line.points) {
    if (!fits(chart, point)) continue;
    const double x = scale.x(point.x), y = scale.y(point.y);
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x, y);
    markers += fmt::format("<g>{}<title>{}</title></g>\n", marker(style, x, y), escape(point.text));
  }
  return fmt::format("<g class=\"line line{}\">\n<path d=\"{}\" class=\"way\"/>\n{}</g>\n",
                     style % kStyles, path, markers);
}

}  // namespace

std::vector<double> axis_ticks(double min, double max, bool log) {
  std::vector<double> ticks;
  if (log) {
    const int first = static_cast<int>(std::floor(std::log10(min)));
    const int last = static_cast<int>(std::ceil(std::log10(max)));
    for (int power = first; power <= std::max(last, first + 1); ++power) {
      ticks.push_back(std::pow(10.0, power));
    }
    return ticks;
  }
  if (!(max > 0.0)) return {0.0, 1.0};
  const double magnitude = std::pow(10.0, std::floor(std::log10(max / 4)));
  double step = 10.0 * magnitude;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (max / (factor * magnitude) <= 6.0) step = factor * magnitude;
  }
  for (int i = 0; ticks.empty() || ticks.back() < max; ++i) ticks.push_back(step * i);
  return ticks;
}

std::string to_svg(const Chart& chart) {
  Box box{};
  if (!find_box(chart, &box)) return "";
  const Scale scale(chart, box);
  std::string out = fmt::format(
      "<svg class=\"chart\" viewBox=\"0 0 {0} {1}\" role=\"img\" aria-labelledby=\"{2}-t {2}-d\">\n"
      "<title id=\"{2}-t\">{3}</title>\n<desc id=\"{2}-d\">{4}</desc>\n",
      kWidth, kHeight, escape(chart.id), escape(chart.title), escape(chart.description));
  out += axes(chart, box, scale);
  std::vector<double> ends, heights;
  std::vector<const ChartLine*> drawn;
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    const ChartLine& line = chart.lines[i];
    const ChartPoint* last = nullptr;
    for (const ChartPoint& point : line.points) last = fits(chart, point) ? &point : last;
    if (last == nullptr) continue;
    out += draw_line(chart, line, i, scale);
    drawn.push_back(&line);
    ends.push_back(scale.x(last->x));
    heights.push_back(scale.y(last->y));
  }
  const std::vector<double> places = spread(heights);
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    const auto style = static_cast<std::size_t>(drawn[i] - chart.lines.data());
    const double x = kWidth - kRight + 12;
    out += fmt::format(
        "<g class=\"line line{}\"><path d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\" "
        "class=\"lead\"/>{}</g>\n",
        style % kStyles, ends[i] + 6, heights[i], x, places[i], marker(style, x + 6, places[i]));
    out += text_at(x + 15, places[i] + 4, "name", drawn[i]->name);
  }
  return out + "</svg>\n";
}

}  // namespace regard::guide
