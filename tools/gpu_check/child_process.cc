#include "tools/gpu_check/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <thread>

namespace regard::gpu_check {
namespace {

/// The standard input of a child: all of it is there before the child starts, so that neither
/// process waits for the other. -1 where there is no room.
int input_file(const std::string& input) {
  const int file = memfd_create("input", MFD_CLOEXEC);
  if (file < 0) return -1;
  for (std::size_t done = 0; done < input.size();) {
    const ssize_t written = write(file, input.data() + done, input.size() - done);
    if (written <= 0) {
      close(file);
      return -1;
    }
    done += static_cast<std::size_t>(written);
  }
  lseek(file, 0, SEEK_SET);
  return file;
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& command, const std::string& input,
                           Group group)
    : group_(group) {
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  int ends[2] = {-1, -1};
  const int in = input_file(input);
  if (in < 0 || pipe2(ends, O_CLOEXEC) != 0) {
    error_ = std::string("cannot start a process: ") + std::strerror(errno);
    if (in >= 0) close(in);
    return;
  }
  pid_ = fork();
  if (pid_ == 0) {
    if (group_ == Group::kOwn) setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(in, STDIN_FILENO);
    dup2(ends[1], STDOUT_FILENO);
    execvp(words[0], words.data());
    _exit(127);
  }
  if (pid_ < 0) error_ = std::string("cannot start a process: ") + std::strerror(errno);
  if (pid_ > 0 && group_ == Group::kOwn) setpgid(pid_, pid_);
  close(in);
  close(ends[1]);
  out_ = ends[0];
  lines_ = files::LineReader(out_);
}

ChildProcess::~ChildProcess() {
  kill();
  if (pid_ > 0) waitpid(pid_, nullptr, 0);
  if (out_ >= 0) close(out_);
}

std::string ChildProcess::finish() {
  constexpr auto kGrace = std::chrono::seconds(10);  // for a CUDA context to be destroyed
  if (pid_ <= 0) return error_;
  const auto deadline = Clock::now() + kGrace;
  int status = 0;
  pid_t ended = 0;
  while ((ended = waitpid(pid_, &status, WNOHANG)) == 0 && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (ended == 0 || group_ == Group::kOwn) kill();  // what it started and left behind, too
  if (ended == 0) waitpid(pid_, &status, 0);
  pid_ = -1;
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    return "signal " + std::to_string(number) + " (" + strsignal(number) + ")";
  }
  exit_status_ = WEXITSTATUS(status);
  return exit_status_ == 0 ? "" : "exit status " + std::to_string(exit_status_);
}

void ChildProcess::kill() {
  if (pid_ > 0) ::kill(group_ == Group::kOwn ? -pid_ : pid_, SIGKILL);
}

Output run_command(std::vector<std::string> command, const std::string& input, double seconds) {
  // A shell joins the streams: tools print their findings to either.
  std::vector<std::string> joined = {"/bin/sh", "-c", "exec \"$@\" 2>&1", "sh"};
  joined.insert(joined.end(), command.begin(), command.end());
  ChildProcess child(joined, input, ChildProcess::Group::kParents);
  Output output;
  output.ended = child.error();
  if (!output.ended.empty()) return output;
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(seconds));
  std::string line;
  files::LineReader::Event event;
  while ((event = child.lines().next(deadline, &line)) == files::LineReader::Event::kLine) {
    output.text += line + "\n";
  }
  if (event == files::LineReader::Event::kTimeout) child.kill();
  output.ended = child.finish();
  if (event == files::LineReader::Event::kTimeout) output.ended = "timed out";
  return output;
}

std::string find_program(const std::string& name, const std::vector<std::string>& folders) {
  const char* path = std::getenv("PATH");
  std::istringstream listed(path != nullptr ? path : "");
  std::vector<std::string> all;
  for (std::string folder; std::getline(listed, folder, ':');) all.push_back(folder);
  all.insert(all.end(), folders.begin(), folders.end());
  for (const std::string& folder : all) {
    const std::string file = folder + "/" + name;
    if (access(file.c_str(), X_OK) == 0) return file;
  }
  return "";
}

}  // namespace regard::gpu_check
