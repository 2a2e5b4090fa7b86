#define REGARD_IMPORTS_NUMPY
#include "numpy_api.h"
// after NumPy, whose macros say which file holds its table
#include <nanobind/nanobind.h>

#include "bind_attention.h"
#include "bind_backward.h"
#include "bind_benchmark.h"
#include "bind_block_mask.h"
#include "bind_device.h"
#include "bind_frozen.h"
#include "bind_info.h"
#include "bind_lengths.h"
#include "bind_merge.h"
#include "bind_policy.h"
#include "bind_ranks.h"
#include "bind_trace.h"
#include "regard/version.h"
#include "saved.h"

namespace {

// import_array() is a macro that returns from the function it stands in.
bool import_numpy() {
  import_array1(false);
  return true;
}

}  // namespace

NB_MODULE(_core, module) {
  if (!import_numpy()) throw nanobind::python_error();
  // A policy that lives until the interpreter ends is no fault of its user's; the tests count
  // references.
  nanobind::set_leak_warnings(false);
  module.doc() = "The compiled part of regard.";
  module.attr("__version__") = regard::version();
  regard::python::bind_policy(module);
  regard::python::bind_saved(module);
  regard::python::bind_attention(module);
  regard::python::bind_backward(module);
  regard::python::bind_benchmark(module);
  regard::python::bind_block_mask(module);
  regard::python::bind_device(module);
  regard::python::bind_frozen(module);
  regard::python::bind_info(module);
  regard::python::bind_lengths(module);
  regard::python::bind_merge(module);
  regard::python::bind_ranks(module);
  regard::python::bind_trace(module);
}
