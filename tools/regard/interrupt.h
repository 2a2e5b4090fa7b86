#pragma once

#include <array>
#include <string>

namespace regard::cli {

/// SIGINT, SIGTERM and SIGHUP end the program at once, amid whatever it computes, with a complaint
/// and exit code 128 + signal. SIGXFSZ and SIGPIPE are ignored: a write beyond the file size limit,
/// or to a reader that is gone, is an error that is reported.
void install_signal_handlers();

/// While it lives, signals wait, because a temporary file would be left behind: the work polls
/// interrupted().
class DeferSignals {
 public:
  DeferSignals();
  ~DeferSignals();
  DeferSignals(const DeferSignals&) = delete;
  DeferSignals& operator=(const DeferSignals&) = delete;
};

/// True once a signal came that waits.
bool interrupted();
/// 128 + the signal that came: 130 for SIGINT.
int interrupted_exit_code();

inline constexpr std::array<int, 3> kInterruptedExitCodes = {130, 143, 129};
/// The JSON document that a signal leaves on standard output, for each of kInterruptedExitCodes.
using InterruptDocuments = std::array<std::string, kInterruptedExitCodes.size()>;
/// From now on a signal writes one of `documents`, which the caller keeps; null: none.
void set_interrupt_documents(const InterruptDocuments* documents);
/// Whether a progress bar stands on standard error, which a signal clears first.
void set_progress_drawn(bool drawn);

}  // namespace regard::cli
