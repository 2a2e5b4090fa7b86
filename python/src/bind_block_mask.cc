#include "bind_block_mask.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>

#include "arguments.h"
#include "gil.h"
#include "read_functions.h"
#include "regard/block_mask.h"

namespace regard::python {
namespace {

using nb::literals::operator""_a;

constexpr const char* kBlockMaskDoc =
    "What is known of a mask function in blocks of queries and keys: which of them it hides, and\n"
    "which it leaves whole. regard.create_block_mask makes it. Read-only.";

constexpr const char* kCreateDoc =
    R"(What is known of a mask function in blocks of queries and keys, for attention(block_mask=).

mask_function is a text or an expression of regard.score_functions; captured is what it reads, as in
attention. block_size is one number, or (queries, keys). A function that reads b or h has blocks of
each of batch sequences or num_heads query heads. diagonal, 'top_left', 'bottom_right' or an integer
offset, is for functions that read q_pos. Blocks that bounds of the function decide are not looked at;
in the others every element is evaluated.

    >>> import numpy as np, regard
    >>> mask = regard.create_block_mask('kv_idx<=q_idx&q_idx-kv_idx<200', seqlen_q=512, seqlen_kv=512)
    >>> mask
    <regard.BlockMask of 128 x 128, [1,1,4,4], 43.8 % empty, 56.3 % partial>
    >>> print(mask.to_text().replace(' ', '.'), end='')  # + partial, # full, nothing where empty
    +...
    ++..
    +++.
    .+++
    >>> mask.blocks[0, 0, 0].tolist()  # 0 empty, 1 partial, 2 full
    [1, 0, 0, 0]
    >>> x = np.ones((1, 2, 300, 64), np.float32)  # shorter than what it was made for
    >>> regard.attention(x, x, x, mask_function='kv_idx<=q_idx&q_idx-kv_idx<200', block_mask=mask).shape
    (1, 2, 300, 64)

Raises TypeError or ValueError for an argument, with its name, its value and what is accepted.

More: `python -m regard docs score_functions`.)";

std::int64_t read_extent(nb::handle value, const char* name) {
  const std::int64_t extent = read_int64(value.ptr(), name);
  if (extent >= 0) return extent;
  raise_value(std::string(name) + " (" + repr(value.ptr()) + ") must be 0 or more");
}

void read_diagonal(nb::handle diagonal, AttentionParams* params, Buffers* buffers) {
  constexpr const char* kAccepted = "'top_left', 'bottom_right' or an integer offset";
  if (diagonal.is_none()) return;
  if (!PyUnicode_Check(diagonal.ptr())) {
    params->diagonal = Diagonal::kOffset;
    buffers->diagonal_offset = read_int64(diagonal.ptr(), "diagonal");
    return;
  }
  params->diagonal = read_diagonal_word(diagonal.ptr(), kAccepted);
}

std::pair<std::int64_t, std::int64_t> read_block_size(nb::handle size) {
  if (!PyTuple_Check(size.ptr()) && !PyList_Check(size.ptr())) {
    const std::int64_t one = read_int64(size.ptr(), "block_size");
    return {one, one};
  }
  const nb::tuple sizes = nb::borrow<nb::tuple>(nb::steal(PySequence_Tuple(size.ptr())));
  if (sizes.size() != 2) {
    raise_value("block_size (" + repr(size.ptr()) + ") must be an integer, or (queries, keys)");
  }
  return {read_int64(sizes[0].ptr(), "block_size[0]"), read_int64(sizes[1].ptr(), "block_size[1]")};
}

BlockMask create_block_mask(nb::object mask_function, nb::object seqlen_q, nb::object seqlen_kv,
                            nb::object batch, nb::object num_heads, nb::object captured,
                            nb::object block_size, nb::object diagonal) {
  AttentionParams params;
  Buffers buffers;
  Inputs inputs(RowOrder::kBhsd, /*explain_only=*/false);
  FunctionTexts given{nb::none(), std::move(mask_function), std::move(captured)};
  const nb::object expression = nb::module_::import_("regard.score_functions").attr("Expression");
  if (nb::isinstance(given.mask, expression)) given = function_texts(given);
  params.mask_function = read_function(given.mask.ptr(), "mask_function");
  read_captured(given.captured, &inputs, &buffers);
  params.seqlen_q = read_extent(seqlen_q, "seqlen_q");
  params.seqlen_kv = read_extent(seqlen_kv, "seqlen_kv");
  params.batch = read_extent(batch, "batch");
  params.num_heads_q = params.num_heads_kv = read_extent(num_heads, "num_heads");
  read_diagonal(diagonal, &params, &buffers);
  const auto [size_q, size_kv] = read_block_size(block_size);
  Expected<BlockMask> made = [&] {
    const GilRelease unlocked;
    return BlockMask::make(params, buffers, size_q, size_kv);
  }();
  if (!made) raise_status(made.status());
  return *std::move(made);
}

/// The blocks as a read-only array whose memory `owner`, a BlockMask, keeps.
nb::object array_of(nb::handle owner, const TensorView& view) {
  npy_intp shape[4], strides[4];
  for (int i = 0; i < 4; ++i) {
    shape[i] = static_cast<npy_intp>(view.shape[i]);
    strides[i] = static_cast<npy_intp>(view.strides[i]);
  }
  static std::uint8_t none;  // NumPy would allocate where the pointer is null
  PyObject* const made = PyArray_New(&PyArray_Type, 4, shape, NPY_UINT8, strides,
                                     view.data == nullptr ? &none : view.data, 0, 0, nullptr);
  if (made == nullptr) throw nb::python_error();
  nb::object array = nb::steal(made);
  if (PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(made), owner.inc_ref().ptr()) != 0) {
    throw nb::python_error();
  }
  return array;
}

nb::object view_of(nb::handle self, nb::object seqlen_q, nb::object seqlen_kv) {
  const auto view = nb::cast<const BlockMask&>(self).view(read_int64(seqlen_q.ptr(), "seqlen_q"),
                                                          read_int64(seqlen_kv.ptr(), "seqlen_kv"));
  if (!view) raise_status(view.status());
  return array_of(self, *view);
}

std::string drawing(const BlockMask& mask, std::int64_t b, std::int64_t h) {
  const TensorView view = mask.view();
  for (const auto& [name, at, count] :
       {std::tuple{"b", b, view.shape[0]}, std::tuple{"h", h, view.shape[1]}}) {
    if (at >= 0 && at < count) continue;
    throw nb::index_error((std::string(name) + " (" + std::to_string(at) +
                           ") must be 0 or more and less than " + std::to_string(count))
                              .c_str());
  }
  return to_text(mask, b, h);
}

}  // namespace

const BlockMask* block_mask_in(PyObject* object) {
  const BlockMask* mask = nullptr;
  return nb::try_cast<const BlockMask*>(nb::handle(object), mask, false) ? mask : nullptr;
}

void bind_block_mask(nb::module_& module) {
  nb::class_<BlockMask>(module, "BlockMask", nb::is_weak_referenceable(), kBlockMaskDoc)
      .def_prop_ro(
          "block_size",
          [](const BlockMask& m) { return nb::make_tuple(m.block_size_q(), m.block_size_kv()); },
          "(queries, keys) of a block.")
      .def_prop_ro(
          "shape",
          [](const BlockMask& m) {
            const TensorView view = m.view();
            return nb::make_tuple(view.shape[0], view.shape[1], m.seqlen_q(), m.seqlen_kv());
          },
          "(sequences, heads, queries, keys); 1 where the function does not read b or h.")
      .def_prop_ro("empty", &BlockMask::empty, "The share of blocks that are hidden, 0 to 1.")
      .def_prop_ro("partial", &BlockMask::partial,
                   "The share of blocks that are neither hidden nor whole, 0 to 1.")
      .def_prop_ro(
          "blocks",
          [](nb::handle self) { return array_of(self, nb::cast<const BlockMask&>(self).view()); },
          "uint8 [1 or batch, 1 or heads, blocks of queries, blocks of keys], read-only: 0 empty, "
          "1 "
          "partial, 2 full.")
      .def("view", &view_of, "seqlen_q"_a, "seqlen_kv"_a,
           "The blocks of shorter lengths, as a growing cache has them; it shares the memory.")
      .def("to_text", &drawing, "b"_a = 0, "h"_a = 0,
           "A drawing of one head, a row of blocks a line: ' ' empty, '+' partial, '#' full.")
      .def("__repr__", [](const BlockMask& m) {
        return "<regard.BlockMask" + to_string(m).substr(std::strlen("<block mask"));
      });
  module.def("create_block_mask", &create_block_mask, "mask_function"_a, nb::kw_only(),
             "seqlen_q"_a, "seqlen_kv"_a, "batch"_a = 1, "num_heads"_a = 1,
             "captured"_a.none() = nb::none(), "block_size"_a = 128,
             "diagonal"_a.none() = nb::none(), kCreateDoc);
}

}  // namespace regard::python
