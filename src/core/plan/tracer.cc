#include "core/plan/tracer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/json_writer.h"
#include "core/text/thrown_by.h"

namespace regard {

const char* to_string(Direction direction) noexcept {
  return direction == Direction::kForward ? "forward" : "backward";
}

const KernelPlan* CallTrace::kernel() const noexcept {
  if (plan.empty()) return nullptr;
  return direction == Direction::kForward ? &plan.kernel() : &plan.backward_kernel();
}

Shares shares_of(const CallTrace& call, const MachineRates& rates) noexcept {
  const bool is_on_cpu = call.params && call.params->device.type == DeviceType::kCpu;
  if (!is_on_cpu || call.ns <= 0) return {};
  const auto share = [&](double amount, double per_ns) {
    return per_ns > 0.0 ? amount / static_cast<double>(call.ns) / per_ns : 0.0;
  };
  return {share(call.work.operations, peak_gflops(rates, *call.params)),
          share(call.work.bytes, rates.read_gbps)};
}

std::vector<Calibration> calibration(std::span<const CallTrace> calls, double limit) {
  using Group = std::tuple<std::string, std::string, Direction>;
  std::map<Group, std::pair<Calibration, std::vector<double>>> groups;
  for (const CallTrace& call : calls) {
    const bool counts = call.status.ok() && call.params && !call.plan.empty() && call.ns > 0;
    if (!counts || !(call.predicted.seconds > 0.0)) continue;
    Calibration made;
    made.problem = to_string(*call.params);
    made.backend = call.plan.backend();
    made.direction = call.direction;
    made.predicted_seconds = call.predicted.seconds;
    made.spread = call.predicted.spread;
    const Group group{made.problem, to_string(made.backend), made.direction};
    auto& kept = groups.try_emplace(group, std::move(made), std::vector<double>{}).first->second;
    kept.second.push_back(static_cast<double>(call.ns) * 1e-9);
  }
  std::vector<Calibration> rows;
  for (auto& [group, kept] : groups) {
    auto& [row, seconds] = kept;
    const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
    std::nth_element(seconds.begin(), middle, seconds.end());
    row.calls = static_cast<std::int64_t>(seconds.size());
    row.measured_seconds = *middle;
    row.ratio = row.measured_seconds / row.predicted_seconds;
    if (limit <= 1.0 || row.ratio > limit || row.ratio < 1.0 / limit) rows.push_back(row);
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Calibration& a, const Calibration& b) {
    return std::abs(std::log(a.ratio)) > std::abs(std::log(b.ratio));
  });
  return rows;
}

std::string to_json(const CallTrace& call) {
  JsonWriter w;
  w.begin_object().key("direction").value(to_string(call.direction));
  if (call.params) w.key("case").value(to_string(*call.params));
  if (const KernelPlan* kernel = call.kernel()) {
    w.key("backend").value(to_string(call.plan.backend()));
    w.key("kernel").value(kernel->kernel);
    w.key("isa").value(to_string(kernel->isa));
    w.key("workers").value(kernel->workers);
    w.key("workspace_bytes").value(kernel->workspace_bytes);
  }
  w.key("ns").value(call.ns);
  w.key("predicted_seconds");
  call.predicted.known() ? w.value(call.predicted.seconds) : w.null();
  w.key("operations").value(call.work.operations);
  w.key("bytes").value(call.work.bytes);
  w.key("status").value(to_string(call.status.code()));
  if (!call.status.ok()) w.key("message").value(call.status.message());
  w.end_object();
  return w.str();
}

Tracer::Tracer(std::string_view log_level) : log_(log_level) { update_active(); }

void Tracer::update_active() {
  const bool reports = function_ != nullptr || recorder_ != nullptr || log_.wants(LogLevel::kTrace);
  active_.store(reports && !closed_, std::memory_order_relaxed);
}

void Tracer::set_function(TraceFunction function, void* user) {
  const std::unique_lock lock(mutex_);
  function_ = function;
  user_ = user;
  update_active();
}

void Tracer::set_log_level(LogLevel level) {
  const std::unique_lock lock(mutex_);
  log_.set_level(level);
  update_active();
}

Status Tracer::set_record(const std::string& path) {
  auto made = path.empty() ? nullptr : std::make_unique<Recorder>();
  if (Status s = made != nullptr ? made->set_file(path) : Status(); !s.ok()) return s;
  const std::unique_lock lock(mutex_);
  Status status = recorder_ != nullptr ? recorder_->flush() : Status();
  recorder_ = std::move(made);
  record_failed_ = false;
  update_active();
  return status;
}

void Tracer::record(const CallTrace& call) {
  if (recorder_ == nullptr || !call.status.ok() || !call.params) return;
  const Status status = recorder_->add(*call.params, call.direction);
  if (status.ok() || record_failed_.exchange(true)) return;
  log_.write_warning("calls cannot be recorded now: " + status.message());
}

void Tracer::close() {
  const std::unique_lock lock(mutex_);
  closed_ = true;
  if (recorder_ != nullptr) {
    if (const Status s = recorder_->flush(); !s.ok()) log_.write_warning(s.message());
    recorder_.reset();
  }
  update_active();
}

void Tracer::warn(std::string_view message) noexcept try {
  const std::shared_lock lock(mutex_);
  if (!closed_) log_.write_warning(message);
} catch (...) {
  // As in report().
}

void Tracer::report(const CallTrace& call) noexcept try {
  const std::shared_lock lock(mutex_);
  if (closed_) return;
  record(call);
  if (function_ != nullptr) {
    const auto thrown = thrown_by([&] { function_(user_, call); });
    if (thrown) log_.write_warning("the trace function threw: " + *thrown);
  }
  if (!log_.wants(LogLevel::kTrace)) return;
  JsonWriter w;
  w.begin_object().key("event").value("trace").key("call").raw(to_json(call)).end_object();
  log_.write(LogLevel::kTrace, w.str());
} catch (...) {
  // Out of memory, or a sink that throws: the line is lost, not the call's result.
}

}  // namespace regard
