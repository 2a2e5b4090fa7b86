#include "bind_merge.h"

#include <string>
#include <vector>

#include "arguments.h"
#include "call.h"
#include "gil.h"
#include "inputs.h"
#include "process_context.h"
#include "regard/request.h"

namespace regard::python {
namespace {

using nb::literals::operator""_a;

/// One (out, lse) pair of the list.
StateView read_state(Inputs& inputs, nb::handle pair, const std::string& name) {
  if ((!PyTuple_Check(pair.ptr()) && !PyList_Check(pair.ptr())) || nb::len(pair) != 2) {
    raise_type(name + " (" + repr(pair.ptr()) + ") must be a pair (out, lse)");
  }
  const nb::object out = pair[0];
  const nb::object lse = pair[1];
  StateView state;
  state.out = inputs.tensor(out.ptr(), (name + ".out").c_str());
  const std::string lse_name = name + ".lse";
  Array array = array_from(lse.ptr(), lse_name.c_str());
  if (PyArray_NDIM(array.array) != 3) {
    raise_value("rank of " + lse_name + " (" + describe_array(array) +
                ") must be 3, [batch, heads, positions]");
  }
  // Any strides will do here, so the copy that negative ones need is the only one.
  nb::object dense = converted(array, PyArray_TYPE(array.array));
  array.array = reinterpret_cast<PyArrayObject*>(dense.ptr());
  state.lse = inputs.output(array);
  inputs.keep(std::move(dense));
  return state;
}

nb::object merge(const nb::object& given, const nb::object& layout) {
  const RowOrder order = read_layout(layout.ptr());
  if (!nb::isinstance<nb::sequence>(given)) {
    raise_type("states (" + repr(given.ptr()) + ") must be a list of pairs (out, lse)");
  }
  const auto states = nb::borrow<nb::sequence>(given);
  Inputs inputs(order, /*explain_only=*/false);
  std::vector<StateView> views;
  std::size_t n = 0;
  for (nb::handle pair : states) {
    views.push_back(read_state(inputs, pair, "states[" + std::to_string(n++) + "]"));
  }
  if (views.empty()) raise_value("states ([]) must hold at least one pair (out, lse)");
  const nb::object like = states[0][0];
  const TensorView& first = views[0].out;
  npy_intp shape[4] = {first.shape[0], first.shape[1], first.shape[2], first.shape[3]};
  const Dtype lse_dtype = first.dtype == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32;
  const nb::object lse = new_array(3, shape, typenum_of(lse_dtype));
  if (order == RowOrder::kBshd) std::swap(shape[1], shape[2]);
  const nb::object out = new_array(4, shape, typenum_beside(like.ptr(), first.dtype));
  const auto array_of = [](const nb::object& object, Dtype dtype) {
    return Array{reinterpret_cast<PyArrayObject*>(object.ptr()), dtype, {}};
  };
  const TensorView out_view = inputs.output_rows(array_of(out, first.dtype));
  const TensorView lse_view = inputs.output(array_of(lse, lse_dtype));
  Context& context = process_context();
  Status status;
  {
    const GilRelease unlocked;
    status = merge_states(context, views, out_view, lse_view);
  }
  if (!status.ok()) raise_status(status);
  return nb::make_tuple(as_kind_of(like.ptr(), out, first.dtype),
                        as_kind_of(like.ptr(), lse, lse_dtype));
}

}  // namespace

void bind_merge(nb::module_& module) {
  module.def("merge_states", &merge, "states"_a.none(), nb::kw_only(), "layout"_a.none() = "BHSD",
             R"(Merges results over disjoint sets of keys into the result over all of them.

states is a list of pairs (out, lse) as attention(..., return_lse=True) returns them: out [batch,
heads, queries, head_dim] (layout='BSHD': positions before heads), lse [batch, heads, queries].
Returns such a pair, of the kind and type of the first.

    >>> import numpy as np, regard
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = (rng.standard_normal((1, 2, 8, 16), np.float32) for _ in range(3))
    >>> halves = [regard.attention(q, k[:, :, part], v[:, :, part], return_lse=True)
    ...           for part in (slice(0, 5), slice(5, 8))]
    >>> out, lse = regard.merge_states(halves)
    >>> bool(np.allclose(out, regard.attention(q, k, v), atol=1e-6))
    True

Raises TypeError or ValueError for a state of another shape or type, with its index.

More: `python -m regard docs semantics`.)");
}

}  // namespace regard::python
