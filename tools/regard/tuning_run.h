#pragma once

#include <functional>
#include <string>
#include <vector>

#include "regard/context.h"
#include "tools/regard/tuning_store.h"

// Measuring the problems of a grid, and the table that is made of their times.

namespace regard::cli {

/// The problems that `regard tune` measures, in an order of which every beginning has some of each
/// kind.
std::vector<std::string> tuning_grid(bool quick);

/// The cases of a file, one a line, where lines with # are comments; or those of a record.
Expected<std::vector<std::string>> read_cases(const std::string& path);

struct TuningCounts {
  int problems = 0;  // of the grid
  int measured = 0;
  int reused = 0;    // kept by an earlier run
  int unsteady = 0;  // measured although the machine's speed changed meanwhile
  int repeated = 0;  // measured again, because it had changed
  bool out_of_time = false;
  std::vector<std::string> notes;
};

/// Measures problems one after another.
class TuningRun {
 public:
  TuningRun(Context& context, TuningStore store, int rounds);

  /// Until all are measured, `seconds` have passed or interrupted(). `report` is called after each.
  Status measure(const std::vector<std::string>& problems, double seconds,
                 const std::function<void(int done, double seconds_left)>& report);
  const TuningCounts& counts() const noexcept { return counts_; }

  /// Costs fitted to all times of default variants, and rules for each problem that another backend
  /// or variant than the default computes faster.
  TuningTable table() const;

 private:
  Status measure_one(const std::string& words, std::vector<TuningTable::Time>* times);
  void add_rules(const std::vector<TuningTable::Time>& times, TuningTable* table) const;

  Context& context_;
  TuningStore store_;
  int rounds_;
  double reference_ = 0.0;
  TuningCounts counts_;
  std::vector<std::vector<TuningTable::Time>> times_;  // of each problem
};

/// Seconds of a fixed chain of additions: twice as long where the processor is half as fast.
double reference_seconds();

/// The words of a rule that holds for problems like this one: extents within a factor of the square
/// root of two, the same type of q, and the features that a rule may name.
std::string condition_near(const AttentionParams& params);

}  // namespace regard::cli
