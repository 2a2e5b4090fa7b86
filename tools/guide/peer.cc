#include "tools/guide/peer.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "tools/guide/peer_script.h"

extern char** environ;

namespace regard::guide {
namespace {

using Json = nlohmann::json;

constexpr int kStartSeconds = 120;  // the first import of PyTorch reads some GB
constexpr int kTurnSeconds = 60;

Status unavailable(const std::string& message) {
  return Status(StatusCode::kUnavailable, "[peer] " + message);
}

/// What the other process says, or an error where it is not what is expected.
Expected<Json> parse(const std::string& line) {
  Json json = Json::parse(line, nullptr, false);
  if (!json.is_object()) return unavailable("it does not speak the protocol");
  if (json.contains("error")) return unavailable(json["error"].dump());
  return json;
}

/// The words of a case that PyTorch has, or why it has not.
Expected<Json> words_of(const Case& c) {
  const AttentionParams& p = c.params;
  FeatureSet known{Feature::kCausal, Feature::kGqa, Feature::kNeedsGrad, Feature::kSavedStats,
                   Feature::kLse};
  const bool plain = p.features.without(known).empty() && p.dtype_q == p.dtype_k &&
                     p.dtype_q == p.dtype_v && p.dtype_q == p.dtype_out && size_of(p.dtype_q) > 1 &&
                     p.head_dim_qk == p.head_dim_v && p.softcap == 0.0;
  if (!plain) return unavailable("not measured: only plain and causal problems are");
  const bool causal = p.features.has(Feature::kCausal);
  if (causal && p.seqlen_q != p.seqlen_kv) return unavailable("not measured: causal rectangles");
  return Json{{"b", p.batch},
              {"hq", p.num_heads_q},
              {"hkv", p.num_heads_kv},
              {"sq", p.seqlen_q},
              {"skv", p.seqlen_kv},
              {"d", p.head_dim_qk},
              {"dtype", to_string(p.dtype_q)},
              {"causal", causal},
              {"grad", p.features.has(Feature::kNeedsGrad)}};
}

class Pipe {
 public:
  bool open() { return ::pipe2(ends_, O_CLOEXEC) == 0; }
  ~Pipe() {
    close(0);
    close(1);
  }
  void close(int which) {
    if (ends_[which] >= 0) ::close(release(which));
  }
  int end(int which) const { return ends_[which]; }
  int release(int which) { return std::exchange(ends_[which], -1); }

 private:
  int ends_[2] = {-1, -1};
};

}  // namespace

Expected<std::unique_ptr<Peer>> Peer::start(const std::string& python, std::int32_t threads) {
  Pipe to, from;
  if (!to.open() || !from.open()) return unavailable(std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to.end(0), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, from.end(1), STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::string count = std::to_string(threads), path = python;
  std::string script = peer_script(), flag = "-c";
  char* const arguments[] = {path.data(), flag.data(), script.data(), count.data(), nullptr};
  int pid = -1;
  const int error = ::posix_spawnp(&pid, path.c_str(), &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return unavailable(python + ": " + std::strerror(error));
  // While this process has them open, the end of the other one is not noticed.
  to.close(0);
  from.close(1);
  std::unique_ptr<Peer> peer(new Peer());
  peer->pid_ = pid;
  peer->to_ = to.release(1);
  peer->from_ = from.release(0);
  peer->lines_ = files::LineReader(peer->from_);
  const Expected<std::string> line = peer->ask("", kStartSeconds);
  if (!line) return unavailable(python + ": " + line.status().message());
  const Expected<Json> hello = parse(*line);
  if (!hello) return unavailable(python + ": " + hello.status().message());
  if (!hello->contains("version") || !(*hello)["version"].is_string()) {
    return unavailable(python + ": it states no version");
  }
  peer->version_ = (*hello)["version"].get<std::string>();
  return peer;
}

Peer::~Peer() {
  ::close(to_);  // it ends at the end of its input
  ::close(from_);
  for (int i = 0; i < 100; ++i) {
    if (::waitpid(pid_, nullptr, WNOHANG) != 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

Status Peer::end(const std::string& why) {
  ended_ = true;
  return unavailable(why);
}

Expected<std::string> Peer::ask(const std::string& line, int timeout_seconds) {
  if (ended_) return end("it ended");
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t written = ::write(to_, line.data() + done, line.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return end("it ended");
    done += static_cast<std::size_t>(written);
  }
  using Lines = files::LineReader;
  std::string answer;
  switch (lines_.next(Lines::Clock::now() + std::chrono::seconds(timeout_seconds), &answer)) {
    case Lines::Event::kLine: return answer;
    case Lines::Event::kTimeout: return end("it does not answer");
    case Lines::Event::kEnd: break;
  }
  return end("it ended, or has no PyTorch");
}

Expected<double> Peer::turn(const Case& c) {
  const Expected<Json> words = words_of(c);
  if (!words) return words.status();
  const Expected<std::string> line = ask(words->dump() + "\n", kTurnSeconds);
  if (!line) return line.status();
  const Expected<Json> json = parse(*line);
  if (!json) return json.status();
  if (!json->contains("seconds") || !(*json)["seconds"].is_number()) {
    return unavailable("it states no time");
  }
  const double seconds = (*json)["seconds"].get<double>();
  if (!(seconds > 0.0)) return unavailable("it states no time");
  return seconds;
}

}  // namespace regard::guide
