#pragma once

#include <memory>
#include <string>

#include "regard/case.h"
#include "regard/status.h"
#include "tools/files/line_reader.h"

namespace regard::guide {

/// PyTorch in a process of its own, which computes the same problems.
class Peer {
 public:
  /// Starts `python`; kUnavailable with the reason where it has no PyTorch or does not answer.
  static Expected<std::unique_ptr<Peer>> start(const std::string& python, std::int32_t threads);
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  const std::string& version() const noexcept { return version_; }  // "torch 2.9.0"
  /// Seconds of a call: the median of a turn of some 20 ms. An error states why it has none.
  Expected<double> turn(const Case& c);

 private:
  Peer() = default;
  Expected<std::string> ask(const std::string& line, int timeout_seconds);
  Status end(const std::string& why);

  int pid_ = -1;
  int to_ = -1, from_ = -1;
  std::string version_;
  files::LineReader lines_;
  bool ended_ = false;  // a late answer would be taken for that to a later question
};

}  // namespace regard::guide
