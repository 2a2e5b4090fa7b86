#include "tools/gpu_check/child.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <iostream>

namespace regard::gpu_check {
namespace {

// What a profiler runs; no phase of its own.
constexpr Phase kLaunch = {"launch", "", 0, 0, nullptr, run_launch};

const Phase* find_phase(const std::string& name) {
  for (const Phase& phase : phases()) {
    if (phase.name == name && phase.run != nullptr) return &phase;
  }
  return name == kLaunch.name ? &kLaunch : nullptr;
}

std::vector<Item> read_items() {
  std::vector<Item> items;
  for (std::string text; std::getline(std::cin, text);) {
    if (const std::optional<JsonLine> line = JsonLine::parse(text)) items.push_back(to_item(*line));
  }
  return items;
}

JsonLine run_item(const Phase& phase, Session& session, const Item& item) {
  try {
    return phase.run(session, item);
  } catch (const NotPresent&) {
    throw;
  } catch (const std::exception& error) {
    return JsonLine().add("result", "failed").add("detail", error.what());
  }
}

/// Whether a kernel's fault is every later call's error.
bool is_lost(Session& session, const Phase& phase, const JsonLine& result) {
  // Tools run another process; they may hold no device here.
  const bool uses_device = phase.run != run_sanitizer && phase.run != run_profile;
  return uses_device && result.text("result") == "failed" && !session.memory().wait().empty();
}

}  // namespace

JsonLine to_line(const Item& item) {
  return JsonLine()
      .add("case", item.words)
      .add("backend", item.backend)
      .add("variant", item.variant);
}

Item to_item(const JsonLine& line) {
  return {line.text("case"), line.text("backend"), line.text("variant")};
}

int run_child(const std::string& name, const Setup& setup) {
  const Phase* phase = find_phase(name);
  if (phase == nullptr) {
    std::fprintf(stderr, "[gpu_check] --child (%s) must be a phase of this program\n",
                 name.c_str());
    return 2;
  }
  // Whatever else prints goes to standard error.
  const int protocol = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  dup2(STDERR_FILENO, STDOUT_FILENO);
  const auto print = [&](const std::string& line) {
    static_cast<void>(!write(protocol, (line + "\n").data(), line.size() + 1));
  };
  const std::vector<Item> items = read_items();
  Session session(setup);
  try {
    for (std::size_t i = 0; i < items.size(); ++i) {
      print("begin " + std::to_string(i));
      const JsonLine result = run_item(*phase, session, items[i]);
      print(result.dump());
      if (is_lost(session, *phase, result)) return kLostDevice;
    }
  } catch (const NotPresent& why) {
    print(std::string("missing ") + why.what());
  }
  return 0;
}

}  // namespace regard::gpu_check
