#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "regard/env.h"
#include "regard/machine_rates.h"
#include "tools/guide/support.h"

// What `regard guide` found out about one machine: plain data, which answers.h draws conclusions
// from and page.h writes.

namespace regard::guide {

/// One line of a chart at one point.
struct Measured {
  std::string name;    // "flash", "torch", "i8 keys"
  std::string reason;  // why there is no time; "" where there is one
  std::string kernel;
  std::int64_t workspace_bytes = -1;  // -1: unknown
  std::vector<double> seconds;        // of one call: a figure for each round
  bool is_peer = false;

  double median() const;          // 0 without rounds
  double quantile(double) const;  // of the rounds
};

/// What the figures of a sweep are.
enum class Unit { kGflops, kGbps, kSeconds, kBytes };

struct Point {
  double x = 0.0;
  std::string label;        // "1,024"
  std::string problem;      // a case, to repeat it
  double operations = 0.0;  // of one call
  double bytes = 0.0;
  std::vector<Measured> rows;
};

/// One chart and its table.
struct Sweep {
  std::string id;       // "length_f32"
  std::string title;    // "Prompts in f32"
  std::string x_title;  // "positions"
  Unit unit = Unit::kGflops;
  bool log_x = true;
  double limit = 0.0;  // the machine's, in `unit`; 0: none
  std::string limit_title;
  std::vector<Point> points;
};

struct ErrorRow {
  std::string backend;
  std::string types;
  bool gradients = false;
  double error = 0.0;  // the largest over the largest output, against float64
  double bound = 0.0;  // as the backend states it; 0 where it states none
  std::string reason;  // why it was not computed
};

struct Report {
  Env env;
  MachineRates rates;  // of all threads
  MachineRates one_thread;
  std::string made;      // "2026-01-31"
  double seconds = 0.0;  // that measuring took
  std::int32_t rounds = 0;
  bool quick = false;
  std::string peer;  // "torch 2.9.0"; "" without one
  SupportMatrix support;
  std::vector<AbsentBackend> elsewhere;  // backends that do not run on this CPU, and why
  std::vector<ErrorRow> errors;
  std::vector<Sweep> sweeps;
  std::vector<std::string> notes;  // what was left out, and why
};

const Sweep* find_sweep(const Report& report, const std::string& id);
const Measured* find_row(const Point& point, const std::string& name);

/// A row's figure in the sweep's unit, or NaN where there is none.
double figure(const Sweep& sweep, const Point& point, const Measured& row);

/// The names of all rows, in the order in which they come first.
std::vector<std::string> row_names(const Sweep& sweep);

/// The fastest row of regard's own; null where nothing was measured.
const Measured* fastest(const Point& point);
/// Whether two rows differ: by at least 5 % in the median of their ratio within rounds, whose lower
/// quartile is above 1.
bool differ(const Measured& a, const Measured& b);

std::string to_json(const Report& report);

// How numbers are written for people.
std::string seconds_words(double seconds);  // "1.23 ms"
std::string bytes_words(double bytes);      // "96.2 KiB"
std::string figure_words(Unit unit, double value);
std::string short_words(double value);        // three digits: "1,024", "12.3", "0.012"
std::string count_words(std::int64_t count);  // every digit: "65,536"

}  // namespace regard::guide
