#include "arguments.h"

#include <cstring>
#include <string>

#include "errors.h"
#include "numpy_api.h"

namespace regard::python {
namespace {

constexpr const char* kNames[kArgCount] = {"q",
                                           "k",
                                           "v",
                                           "attn_mask",
                                           "attn_bias",
                                           "is_causal",
                                           "diagonal",
                                           "window",
                                           "softmax_scale",
                                           "softcap",
                                           "score_function",
                                           "mask_function",
                                           "captured",
                                           "score_callback",
                                           "block_mask",
                                           "block_size_q",
                                           "block_size_kv",
                                           "alibi_slopes",
                                           "sinks",
                                           "seqlens_q",
                                           "seqlens_kv",
                                           "segment_ids_q",
                                           "segment_ids_kv",
                                           "cu_seqlens_q",
                                           "cu_seqlens_kv",
                                           "max_seqlen_q",
                                           "max_seqlen_kv",
                                           "lengths",
                                           "lengths_kv",
                                           "padding",
                                           "page_table",
                                           "cache_batch_idx",
                                           "cache_leftpad",
                                           "shared_prefix_kv",
                                           "k_new",
                                           "v_new",
                                           "tree_mask",
                                           "scales_k",
                                           "scales_v",
                                           "channel_scales_k",
                                           "scales_q",
                                           "scale_layout",
                                           "allow_future_scales",
                                           "quantize_probs",
                                           "k_dtype",
                                           "v_dtype",
                                           "rotary_cos",
                                           "rotary_sin",
                                           "rotary_interleaved",
                                           "hadamard",
                                           "positions",
                                           "descale_q",
                                           "descale_k",
                                           "descale_v",
                                           "fp8_recipe",
                                           "d_out_dtype",
                                           "gradient_dtype",
                                           "dropout_p",
                                           "seed",
                                           "layout",
                                           "backends",
                                           "policy",
                                           "return_lse",
                                           "return_scores",
                                           "return_saved",
                                           "out_amax",
                                           "out",
                                           "d_out",
                                           "saved",
                                           "d_lse",
                                           "delta",
                                           "descale_d_out",
                                           "scales_d_out",
                                           "gradient_scales",
                                           "return_amax"};

PyObject* interned[kArgCount];

/// The argument of that name at or after `from`, around the end; kArgCount where there is none.
int find(PyObject* name, int from) {
  for (int i = 0; i < kArgCount; ++i) {
    const int at = from + i < kArgCount ? from + i : from + i - kArgCount;
    if (interned[at] == name) return at;
  }
  // A name that was made at run time need not be interned.
  for (int at = 0; at < kArgCount; ++at) {
    if (PyUnicode_CompareWithASCIIString(name, kNames[at]) == 0) return at;
  }
  return kArgCount;
}

bool accepts(const Signature& signature, int arg) noexcept {
  return arg < kArgCount && signature.accepted.has[arg];
}

std::string names_of(std::initializer_list<Arg> args) {
  std::string text;
  for (const Arg arg : args) text += (text.empty() ? "" : ", ") + std::string(kNames[arg]);
  return text;
}

std::string accepted_keywords(const Signature& signature) {
  std::string text;
  for (int i = 0; i < kArgCount; ++i) {
    if (accepts(signature, i)) text += (text.empty() ? "" : ", ") + std::string(kNames[i]);
  }
  return text;
}

}  // namespace

const char* name_of(Arg arg) noexcept { return kNames[arg]; }

int arg_named(const char* name) noexcept {
  int arg = 0;
  while (arg < kArgCount && std::strcmp(kNames[arg], name) != 0) ++arg;
  return arg;
}

bool intern_argument_names() noexcept {
  for (int i = 0; i < kArgCount; ++i) {
    interned[i] = PyUnicode_InternFromString(kNames[i]);
    if (interned[i] == nullptr) return false;
  }
  return true;
}

Arguments parse_arguments(const Signature& signature, const CallArgs& call) {
  Arguments arguments;
  if (call.positional > static_cast<Py_ssize_t>(signature.positional.size())) {
    raise_type(std::string(signature.function) + "() takes " + names_of(signature.positional) +
               " by position, and " + std::to_string(call.positional) +
               " were given; the options are keywords");
  }
  for (Py_ssize_t i = 0; i < call.positional; ++i) {
    arguments.value[signature.positional.begin()[i]] = call.values[i];
  }
  const Py_ssize_t count = call.keywords == nullptr ? 0 : PyTuple_GET_SIZE(call.keywords);
  int next = 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* const name = PyTuple_GET_ITEM(call.keywords, i);
    const int at = find(name, next);
    if (!accepts(signature, at)) {
      if (PyUnicode_CompareWithASCIIString(name, "backend") == 0) {
        raise_type(std::string(signature.function) +
                   "() got an unexpected keyword 'backend'; write " +
                   "backends=" + repr(call.values[call.positional + i]) +
                   ", which takes one name or a list in order of preference");
      }
      raise_type(std::string(signature.function) + "() got an unexpected keyword " + repr(name) +
                 "; accepted are " + accepted_keywords(signature));
    }
    if (arguments.value[at] != nullptr) {
      raise_type(std::string(signature.function) + "() got " + kNames[at] + " twice");
    }
    arguments.value[at] = call.values[call.positional + i];
    next = at + 1 < kArgCount ? at + 1 : 0;
  }
  return arguments;
}

bool read_bool(PyObject* object, const char* name) {
  if (object == Py_True) return true;
  if (object == Py_False) return false;
  if (!PyArray_IsScalar(object, Bool)) {
    raise_type(std::string(name) + " (" + repr(object) + ") must be True or False");
  }
  return PyObject_IsTrue(object) == 1;
}

double read_double(PyObject* object, const char* name) {
  if (PyFloat_CheckExact(object)) return PyFloat_AS_DOUBLE(object);
  if (!PyBool_Check(object) && PyNumber_Check(object)) {
    const double value = PyFloat_AsDouble(object);
    if (value != -1.0 || PyErr_Occurred() == nullptr) return value;
    const bool is_too_large = PyErr_ExceptionMatches(PyExc_OverflowError) != 0;
    clear_error();
    if (is_too_large) {
      raise_value(std::string(name) + " (" + repr(object) +
                  ") must be a number that float64 holds");
    }
  }
  raise_type(std::string(name) + " (" + repr(object) + ") must be a number");
}

std::int64_t read_int64(PyObject* object, const char* name) {
  if (PyBool_Check(object) || !PyIndex_Check(object)) {
    raise_type(std::string(name) + " (" + repr(object) + ") must be an integer");
  }
  const nb::object index = nb::steal(PyNumber_Index(object));
  if (!index.is_valid()) throw nb::python_error();
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0) {
    raise_value(std::string(name) + " (" + repr(object) + ") must fit 64 bits with a sign");
  }
  return value;
}

std::uint64_t read_uint64(PyObject* object, const char* name) {
  if (PyBool_Check(object) || !PyIndex_Check(object)) {
    raise_type(std::string(name) + " (" + repr(object) + ") must be an integer, 0 to 2**64 - 1");
  }
  const nb::object index = nb::steal(PyNumber_Index(object));
  if (!index.is_valid()) throw nb::python_error();
  const unsigned long long value = PyLong_AsUnsignedLongLong(index.ptr());
  if (PyErr_Occurred() != nullptr) {
    clear_error();
    raise_value(std::string(name) + " (" + repr(object) + ") must be 0 to 2**64 - 1");
  }
  return value;
}

const char* read_text(PyObject* object, const char* name, const char* accepted) {
  if (!PyUnicode_Check(object)) {
    raise_type(std::string(name) + " (" + repr(object) + ") must be " + accepted);
  }
  Py_ssize_t length = 0;
  const char* text = PyUnicode_AsUTF8AndSize(object, &length);
  if (text == nullptr) clear_error();  // lone surrogates
  if (text == nullptr || std::strlen(text) != static_cast<std::size_t>(length)) {
    raise_value(std::string(name) + " (" + repr(object) + ") must be " + accepted +
                ", without NUL characters and lone surrogates");
  }
  return text;
}

Diagonal read_diagonal_word(PyObject* object, const char* accepted) {
  const char* const word = read_text(object, "diagonal", accepted);
  if (std::strcmp(word, "top_left") == 0) return Diagonal::kTopLeft;
  if (std::strcmp(word, "bottom_right") == 0) return Diagonal::kBottomRight;
  raise_value("diagonal (" + repr(object) + ") must be " + accepted);
}

std::pair<std::int64_t, std::int64_t> read_window(PyObject* object) {
  constexpr const char* kAccepted = "a pair of integers (left, right), -1 where it is unlimited";
  if (!PyTuple_Check(object) && !PyList_Check(object)) {
    raise_type("window (" + repr(object) + ") must be " + kAccepted);
  }
  if (PySequence_Fast_GET_SIZE(object) != 2) {
    raise_value("window (" + repr(object) + ") must be " + kAccepted);
  }
  // New references: another thread may change a list meanwhile.
  const nb::object left = nb::steal(PySequence_GetItem(object, 0));
  const nb::object right = nb::steal(PySequence_GetItem(object, 1));
  if (!left.is_valid() || !right.is_valid()) throw nb::python_error();
  return {read_int64(left.ptr(), "window[0]"), read_int64(right.ptr(), "window[1]")};
}

}  // namespace regard::python
