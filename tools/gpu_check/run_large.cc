#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tools/gpu_check/bench_case.h"
#include "tools/gpu_check/cases.h"
#include "tools/gpu_check/phase.h"

// Tensors of more than 2^31 elements: the last sequence must have the results of a call of its own,
// whose tensors are smaller than that.

namespace regard::gpu_check {
namespace {

constexpr double kTolerance =
    0.05;  // of the largest number near it, for backends with no fixed bits

double number_at(const char* bytes, std::size_t size) {
  std::uint32_t bits = 0;  // bf16 is the upper half of f32
  std::memcpy(reinterpret_cast<char*>(&bits) + sizeof(bits) - size, bytes, size);
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

/// The first element that differs, or `count`.
std::size_t first_difference(const std::vector<char>& a, const std::vector<char>& b,
                             std::size_t size, std::size_t count, bool is_exact) {
  if (std::memcmp(a.data(), b.data(), count * size) == 0) return count;
  double largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::abs(number_at(&b[i * size], size)));
  }
  for (std::size_t i = 0; i < count; ++i) {
    const double x = number_at(&a[i * size], size), y = number_at(&b[i * size], size);
    const bool is_close = std::abs(x - y) <= kTolerance * largest;  // false for NaN
    if (is_exact ? std::memcmp(&a[i * size], &b[i * size], size) != 0 : !is_close) return i;
  }
  return count;
}

/// "", or where the last entry of `whole` differs from `one`.
std::string difference(DeviceMemory& memory, const TensorView& whole, const TensorView& one,
                       bool is_exact) {
  const auto size = static_cast<std::size_t>(size_of(one.dtype));
  const auto count = static_cast<std::size_t>(one.num_elements());
  const char* last = static_cast<const char*>(whole.data) +
                     (whole.shape[0] - 1) * whole.strides[0] * static_cast<std::int64_t>(size);
  constexpr std::size_t kChunk = std::size_t{16} << 20;
  std::vector<char> a(std::min(count, kChunk) * size), b(a.size());
  for (std::size_t at = 0; at < count; at += kChunk) {
    const std::size_t elements = std::min(kChunk, count - at);
    if (!memory.download(a.data(), last + at * size, elements * size) ||
        !memory.download(b.data(), static_cast<const char*>(one.data) + at * size,
                         elements * size)) {
      return "copying from the device failed";
    }
    const std::size_t found = first_difference(a, b, size, elements, is_exact);
    if (found != elements) {
      return "differs from a call of the last sequence alone from element " +
             std::to_string(at + found) + " of that sequence on";
    }
  }
  return "";
}

std::string difference(DeviceMemory& memory, const AttentionGradRequest& whole,
                       const AttentionGradRequest& one, bool is_exact) {
  constexpr std::pair<TensorView AttentionGradRequest::*, const char*> kOutputs[] = {
      {&AttentionGradRequest::out, "out"},
      {&AttentionGradRequest::lse, "lse"},
      {&AttentionGradRequest::d_q, "d_q"},
      {&AttentionGradRequest::d_k, "d_k"},
      {&AttentionGradRequest::d_v, "d_v"}};
  for (const auto& [tensor, name] : kOutputs) {
    if (!(one.*tensor).present()) continue;
    const std::string found = difference(memory, whole.*tensor, one.*tensor, is_exact);
    if (!found.empty()) return std::string(name) + " " + found;
  }
  return "";
}

/// The case's call with `whole`'s last sequence, or all of it; `line` says why there is none.
std::unique_ptr<BenchCase> call(Session& session, const Case& c, const BackendRef& backend,
                                const CaseTensors* whole, JsonLine* line) {
  Expected<Plan> made = plan(session.context(), c.params, conformance::policy_for(c, backend));
  if (!made) {
    line->add("result", "refused").add("detail", made.status().to_string());
    return nullptr;
  }
  auto ran = std::make_unique<BenchCase>(session.memory(), c.params, *std::move(made), whole);
  if (ran->error().empty() && c.params.features.has(Feature::kNeedsGrad)) ran->execute(true);
  std::string error = session.memory().wait();
  if (!ran->error().empty()) error = ran->error();
  if (error.empty()) return ran;
  const bool lacks_memory = error.find("no memory left") != error.npos;
  line->add("result", lacks_memory ? "refused" : "failed").add("detail", error);
  return nullptr;
}

}  // namespace

std::vector<Item> list_large(const Setup& setup) {
  std::vector<Item> items;
  for (const char* words : kLarge) {
    for (const BackendInfo& info : setup.backends) {
      // Unfused scores of these sizes take MATH minutes.
      if (info.ref.id != BackendId::kMath) items.push_back({words, to_string(info.ref), ""});
    }
  }
  return items;
}

JsonLine run_large(Session& session, const Item& item) {
  const Case c = case_of(session.setup, item.words);
  BackendRef backend;
  bool is_exact = false;
  for (const BackendInfo& info : session.setup.backends) {
    if (to_string(info.ref) != item.backend) continue;
    backend = info.ref;
    is_exact = info.determinism >= Determinism::kBatchInvariant;
  }
  JsonLine line;
  const auto whole = call(session, c, backend, nullptr, &line);
  if (whole == nullptr) return line;
  Case last = c;
  last.params.batch = 1;
  const auto one = call(session, last, backend, &whole->tensors(), &line);
  if (one == nullptr) return line;
  const std::string found =
      difference(session.memory(), whole->request(), one->request(), is_exact);
  const bool is_backward = c.params.features.has(Feature::kNeedsGrad);
  line.add("result", found.empty() ? "passed" : "failed").add("kernel", whole->kernel(is_backward));
  if (!found.empty()) line.add("detail", found);
  return line;
}

}  // namespace regard::gpu_check
