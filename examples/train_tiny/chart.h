#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

// The loss curve as an SVG file.

namespace train {

struct Chart {
  std::string title;
  double guess = 0.0;  // the loss of guessing, a dashed line
  std::vector<double> losses;
};

namespace chart {

inline constexpr double kWidth = 720, kHeight = 400, kLeft = 56, kTop = 40, kRight = 16,
                        kBottom = 44;

inline std::string format(const char* pattern, double a, double b, double c = 0.0) {
  char text[256];
  std::snprintf(text, sizeof(text), pattern, a, b, c);
  return text;
}

/// The means of every loss with those before it, as many as smooth a batch's luck out.
inline std::vector<double> smoothed(const std::vector<double>& losses) {
  constexpr double kKeep = 0.9;
  std::vector<double> means;
  double sum = 0.0, weight = 0.0;
  for (const double loss : losses) {
    sum = kKeep * sum + loss;
    weight = kKeep * weight + 1.0;
    means.push_back(sum / weight);
  }
  return means;
}

}  // namespace chart

/// False when the file cannot be written.
inline bool write_svg(const Chart& c, const std::string& path) {
  using namespace chart;
  const double top = std::ceil(std::max(c.guess, c.losses.empty() ? 0.0 : c.losses.front()));
  const double steps = std::max(1.0, static_cast<double>(c.losses.size()) - 1.0);
  const auto x = [&](double step) { return kLeft + step / steps * (kWidth - kLeft - kRight); };
  const auto y = [&](double loss) {
    return kTop + (1.0 - loss / top) * (kHeight - kTop - kBottom);
  };
  const auto curve = [&](const std::vector<double>& losses) {
    std::string points;
    for (std::size_t i = 0; i < losses.size(); ++i) {
      points += format("%.1f,%.1f ", x(static_cast<double>(i)), y(losses[i]));
    }
    return points;
  };
  std::string svg = format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
      "font-family=\"sans-serif\" font-size=\"12\" fill=\"#333\">\n",
      kWidth, kHeight);
  svg +=
      "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n<text x=\"56\" y=\"22\" "
      "font-size=\"15\">" +
      c.title + "</text>\n";
  for (double loss = 0.0; loss <= top; loss += 1.0) {
    svg += format("<path d=\"M%.1f %.1fH704\" stroke=\"#ddd\"/>", kLeft, y(loss));
    svg += format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%.0f</text>\n", kLeft - 8,
                  y(loss) + 4, loss);
  }
  for (int tick = 0; tick <= 4; ++tick) {
    const double step = std::round(steps * tick / 4);
    svg += format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.0f</text>\n", x(step),
                  kHeight - 26, step + 1);
  }
  svg += format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">step</text>\n", kWidth / 2,
                kHeight - 8);
  svg += format("<path d=\"M%.1f %.1fH704\" stroke=\"#888\" stroke-dasharray=\"5 4\"/>\n", kLeft,
                y(c.guess));
  svg += format("<text x=\"700\" y=\"%.1f\" text-anchor=\"end\">guessing: %.2f</text>\n",
                y(c.guess) - 5, c.guess);
  svg += "<polyline fill=\"none\" stroke=\"#9cc3e8\" points=\"" + curve(c.losses) + "\"/>\n";
  svg += "<polyline fill=\"none\" stroke=\"#1f5fa8\" stroke-width=\"2\" points=\"" +
         curve(smoothed(c.losses)) + "\"/>\n</svg>\n";
  std::FILE* const file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return false;
  const bool written = std::fwrite(svg.data(), 1, svg.size(), file) == svg.size();
  return std::fclose(file) == 0 && written;
}

}  // namespace train
