#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tools/guide/report.h"

namespace regard::guide::sample {

inline Measured row(const std::string& name, std::vector<double> seconds) {
  Measured made;
  made.name = name;
  made.seconds = std::move(seconds);
  made.workspace_bytes = 2048;
  return made;
}

/// A row without a spread.
inline Measured row(const std::string& name, double seconds) {
  return row(name, std::vector<double>{seconds, seconds, seconds});
}

inline Measured refused(const std::string& name, const std::string& reason) {
  Measured made;
  made.name = name;
  made.reason = reason;
  return made;
}

inline Point point(double x, std::vector<Measured> rows) {
  Point made;
  made.x = x;
  made.label = count_words(static_cast<std::int64_t>(x));
  made.problem = "b1 sq" + std::to_string(static_cast<int>(x)) + " d64";
  made.operations = 1e9;
  made.bytes = 1e6;
  made.rows = std::move(rows);
  return made;
}

inline Sweep sweep(const std::string& id, const std::string& title, std::vector<Point> points) {
  Sweep made;
  made.id = id;
  made.title = title;
  made.x_title = "positions";
  made.points = std::move(points);
  return made;
}

/// flash overtakes math at 1,024; efficient cannot run at 4,096.
inline Sweep lengths() {
  return sweep(
      "length_f32", "Prompts in f32",
      {point(64, {row("flash", 2e-3), row("efficient", 3e-3), row("math", 1e-3)}),
       point(1024, {row("flash", 2e-3), row("efficient", 2.01e-3), row("math", 4e-3)}),
       point(4096, {row("flash", 4e-3), refused("efficient", "needs <more>"), row("math", 9e-3)})});
}

inline Report report() {
  Report made;
  made.env.cpu_model = "A CPU of \"tests\" & <others>";
  made.env.version = "1.2.3";
  made.env.concurrency = 2;
  made.made = "2026-01-31";
  made.rounds = 3;
  made.rates.threads = 2;
  made.support.backends = {"flash", "efficient", "math"};
  made.elsewhere = {{"cudnn", "needs a CUDA device"}};
  made.errors = {{"flash", "f32", false, 4e-7, 2e-6, ""}, {"math", "f32", false, 1e-7, 2e-6, ""}};
  made.sweeps = {lengths()};
  made.sweeps[0].limit = 100.0;
  made.sweeps[0].limit_title = "the machine's peak";
  return made;
}

}  // namespace regard::guide::sample
