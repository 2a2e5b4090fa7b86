#include "tools/regard/interrupt.h"

#include <unistd.h>

#include <csignal>
#include <initializer_list>

namespace regard::cli {
namespace {

volatile std::sig_atomic_t g_signal = 0;
volatile std::sig_atomic_t g_no_hard_stop = 0;

extern "C" void on_signal(int signal) {
  if (g_signal != 0 && g_no_hard_stop == 0) ::_exit(128 + signal);
  g_signal = signal;
}

}  // namespace

void install_signal_handlers() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction old {};
    // nohup and background jobs of a shell ignore some of these, and that must stay so.
    if (::sigaction(signal, nullptr, &old) == 0 && old.sa_handler == SIG_IGN) continue;
    ::sigaction(signal, &action, nullptr);
  }
  std::signal(SIGXFSZ, SIG_IGN);
}

bool interrupted() { return g_signal != 0; }
int interrupted_exit_code() { return 128 + static_cast<int>(g_signal); }

NoHardStop::NoHardStop() { g_no_hard_stop = 1; }
NoHardStop::~NoHardStop() { g_no_hard_stop = 0; }

}  // namespace regard::cli
