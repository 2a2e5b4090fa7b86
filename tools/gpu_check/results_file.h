#pragma once

#include <string>
#include <vector>

#include "regard/status.h"
#include "tools/gpu_check/json_line.h"

namespace regard::gpu_check {

/// The results of runs, one JSON line for each case and each end of a phase. They are written one
/// by one, so that a run that is cut off leaves what it has.
class ResultsFile {
 public:
  ResultsFile() = default;
  ~ResultsFile();
  ResultsFile(const ResultsFile&) = delete;
  ResultsFile& operator=(const ResultsFile&) = delete;

  /// Reads what is there and locks the file. A last line that was cut off is removed; an error
  /// where another line is none of results, or another run writes to the file.
  Status open(const std::string& path);
  Status append(const JsonLine& line);
  const std::vector<JsonLine>& lines() const { return lines_; }

 private:
  Status read();

  std::string path_;
  int file_ = -1;
  std::vector<JsonLine> lines_;
};

}  // namespace regard::gpu_check
