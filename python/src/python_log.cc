#include "python_log.h"

#include <nanobind/nanobind.h>

#include <atomic>
#include <csignal>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gil.h"
#include "regard/env.h"

namespace regard::python {
namespace {

namespace nb = nanobind;

struct Line {
  LogLevel level;
  std::string text;
};
thread_local std::vector<Line> lines;
thread_local bool is_flushing = false;

void keep_line(void*, LogLevel level, std::string_view text) {
  try {
    lines.push_back({level, std::string(text)});
  } catch (...) {
    // No memory: the line is lost, not the call's result.
  }
}

/// The number of logging's level.
long number_of(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::kTrace: return 10;  // DEBUG
    case LogLevel::kSelect: return 20;
    case LogLevel::kWarning: break;
  }
  return 30;
}

/// logging's logger, and the dictionary in which it remembers the levels that it takes: a look into
/// it takes 10 ns, the method isEnabledFor 60.
struct Logger {
  nb::object object;
  nb::object cache;  // {level: bool}, emptied when any level changes; null where there is none
  nb::object numbers[3];

  void log(const Line& line) const {
    PyObject* const number = numbers[static_cast<int>(line.level)].ptr();
    run_python(
        [&] { return PyObject_CallMethod(object.ptr(), "log", "Os", number, line.text.c_str()); });
  }

  bool takes(LogLevel level) const {
    const nb::object& number = numbers[static_cast<int>(level)];
    if (cache.is_valid()) {
      PyObject* const known = PyDict_GetItem(cache.ptr(), number.ptr());
      if (known != nullptr) return known == Py_True;
    }
    const nb::object answer = run_python(
        [&] { return PyObject_CallMethod(object.ptr(), "isEnabledFor", "O", number.ptr()); });
    return answer.ptr() == Py_True;
  }
};
std::atomic<const Logger*> logger{nullptr};  // made once, never destroyed
std::atomic<LogLevel> level_in_force{LogLevel::kWarning};

const std::string& value_of(const Env& env, std::string_view name) {
  static const std::string unset;
  for (const EnvVariable& variable : env.variables) {
    if (variable.name == name) return variable.value;
  }
  return unset;
}

const Logger* make_logger(const Context& context) {
  auto made = std::make_unique<Logger>();
  const std::string word = value_of(context.env(), "REGARD_LOG");
  made->object = run_function("regard._log", "start", "s", word.c_str());
  if (nb::hasattr(made->object, "_cache")) made->cache = made->object.attr("_cache");
  if (made->cache.is_valid() && !PyDict_CheckExact(made->cache.ptr())) made->cache.reset();
  for (const LogLevel level : {LogLevel::kWarning, LogLevel::kSelect, LogLevel::kTrace}) {
    made->numbers[static_cast<int>(level)] = nb::int_(number_of(level));
  }
  return made.release();
}

/// Reports an error of a logging handler, which is not the call's. Ctrl-C is raised after the call.
void discard_error(nb::python_error& error) noexcept {
  if (error.matches(PyExc_KeyboardInterrupt)) {
    PyErr_SetInterruptEx(SIGINT);
    return;
  }
  error.discard_as_unraisable("the logger of regard");
}

}  // namespace

void connect_log(Context& context) try {
  if (logger.load() == nullptr) logger.store(make_logger(context));
  level_in_force.store(LogLevel::kWarning);
  context.set_log_level(LogLevel::kWarning);
  context.set_log_sink(keep_line, nullptr);
} catch (nb::python_error& error) {
  discard_error(error);  // without a logger, lines go to stderr as REGARD_LOG states
}

void follow_logger(Context& context) try {
  const Logger* const found = logger.load(std::memory_order_acquire);
  if (found == nullptr) return;
  LogLevel level = LogLevel::kWarning;
  if (found->takes(LogLevel::kSelect)) {
    level = found->takes(LogLevel::kTrace) ? LogLevel::kTrace : LogLevel::kSelect;
  }
  if (level == level_in_force.load(std::memory_order_relaxed)) return;
  level_in_force.store(level, std::memory_order_relaxed);
  context.set_log_level(level);
} catch (nb::python_error& error) {
  discard_error(error);
}

void flush_log() noexcept {
  if (lines.empty() || is_flushing) return;
  const Logger* const found = logger.load(std::memory_order_acquire);
  if (found == nullptr) return;
  is_flushing = true;
  std::vector<Line> ready;
  ready.swap(lines);
  for (const Line& line : ready) {
    try {
      found->log(line);
    } catch (nb::python_error& error) {
      discard_error(error);
    }
  }
  lines.clear();  // of calls that a handler made itself
  is_flushing = false;
}

}  // namespace regard::python
