#include "bind_lengths.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "array.h"
#include "gil.h"
#include "inputs.h"

namespace regard::python {
namespace {

using nb::literals::operator""_a;

constexpr const char* kLengthsDoc =
    "Which positions of a padded tensor [batch, seqlen, ...] hold rows, and where sequences begin\n"
    "once these rows are packed. Made once for a batch and handed to every layer.\n\n"
    "Lengths(mask=[batch, seqlen]): bool or integers, nonzero where a position holds a row;\n"
    "padding may be on either side and within a sequence.\n"
    "Lengths(seqlens=[batch], seqlen=n): int32 or int64, the first seqlens[b] positions.\n"
    "Lengths(position_ids=[batch, seqlen]): a sequence begins at each 0.";

Expected<Lengths> lengths_of(Inputs& inputs, nb::handle mask, nb::handle seqlens,
                             nb::handle position_ids, nb::handle seqlen) {
  if (!mask.is_none()) {
    nb::object made;  // of nested lists
    if (!is_array(mask.ptr())) made = nb::steal(PyArray_FROM_O(mask.ptr()));
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    const nb::handle array = made.is_valid() ? nb::handle(made) : mask;
    inputs.keep(made);
    return Lengths::from_mask(inputs.any_view(array_from(array.ptr(), "mask"), "mask"));
  }
  if (!position_ids.is_none()) {
    return Lengths::from_position_ids(
        inputs.integers(position_ids.ptr(), "position_ids", "2, [batch, seqlen]", /*wide=*/true));
  }
  if (seqlen.is_none()) raise_type("seqlen is missing; seqlens need the seqlen of the tensor");
  return Lengths::from_seqlens(
      inputs.integers(seqlens.ptr(), "seqlens", "1, [batch]", /*wide=*/true),
      read_int64(seqlen.ptr(), "seqlen"));
}

void make_lengths(Lengths* self, nb::object mask, nb::object seqlens, nb::object position_ids,
                  nb::object seqlen) {
  const int given = !mask.is_none() + !seqlens.is_none() + !position_ids.is_none();
  if (given != 1) {
    raise_type("Lengths() takes one of mask, seqlens and position_ids, and " +
               std::to_string(given) + " were given");
  }
  if (seqlens.is_none() && !seqlen.is_none()) {
    raise_type("seqlen (" + repr(seqlen.ptr()) + ") is for seqlens; the others state it");
  }
  Inputs inputs(RowOrder::kBhsd, /*explain_only=*/false);
  Expected<Lengths> made = lengths_of(inputs, mask, seqlens, position_ids, seqlen);
  if (!made) raise_status(made.status());
  new (self) Lengths(*std::move(made));
}

/// A read-only array of numbers that `owner` holds.
nb::object array_in(nb::handle owner, const void* data, std::size_t count, int typenum) {
  const npy_intp shape[1] = {static_cast<npy_intp>(count)};
  PyObject* const made = PyArray_SimpleNewFromData(1, shape, typenum, const_cast<void*>(data));
  if (made == nullptr) throw nb::python_error();
  nb::object array = nb::steal(made);
  auto* const numbers = reinterpret_cast<PyArrayObject*>(made);
  PyArray_CLEARFLAGS(numbers, NPY_ARRAY_WRITEABLE);
  if (PyArray_SetBaseObject(numbers, owner.inc_ref().ptr()) != 0) throw nb::python_error();
  return array;
}

/// (name, array): the argument that makes an equal Lengths. Where a row of the tensor has several
/// sequences, every position holds a row, so position_ids say it; else a mask does.
nb::tuple state_of(const Lengths& lengths) {
  const npy_intp shape[2] = {static_cast<npy_intp>(lengths.batch()),
                             static_cast<npy_intp>(lengths.seqlen())};
  const bool has_mask = lengths.num_sequences() == lengths.batch();
  nb::object array = new_array(2, shape, has_mask ? NPY_BOOL : NPY_INT64);
  void* const data = PyArray_DATA(reinterpret_cast<PyArrayObject*>(array.ptr()));
  if (has_mask) {
    auto* const mask = static_cast<npy_bool*>(data);
    std::fill_n(mask, shape[0] * shape[1], npy_bool{0});
    for (const std::int64_t index : lengths.indices()) mask[index] = 1;
  } else {
    auto* position = static_cast<std::int64_t*>(data);
    const auto starts = lengths.cu_seqlens();
    for (std::size_t b = 0; b + 1 < starts.size(); ++b) {
      for (std::int32_t i = starts[b]; i < starts[b + 1]; ++i) *position++ = i - starts[b];
    }
  }
  return nb::make_tuple(has_mask ? "mask" : "position_ids", array);
}

void restore_lengths(Lengths* self, const nb::tuple& state) {
  if (state.size() != 2) raise_value("state of a Lengths must be a name and an array");
  const bool has_mask = nb::cast<std::string>(state[0]) == "mask";
  const nb::object array = state[1], none = nb::none();
  make_lengths(self, has_mask ? array : none, none, has_mask ? none : array, none);
}

/// x as the core takes it: what lies behind more than four dimensions is one.
Array rows_of(PyObject* x, const char* name, int leading) {
  Array array = array_from(x, name);
  const int rank = PyArray_NDIM(array.array);
  if (rank < leading) {
    raise_value("rank of " + std::string(name) + " (" + describe_array(array) + ") must be " +
                (leading == 2 ? "2 or more, [batch, seqlen, ...]" : "1 or more, [total, ...]"));
  }
  if (rank <= leading + 2) return array;
  nb::list shape;
  npy_intp row = 1;
  for (int i = 0; i < rank; ++i) {
    const npy_intp extent = PyArray_DIM(array.array, i);
    if (i < leading) shape.append(extent);
    if (i >= leading) row *= extent;
  }
  shape.append(row);
  nb::object flat =
      nb::handle(reinterpret_cast<PyObject*>(array.array)).attr("reshape")(nb::tuple(shape));
  array.array = reinterpret_cast<PyArrayObject*>(flat.ptr());
  array.owner = std::move(flat);
  return array;
}

/// Runs `copy` from x into a new array that begins with `leading` extents in the place of x's
/// first `dropped`.
nb::object copied_rows(PyObject* x, const char* name, const std::vector<npy_intp>& leading,
                       int dropped,
                       Status (*copy)(const Lengths&, const TensorView&, const TensorView&),
                       const Lengths& lengths) {
  const Array rows = rows_of(x, name, dropped);
  std::vector<npy_intp> shape = leading;
  for (int i = dropped; i < PyArray_NDIM(rows.array); ++i) {
    shape.push_back(PyArray_DIM(rows.array, i));
  }
  nb::object made =
      new_array(static_cast<int>(shape.size()), shape.data(), PyArray_TYPE(rows.array));
  Inputs inputs(RowOrder::kBhsd, /*explain_only=*/false);
  const TensorView from = inputs.any_view(rows, name);
  const TensorView to =
      inputs.output({reinterpret_cast<PyArrayObject*>(made.ptr()), rows.dtype, {}});
  Status status;
  {
    const GilRelease unlocked;
    status = copy(lengths, from, to);
  }
  if (!status.ok()) raise_status(status);
  const nb::object own = nb::handle(x).attr("shape");
  nb::list full;
  for (const npy_intp extent : leading) full.append(extent);
  for (std::size_t i = static_cast<std::size_t>(dropped); i < nb::len(own); ++i) {
    full.append(own[i]);
  }
  return as_kind_of(x, made.attr("reshape")(nb::tuple(full)), rows.dtype);
}

nb::object unpad_array(nb::object x, nb::object given) {
  const Lengths& lengths = read_lengths(given.ptr(), "lengths");
  return copied_rows(x.ptr(), "x", {lengths.total()}, 2, unpad, lengths);
}

nb::object pad_array(nb::object packed, nb::object given) {
  const Lengths& lengths = read_lengths(given.ptr(), "lengths");
  return copied_rows(packed.ptr(), "packed", {lengths.batch(), lengths.seqlen()}, 1, pad, lengths);
}

}  // namespace

const Lengths& read_lengths(PyObject* object, const char* name) {
  const Lengths* lengths = nullptr;
  if (!nb::try_cast<const Lengths*>(nb::handle(object), lengths, false) || lengths == nullptr) {
    raise_type(std::string(name) + " (" + repr(object) + ") must be a regard.Lengths");
  }
  return *lengths;
}

void bind_lengths(nb::module_& module) {
  nb::class_<Lengths>(module, "Lengths", nb::is_weak_referenceable(), kLengthsDoc)
      .def("__init__", &make_lengths, nb::kw_only(), "mask"_a.none() = nb::none(),
           "seqlens"_a.none() = nb::none(), "position_ids"_a.none() = nb::none(),
           "seqlen"_a.none() = nb::none())
      .def_prop_ro("batch", &Lengths::batch, "The first extent of the padded tensor.")
      .def_prop_ro("seqlen", &Lengths::seqlen, "The second extent of the padded tensor.")
      .def_prop_ro("num_sequences", &Lengths::num_sequences, "batch, but for position_ids.")
      .def_prop_ro("total", &Lengths::total, "How many positions hold rows.")
      .def_prop_ro("max_seqlen", &Lengths::max_seqlen, "The rows of the longest sequence.")
      .def_prop_ro(
          "indices",
          [](nb::handle self) {
            const auto rows = nb::cast<const Lengths&>(self).indices();
            return array_in(self, rows.data(), rows.size(), NPY_INT64);
          },
          "int64 [total]: where each row lies in the padded tensor, b * seqlen + s.")
      .def_prop_ro(
          "cu_seqlens",
          [](nb::handle self) {
            const auto starts = nb::cast<const Lengths&>(self).cu_seqlens();
            return array_in(self, starts.data(), starts.size(), NPY_INT32);
          },
          "int32 [num_sequences + 1]: the row with which each sequence begins, then total.")
      .def("__eq__",
           [](const Lengths& self, nb::handle other) {
             const Lengths* right = nullptr;
             return nb::try_cast<const Lengths*>(other, right, false) && right != nullptr &&
                    self == *right;
           })
      .def("__hash__",
           [](const Lengths& self) {
             const std::hash<std::int64_t> hash;
             return hash(self.batch()) ^ hash(self.seqlen() << 20) ^ hash(self.total() << 40) ^
                    hash(self.max_seqlen() << 10);
           })
      .def("__getstate__", &state_of)
      .def("__setstate__", &restore_lengths)
      .def("__repr__",
           [](const Lengths& self) { return "<regard.Lengths: " + to_string(self).substr(1); });
  module.def("unpad", &unpad_array, "x"_a, "lengths"_a,
             "The rows of x [batch, seqlen, ...] as [total, ...]; regard.unpad calls it.");
  module.def("pad", &pad_array, "packed"_a, "lengths"_a,
             "packed [total, ...] as [batch, seqlen, ...], zeros elsewhere; regard.pad calls it.");
}

}  // namespace regard::python
