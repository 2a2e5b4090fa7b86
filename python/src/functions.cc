#include <string>
#include <vector>

#include "bind_block_mask.h"
#include "call.h"
#include "read_functions.h"

// Score and mask functions: their texts, and the tensors that they read.

namespace regard::python {
namespace {

TensorView Buffers::*const kCapturedViews[kMaxCaptured] = {
    &Buffers::captured0, &Buffers::captured1, &Buffers::captured2, &Buffers::captured3,
    &Buffers::captured4, &Buffers::captured5, &Buffers::captured6, &Buffers::captured7};

/// The address of a C function: an int, what numba's @cfunc returns, or a function pointer of
/// ctypes.
void* address_of(nb::handle function, const char* name) {
  nb::object address = nb::borrow(function);
  if (nb::hasattr(function, "address")) {
    address = function.attr("address");
  } else if (!PyLong_Check(function.ptr())) {
    const nb::module_ ctypes = nb::module_::import_("ctypes");
    if (!nb::isinstance(function, ctypes.attr("_CFuncPtr"))) {
      raise_type(std::string(name) + " (" + repr(function.ptr()) +
                 ") must be the address of a C function, numba's @cfunc or a function pointer of "
                 "ctypes");
    }
    address = ctypes.attr("cast")(function, ctypes.attr("c_void_p")).attr("value");
  }
  void* const found = address.is_none() ? nullptr : PyLong_AsVoidPtr(address.ptr());
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  if (found == nullptr) raise_value(std::string(name) + " must not be a null pointer");
  return found;
}

}  // namespace

Expression read_function(PyObject* text, const char* name) {
  Expected<Expression> parsed =
      Expression::parse(read_text(text, name, "text, or an expression of regard.score_functions"));
  if (!parsed) raise_value(std::string(name) + ": " + parsed.status().message());
  return *std::move(parsed);
}

FunctionTexts function_texts(const FunctionTexts& given) {
  const auto is_text = [](const nb::object& x) { return x.is_none() || PyUnicode_Check(x.ptr()); };
  if (is_text(given.score) && is_text(given.mask)) return given;
  const nb::object resolve = nb::module_::import_("regard.score_functions").attr("_of_a_call");
  const nb::tuple texts(resolve(given.score, given.mask, given.captured));
  return {nb::object(texts[0]), nb::object(texts[1]), nb::object(texts[2])};
}

void read_captured(const nb::object& given, Inputs* inputs, Buffers* buffers) {
  if (given.is_none()) return;
  PyObject* const list = given.ptr();
  if (!PyList_Check(list) && !PyTuple_Check(list)) {
    raise_type("captured (" + repr(list) + ") must be a list of arrays");
  }
  const Py_ssize_t count = PySequence_Size(list);
  if (count > kMaxCaptured) {
    raise_value("captured (" + std::to_string(count) + " arrays) must be at most " +
                std::to_string(kMaxCaptured));
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    nb::object item = nb::steal(PySequence_GetItem(list, i));
    if (!item.is_valid()) throw nb::python_error();
    const std::string name = "captured" + std::to_string(i);
    buffers->*kCapturedViews[i] =
        inputs->any_view(array_from(item.ptr(), name.c_str()), name.c_str());
    inputs->keep(std::move(item));
  }
}

void Call::read_functions(const Arguments& arguments) {
  const bool has_functions = arguments.given(kScoreFunction) || arguments.given(kMaskFunction);
  if (!has_functions && arguments.given(kCaptured) == nullptr) return;
  const auto given = [&](Arg arg) {
    PyObject* const value = arguments.given(arg);
    return value == nullptr ? nb::none() : nb::borrow(value);
  };
  const FunctionTexts texts =
      function_texts({given(kScoreFunction), given(kMaskFunction), given(kCaptured)});
  if (!texts.score.is_none()) {
    request.options.score_function = read_function(texts.score.ptr(), "score_function");
  }
  if (!texts.mask.is_none()) {
    request.options.mask_function = read_function(texts.mask.ptr(), "mask_function");
  }
  read_captured(texts.captured, &inputs_, &request);
}

void Call::read_score_callback(const Arguments& arguments) {
  PyObject* const given = arguments.given(kScoreCallback);
  if (given == nullptr) return;
  nb::object edit = nb::borrow(given);
  nb::object gradient = nb::none();
  if (PyTuple_Check(given)) {
    if (PyTuple_GET_SIZE(given) != 2) {
      raise_type("score_callback (" + repr(given) +
                 ") must be a function, or one and its gradient");
    }
    edit = nb::borrow(PyTuple_GET_ITEM(given, 0));
    gradient = nb::borrow(PyTuple_GET_ITEM(given, 1));
  }
  ScoreCallback& callback = request.score_callback;
  callback.edit = reinterpret_cast<ScoreCallback::Edit>(address_of(edit, "score_callback"));
  if (!gradient.is_none()) {
    callback.gradient = reinterpret_cast<ScoreCallback::Gradient>(
        address_of(gradient, "the gradient of score_callback"));
  }
  inputs_.keep(std::move(edit));
  inputs_.keep(std::move(gradient));
}

/// A BlockMask has its own block sizes, and may have been made for longer lengths.
void Call::take_block_mask(const BlockMask& mask) {
  const bool packed_q = request.cu_seqlens_q.present(), packed_kv = request.cu_seqlens_kv.present();
  const Expected<TensorView> view =
      mask.view(packed_q ? request.max_seqlen_q : request.q.shape[2],
                packed_kv ? request.max_seqlen_kv : rows_of_keys(request));
  if (!view) raise_value("block_mask: " + view.status().message());
  request.block_mask = *view;
  request.options.block_size_q = mask.block_size_q();
  request.options.block_size_kv = mask.block_size_kv();
}

void Call::read_block_mask(const Arguments& arguments) {
  PyObject* const given = arguments.given(kBlockMask);
  if (given != nullptr) {
    if (const BlockMask* const mask = block_mask_in(given); mask != nullptr) {
      take_block_mask(*mask);
    } else {
      request.block_mask = inputs_.any_view(array_from(given, "block_mask"), "block_mask");
    }
  }
  const auto read_size = [&](Arg arg, std::int64_t* size) {
    PyObject* const value = arguments.given(arg);
    if (value == nullptr) return;
    const std::int64_t stated = read_int64(value, name_of(arg));
    if (*size != 0 && stated != 0 && stated != *size) {
      raise_value(std::string(name_of(arg)) + " (" + std::to_string(stated) +
                  ") must be left out: block_mask has blocks of " + std::to_string(*size));
    }
    *size = *size == 0 ? stated : *size;
  };
  read_size(kBlockSizeQ, &request.options.block_size_q);
  read_size(kBlockSizeKv, &request.options.block_size_kv);
}

}  // namespace regard::python
