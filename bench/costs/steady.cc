#include "bench/costs/steady.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "regard/attention.h"
#include "regard/case.h"

namespace regard::bench {
namespace {

constexpr int kCalls = 8;         // of some 0.7 ms each
constexpr double kSteady = 1.12;  // of the best time
constexpr int kPatience = 40;     // waits of 50 ms
constexpr const char* kReference = "b1 hq8 sq256 d64 f32";

}  // namespace

SteadyMachine::SteadyMachine(Context& context)
    : context_(context),
      problem_(
          conformance::make_problem(parse_case(kReference).value(), {conformance::Guard::kNone})) {
  constexpr int kStart = 20;
  for (int i = 0; i < kStart; ++i) reference_seconds();
}

bool SteadyMachine::wait() {
  for (int i = 0; i < kPatience; ++i) {
    if (is_steady()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return false;
}

bool SteadyMachine::is_steady() { return reference_seconds() < kSteady * best_; }

/// The mean: a program that takes turns with this one lengthens some of the calls. Refused calls
/// take no time, and are steady.
double SteadyMachine::reference_seconds() {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) {
    if (!attention(context_, problem_.request()).ok()) break;
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  const double seconds = taken.count() / kCalls;
  best_ = std::min(best_, seconds);
  return seconds;
}

}  // namespace regard::bench
