#pragma once

#include <string>
#include <vector>

#include "regard/context.h"
#include "regard/status.h"

// What `regard tune` has measured, kept between its runs: a file for each problem, in a folder for
// each environment.

namespace regard::cli {

/// A table without contents, of this build on this machine's CPU.
TuningTable table_of(const Env& env);

/// The kept measurements of one environment and number of rounds.
class TuningStore {
 public:
  /// Below tuning_folder(env), which must not be "". The folder is made with the first entry.
  TuningStore(const Env& env, int rounds);

  const std::string& folder() const noexcept { return folder_; }
  /// The times of a problem; empty where there are none. A file that is damaged or of another
  /// environment or problem counts as none, and its reason is appended to `dropped`.
  std::vector<TuningTable::Time> find(const std::string& words,
                                      std::vector<std::string>* dropped) const;
  Status keep(const std::string& words, std::vector<TuningTable::Time> times) const;

 private:
  std::string path_of(const std::string& words) const;

  std::string folder_;
  Env env_;
};

}  // namespace regard::cli
