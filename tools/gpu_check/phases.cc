#include "tools/gpu_check/phase.h"

#include "tools/gpu_check/cases.h"

namespace regard::gpu_check {
namespace {

std::vector<Item> on_backends(const Setup& setup, std::span<const char* const> cases) {
  std::vector<Item> items;
  for (const char* words : cases) {
    for (const BackendInfo& info : setup.backends) {
      items.push_back({words, to_string(info.ref), ""});
    }
  }
  return items;
}

std::vector<Item> both_directions(std::span<const char* const> cases) {
  std::vector<Item> items;
  for (const char* words : cases) {
    items.push_back({words, "cudnn", "forward"});
    items.push_back({words, "cudnn", "backward"});
  }
  return items;
}

std::vector<Item> list_rates(const Setup&) { return {{"rates", "", ""}}; }

std::vector<Item> list_speed(const Setup& setup) {
  std::vector<Item> items;
  for (const Item& item : on_backends(setup, kSpeeds)) {
    // Unfused scores of these sizes take MATH minutes.
    const AttentionParams p = parse_case(item.words).value().params;
    if (item.backend != "math" || p.seqlen_q * p.seqlen_kv <= std::int64_t{2048} * 2048) {
      items.push_back(item);
    }
  }
  return items;
}

std::vector<Item> list_torch(const Setup&) {
  std::vector<Item> items;
  for (const char* words : kSpeeds) {
    if (parse_case(words).value().params.dtype_q == Dtype::kF8E4M3) continue;
    for (const char* backend : {"torch cudnn", "torch flash", "torch efficient"}) {
      items.push_back({words, backend, ""});
    }
  }
  return items;
}

std::vector<Item> list_cudnn(const Setup&) { return both_directions(kCompared); }
std::vector<Item> list_unclaimed(const Setup&) { return both_directions(kUnclaimed); }

std::vector<Item> list_python(const Setup&) {
  std::vector<Item> items;
  for (const char* words : kPython) items.push_back({words, "regard.torch", ""});
  return items;
}

std::vector<Item> list_overhead(const Setup& setup) {
  const char* const cases[] = {kOverhead};
  return on_backends(setup, cases);
}

// In order of worth: a run that is cut off has the answers of the first ones.
const Phase kPhases[] = {
    {"rates", "what device is this, and how fast is it without attention?", 25, 25, list_rates,
     run_rates},
    {"conformance", "are results of directed cases right?", 60, 20, list_conformance,
     run_conformance, nullptr, true},
    {"speed", "how fast is each backend?", 60, 20, list_speed, run_speed},
    {"cudnn", "what does regard add to cuDNN, which is called in turns?", 30, 15, list_cudnn,
     run_cudnn},
    {"torch", "how fast are PyTorch's backends on the same cases?", 60, 20, list_torch, nullptr,
     "gpu_check_torch.py"},
    {"unclaimed", "what does cuDNN answer to cases that CUDNN does not claim?", 40, 20,
     list_unclaimed, run_cudnn_answer},
    {"sanitizer", "does compute-sanitizer find errors in our kernels?", 110, 40, list_sanitizer,
     run_sanitizer, nullptr, true},
    {"python", "are PyTorch's tensors and autograd right?", 45, 30, list_python, nullptr,
     "gpu_check_python.py"},
    {"large", "are tensors of more than 2^31 elements right?", 30, 20, list_large, run_large},
    {"overhead", "how long does a call take on the host?", 15, 10, list_overhead, run_overhead},
    {"profile", "what do ncu's counters say of three kernels?", 60, 30, list_profile, run_profile},
    {"random", "are results of random cases right?", 600, 20, list_random, run_random, nullptr,
     true},
};

}  // namespace

std::span<const Phase> phases() { return kPhases; }

}  // namespace regard::gpu_check
