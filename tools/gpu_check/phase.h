#pragma once

#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "conformance/run.h"
#include "regard/context.h"
#include "tools/gpu_check/device_runner.h"
#include "tools/gpu_check/json_line.h"
#include "tools/gpu_check/measure.h"

// What is checked: phases, in order of worth, each a list of cases.

namespace regard::gpu_check {

/// What phases list their cases from.
struct Setup {
  bool rehearse = false;
  long random_cases = 0;
  std::string program;                // this file
  std::vector<BackendInfo> backends;  // of this build, for the device
};

/// One case of a phase; what a result belongs to.
struct Item {
  std::string words;    // of the case
  std::string backend;  // what runs it
  std::string variant;  // what else tells two items apart: a direction, a tool
};

/// What runs a phase's cases in a process of its own.
class Session {
 public:
  explicit Session(const Setup& from) : setup(from) {}
  const Setup& setup;

  Context& context() { return context_; }
  /// Throws where the device is gone.
  DeviceMemory& memory();
  CudaDeviceRunner& runner();
  Bench bench();

  std::optional<conformance::PreparedCase> prepared;  // the truth of the last case
  std::string prepared_words;

 private:
  Context context_;
  std::unique_ptr<DeviceMemory> memory_;
  std::optional<CudaDeviceRunner> runner_;
};

/// Ends a phase with the result "not present".
struct NotPresent : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Phase {
  const char* name;
  const char* answers;  // its question
  double seconds;       // for all of it
  double case_seconds;  // for one case
  std::vector<Item> (*list)(const Setup& setup);
  /// The result of one case: a line with "result", which is passed, refused, failed or measured.
  JsonLine (*run)(Session& session, const Item& item);  // null: a script runs the cases
  const char* script = nullptr;                         // of Python, beside the program
  bool is_counted = false;                              // many cases: the report counts them
};

std::span<const Phase> phases();

/// The case of these words on the session's device; in a rehearsal, whose host would take minutes,
/// with short sequences.
Case case_of(const Setup& setup, const std::string& words);

std::vector<Item> list_conformance(const Setup& setup);
JsonLine run_conformance(Session& session, const Item& item);
std::vector<Item> list_random(const Setup& setup);
JsonLine run_random(Session& session, const Item& item);

JsonLine run_rates(Session& session, const Item& item);
JsonLine run_speed(Session& session, const Item& item);
JsonLine run_cudnn(Session& session, const Item& item);
JsonLine run_overhead(Session& session, const Item& item);
/// Launches a case once, for a profiler.
JsonLine run_launch(Session& session, const Item& item);

JsonLine run_cudnn_answer(Session& session, const Item& item);

std::vector<Item> list_sanitizer(const Setup& setup);
JsonLine run_sanitizer(Session& session, const Item& item);
std::vector<Item> list_profile(const Setup& setup);
JsonLine run_profile(Session& session, const Item& item);

std::vector<Item> list_large(const Setup& setup);
JsonLine run_large(Session& session, const Item& item);

}  // namespace regard::gpu_check
