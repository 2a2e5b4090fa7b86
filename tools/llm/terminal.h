#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "regard/interrupt.h"
#include "regard/status.h"

namespace llm {

/// What the program returns: 128 + 2 where ctrl-C ended it.
enum ExitCode : int { kOk = 0, kFailed = 1, kUsage = 2, kNoBackend = 3, kInterruptedExit = 130 };

/// Writes text to standard output at once; false once it could not be written.
bool print(std::string_view text);
/// Text on standard error.
void complain(std::string_view text);
/// "regard-llm: ..." with the reasons of backends, and the exit code that a failure stands for.
int fail(const regard::Status& status);
int exit_code_of(const regard::Status& status);
/// `code` where all that was printed was written; else a complaint, and 1.
int finish(int code);

/// While it lives, the first ctrl-C sets a flag and the second ends the program.
class InterruptFlag {
 public:
  InterruptFlag();
  ~InterruptFlag();
  InterruptFlag(const InterruptFlag&) = delete;
  InterruptFlag& operator=(const InterruptFlag&) = delete;
  static bool raised() noexcept;
  static bool poll(void*) noexcept { return raised(); }  // for regard::Interrupt
  /// Requests `interrupt` if it is raised. An Interrupt polls four times a second alone, in which
  /// 25 tokens would follow a ctrl-C: so this is called for each.
  static void forward(regard::Interrupt& interrupt) noexcept;
  static void lower() noexcept;

 private:
  bool installed_ = false;
};

/// Lines from a terminal, with editing and history, or from a pipe.
class LineReader {
 public:
  LineReader();
  /// False at the end of the input. A line that ctrl-C ended is empty.
  bool read(const char* prompt, std::string* line);
};

std::size_t peak_memory_bytes();

}  // namespace llm
