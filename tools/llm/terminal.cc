#include "tools/llm/terminal.h"

#include <editline/readline.h>
#include <langinfo.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "regard/selection.h"

namespace llm {
namespace {

std::atomic<bool> g_interrupted{false};  // written in a signal handler: lock-free
int g_write_error = 0;

extern "C" void on_interrupt(int) {
  if (g_interrupted.exchange(true)) ::_exit(kInterruptedExit);
}

}  // namespace

bool print(std::string_view text) {
  if (g_write_error != 0) return false;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    g_write_error = errno;
    return false;
  }
  return true;
}

void complain(std::string_view text) { (void)!std::fwrite(text.data(), 1, text.size(), stderr); }

int fail(const regard::Status& status) {
  if (const auto selection = status.selection()) {
    complain("regard-llm: no backend can run attention\n\n" + to_string(*selection));
  } else {
    complain("regard-llm: " + status.message() + "\n");
  }
  return exit_code_of(status);
}

int exit_code_of(const regard::Status& status) {
  switch (status.code()) {
    case regard::StatusCode::kInvalidArgument:
    case regard::StatusCode::kOverflow:  // extents of a hostile file
    case regard::StatusCode::kNotFound: return kUsage;
    case regard::StatusCode::kNoBackend: return kNoBackend;
    case regard::StatusCode::kInterrupted: return kInterruptedExit;
    default: return kFailed;
  }
}

int finish(int code) {
  if (g_write_error == 0) return code;
  complain(std::string("regard-llm: cannot write the output: ") + std::strerror(g_write_error) +
           "\n");
  return kFailed;
}

InterruptFlag::InterruptFlag() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;  // without SA_RESTART: a line that is read ends
  sigemptyset(&action.sa_mask);
  struct sigaction old {};
  // A shell's background jobs ignore ctrl-C, and that must stay so.
  if (::sigaction(SIGINT, nullptr, &old) != 0 || old.sa_handler != SIG_IGN) {
    ::sigaction(SIGINT, &action, nullptr);
    installed_ = true;
  }
  lower();
}
InterruptFlag::~InterruptFlag() {
  if (installed_) std::signal(SIGINT, SIG_DFL);
}
bool InterruptFlag::raised() noexcept { return g_interrupted.load(); }
void InterruptFlag::lower() noexcept { g_interrupted = false; }
void InterruptFlag::forward(regard::Interrupt& interrupt) noexcept {
  if (raised()) interrupt.request();
}

LineReader::LineReader() {
  // Without a locale of UTF-8 libedit drops what is not ASCII.
  const bool set = std::setlocale(LC_CTYPE, "") != nullptr;
  if (!set || std::strcmp(::nl_langinfo(CODESET), "UTF-8") != 0) {
    std::setlocale(LC_CTYPE, "C.UTF-8");
  }
}

bool LineReader::read(const char* prompt, std::string* line) {
  line->clear();
  if (::isatty(STDIN_FILENO) == 0) return static_cast<bool>(std::getline(std::cin, *line));
  char* const given = ::readline(prompt);
  if (given == nullptr) {
    const bool interrupted = InterruptFlag::raised();
    if (interrupted) InterruptFlag::lower();
    print("\n");
    return interrupted;
  }
  *line = given;
  if (!line->empty()) ::add_history(given);
  std::free(given);
  return true;
}

std::size_t peak_memory_bytes() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) * 1024;
}

}  // namespace llm
