#pragma once

#include <string>
#include <vector>

// Line charts as SVG for a page that has chart_style(). Lines differ in marker and dashes as well
// as in colour, and each has its name at its end.

namespace regard::guide {

struct ChartPoint {
  double x = 0.0;
  double y = 0.0;
  std::string text;  // what a pointer at it shows
};

struct ChartLine {
  std::string name;
  std::vector<ChartPoint> points;  // by ascending x; finite
};

struct ChartTick {
  double x = 0.0;
  std::string label;
};

struct Chart {
  std::string id;
  std::string title;        // for readers of the screen
  std::string description;  // the same
  std::string x_title, y_title;
  bool log_x = true;
  bool log_y = false;  // else from 0
  std::vector<ChartTick> ticks;
  std::vector<ChartLine> lines;
  double limit = 0.0;  // a horizontal line; 0: none
  std::string limit_title;
};

/// "" where no line has a point.
std::string to_svg(const Chart& chart);

/// Where the ticks of an axis from 0 (or of a logarithmic one from min) to max lie.
std::vector<double> axis_ticks(double min, double max, bool log);

}  // namespace regard::guide
