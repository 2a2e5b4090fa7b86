#include "signals.h"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>

#include "inputs.h"

namespace regard::python {
namespace {

namespace nb = nanobind;

/// Whether a call lasts some milliseconds at least; what a shorter one spends on signals would
/// show.
bool is_long(const AttentionRequest& request) {
  constexpr double kProducts = 1 << 28;
  const TensorView& q = request.q;
  const auto extent = [](std::int64_t n) { return static_cast<double>(n); };
  const bool packed = request.cu_seqlens_kv.present();
  const std::int64_t keys = packed ? request.max_seqlen_kv : rows_of_keys(request);
  const double pairs = extent(q.num_elements()) * extent(keys);
  return pairs * (1.0 + extent(request.v.shape[3]) / std::max(extent(q.shape[3]), 1.0)) > kProducts;
}

/// Python runs signal handlers on its main thread alone.
bool is_main_thread() {
  const nb::object main = nb::module_::import_("threading").attr("main_thread")();
  return nb::cast<unsigned long>(main.attr("ident")) == PyThread_get_thread_ident();
}

/// True where a handler raised; its error stays set.
bool run_signal_handlers(void*) noexcept {
  const nb::gil_scoped_acquire locked;
  return PyErr_CheckSignals() != 0;
}

}  // namespace

Interrupt* interrupt_by_signals(const AttentionRequest& request, std::optional<Interrupt>* place) {
  if (!is_long(request) || !is_main_thread()) return nullptr;
  return &place->emplace(run_signal_handlers);
}

}  // namespace regard::python
