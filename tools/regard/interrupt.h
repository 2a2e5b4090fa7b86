#pragma once

namespace regard::cli {

/// SIGINT, SIGTERM and SIGHUP raise a flag that work asks for between its units, so that nothing
/// is left half done; a second signal ends the program at once. SIGXFSZ is ignored: a write beyond
/// the file size limit is an error that is reported.
void install_signal_handlers();

/// True once a signal came.
bool interrupted();
/// 128 + the signal that came: 130 for SIGINT.
int interrupted_exit_code();

/// While it lives a second signal waits too, because a temporary file would be left behind.
class NoHardStop {
 public:
  NoHardStop();
  ~NoHardStop();
  NoHardStop(const NoHardStop&) = delete;
  NoHardStop& operator=(const NoHardStop&) = delete;
};

}  // namespace regard::cli
