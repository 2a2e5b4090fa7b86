#include "tools/regard/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <string_view>

namespace regard::cli {
namespace {

enum State { kFree, kDeferred, kEnding };

// Read and written in a signal handler, which any thread may run: lock-free.
std::atomic<int> g_state{kFree};
std::atomic<int> g_signal{0};
std::atomic<bool> g_progress_drawn{false};
std::atomic<const InterruptDocuments*> g_documents{nullptr};

// A failure cannot be reported any more.
void write_text(int fd, std::string_view text) { (void)!::write(fd, text.data(), text.size()); }

extern "C" void on_signal(int signal) {
  int state = kFree;
  if (!g_state.compare_exchange_strong(state, kEnding)) {
    g_signal = signal;
    return;
  }
  if (g_progress_drawn) write_text(STDERR_FILENO, "\r\x1b[K");
  write_text(STDERR_FILENO, "regard: interrupted\n");
  const InterruptDocuments* documents = g_documents;
  for (std::size_t i = 0; i < kInterruptedExitCodes.size() && documents != nullptr; ++i) {
    if (kInterruptedExitCodes[i] == 128 + signal) write_text(STDOUT_FILENO, (*documents)[i]);
  }
  ::_exit(128 + signal);
}

}  // namespace

void install_signal_handlers() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int code : kInterruptedExitCodes) {
    const int signal = code - 128;
    struct sigaction old {};
    // nohup and background jobs of a shell ignore some of these, and that must stay so.
    if (::sigaction(signal, nullptr, &old) == 0 && old.sa_handler == SIG_IGN) continue;
    ::sigaction(signal, &action, nullptr);
  }
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
}

DeferSignals::DeferSignals() {
  int state = kFree;
  // Another thread's handler is ending the program: nothing may begin any more.
  while (!g_state.compare_exchange_strong(state, kDeferred)) {
    ::pause();
    state = kFree;
  }
}
DeferSignals::~DeferSignals() { g_state = kFree; }

bool interrupted() { return g_signal != 0; }
int interrupted_exit_code() { return 128 + g_signal; }

void set_interrupt_documents(const InterruptDocuments* documents) { g_documents = documents; }
void set_progress_drawn(bool drawn) { g_progress_drawn = drawn; }

}  // namespace regard::cli
