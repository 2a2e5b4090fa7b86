#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "tools/files/line_reader.h"

namespace regard::gpu_check {

using Clock = files::LineReader::Clock;

/// A command that ends with this process. What it writes to its
/// standard output is read line by line; its standard error is this process's.
class ChildProcess {
 public:
  /// kOwn: kill() ends whatever the command started. kParents: so does the end of this process's.
  enum class Group { kOwn, kParents };
  /// `input` is its standard input. error() is set where it could not be started.
  ChildProcess(const std::vector<std::string>& command, const std::string& input, Group group);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  const std::string& error() const { return error_; }

  files::LineReader& lines() { return lines_; }

  /// Waits a few seconds for its end, then kills it. "" after status 0, else "exit status 3"
  /// or "signal 11 (Segmentation fault)".
  std::string finish();
  /// Of finish(): the exit status, -1 after a signal.
  int exit_status() const { return exit_status_; }
  void kill();

 private:
  const Group group_;
  pid_t pid_ = -1;
  int out_ = -1;
  files::LineReader lines_;
  std::string error_;
  int exit_status_ = -1;
};

/// What a command printed, standard error included, and how it ended.
struct Output {
  std::string text;
  std::string ended;  // as finish(), or "timed out"
};
Output run_command(std::vector<std::string> command, const std::string& input, double seconds);

/// The path of a program on the PATH or in one of those folders; "" where it is not.
std::string find_program(const std::string& name, const std::vector<std::string>& folders);

}  // namespace regard::gpu_check
