#include "inputs.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "arguments.h"

namespace regard::python {
namespace {

std::atomic<std::uint64_t> copies{0};
std::atomic<std::uint64_t> copied_bytes{0};

/// Fills the view, of `rank` dimensions with extents of 1 in front. Returns why the core cannot
/// take it, or null when it can.
const char* fill_view(const Array& array, int rank, bool dense_last, TensorView* view) {
  PyArrayObject* const a = array.array;
  view->data = PyArray_DATA(a);
  view->dtype = array.dtype;
  view->read_only = !PyArray_ISWRITEABLE(a);
  view->rank = rank;
  const npy_intp size = size_of(array.dtype);
  const int missing = rank - PyArray_NDIM(a);
  const char* why = nullptr;
  if (PyArray_SIZE(a) == 0) {  // NumPy's strides mean nothing where there is no element
    for (int i = rank - 1; i >= 0; --i) {
      view->shape[i] = i < missing ? 1 : PyArray_DIM(a, i - missing);
      view->strides[i] =
          i == rank - 1 ? 1 : view->strides[i + 1] * std::max<std::int64_t>(view->shape[i + 1], 1);
    }
    return nullptr;
  }
  for (int i = 0; i < rank; ++i) {
    view->shape[i] = i < missing ? 1 : PyArray_DIM(a, i - missing);
    const npy_intp bytes = i < missing ? 0 : PyArray_STRIDE(a, i - missing);
    if (view->shape[i] <= 1) {
      view->strides[i] = bytes > 0 && bytes % size == 0 ? bytes / size : 0;
    } else if (bytes < 0) {
      why = "it has a negative stride";
    } else if (bytes % size != 0) {
      why = "its elements lie no multiple of their size apart";
    } else {
      view->strides[i] = bytes / size;
    }
  }
  if (dense_last) {
    std::int64_t& last = view->strides[rank - 1];
    if (view->shape[rank - 1] <= 1) last = 1;
    if (last != 1 && why == nullptr) why = "its last dimension is not dense";
  }
  if (PyArray_ISBYTESWAPPED(a)) why = "its byte order is not this machine's";
  if (!PyArray_ISALIGNED(a)) why = "its elements are not aligned";
  return why;
}

[[noreturn]] void raise_rank(const Array& array, const char* name, const char* expected) {
  raise_value("rank of " + std::string(name) + " (" + std::to_string(PyArray_NDIM(array.array)) +
              ", from " + describe_array(array) + ") must be " + expected);
}

std::string row_order_words(RowOrder order) {
  switch (order) {
    case RowOrder::kBhsd: return "4, [batch, heads, positions, head_dim] (layout BHSD)";
    case RowOrder::kBshd: return "4, [batch, positions, heads, head_dim] (layout BSHD)";
    case RowOrder::kPacked: break;
  }
  return "3, [total, heads, head_dim] of packed sequences";
}

const char* dtype_word(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64: return "float64";
    case Dtype::kF32: return "float32";
    case Dtype::kF16: return "float16";
    default: return "bfloat16";
  }
}

/// Any array-like of numbers; lists included, for these arrays are small. `types`: what a message
/// says of the dtype.
Array small_array(PyObject* object, const char* name, const char* types) {
  if (is_array(object)) return array_from(object, name, types);
  PyObject* const made = PyArray_FROM_O(object);
  if (made == nullptr) {
    clear_error();
    raise_type(std::string(name) + " (" + repr(object) + ") must be an array of numbers");
  }
  const nb::object owner = nb::steal(made);
  const int typenum = PyArray_TYPE(reinterpret_cast<PyArrayObject*>(made));
  if (typenum == NPY_OBJECT || PyTypeNum_ISUNSIGNED(typenum)) {  // NumPy's types of larger integers
    raise_value(std::string(name) + " (" + repr(object) +
                ") must be an array of numbers, integers within int64");
  }
  Array array = array_from(made, name, types);
  array.owner = owner;
  return array;
}

constexpr const char* kIntegerTypes = "an integer type: int32, int64, int8 or uint8";
constexpr const char* kNumberTypes =
    "a float type, or an integer type: int32, int64, int8 or uint8";

/// A finite number of float64 that float32 has not would become infinite there.
void check_float32_range(const Array& array, const char* name) {
  if (array.dtype != Dtype::kF64) return;
  const nb::object numbers = converted(array, NPY_DOUBLE);
  auto* const from = reinterpret_cast<PyArrayObject*>(numbers.ptr());
  const auto* values = static_cast<const double*>(PyArray_DATA(from));
  for (npy_intp i = 0; i < PyArray_SIZE(from); ++i) {
    if (!std::isfinite(values[i]) || std::isfinite(static_cast<float>(values[i]))) continue;
    const nb::object value = nb::float_(values[i]);
    raise_value(std::string(name) + " holds " + repr(value.ptr()) + " at " + std::to_string(i) +
                ", which must fit float32");
  }
}

void put_in_order(TensorView& view, RowOrder order) noexcept {
  if (order == RowOrder::kBhsd) return;
  std::swap(view.shape[1], view.shape[2]);
  std::swap(view.strides[1], view.strides[2]);
}

}  // namespace

bool is_u4(PyObject* word, const char* name) {
  if (word == nullptr) return false;
  constexpr const char* kAccepted =
      "'u4' (or 'int4'), or left out: other types are the array's own";
  const std::string_view text = read_text(word, name, kAccepted);
  if (text == "u4" || text == "int4") return true;
  raise_value(std::string(name) + " (" + repr(word) + ") must be " + kAccepted);
}

TensorView as_u4(TensorView view, const std::string& name, const std::string& given) {
  if (view.dtype != Dtype::kU8) {
    raise_type("dtype of " + name + " (" + given + ") must be uint8 with " + name +
               "_dtype='u4': two codes in a byte");
  }
  view.dtype = Dtype::kU4;
  view.shape[3] *= 2;
  for (int i = 0; i < 3; ++i) view.strides[i] *= 2;
  return view;
}

std::int64_t rows_of_keys(const AttentionRequest& request) noexcept {
  const TensorView& table = request.page_table;
  const std::int64_t pages = table.present() && table.rank == 2 ? table.shape[1] : 1;
  std::int64_t rows = 0;  // too many are describe's to refuse
  const bool fits = !__builtin_mul_overflow(request.k.shape[2], pages, &rows);
  return fits ? rows : std::numeric_limits<std::int64_t>::max();
}

CopyCounters copy_counters() noexcept {
  return {copies.load(std::memory_order_relaxed), copied_bytes.load(std::memory_order_relaxed)};
}

Array Inputs::copied(const Array& array, int typenum, const std::string& why) {
  nb::object made = explain_only_
                        ? new_array(PyArray_NDIM(array.array), PyArray_DIMS(array.array), typenum)
                        : converted(array, typenum);
  Array result = array;
  result.array = reinterpret_cast<PyArrayObject*>(made.ptr());
  result.owner = std::move(made);
  const auto bytes = static_cast<std::uint64_t>(PyArray_NBYTES(result.array));
  if (!explain_only_) {
    copies.fetch_add(1, std::memory_order_relaxed);
    copied_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  notes_.push_back(why + " (" + std::to_string(bytes) + " bytes)");
  return result;
}

TensorView Inputs::tensor(PyObject* object, const char* name, RowOrder order) {
  Array array = array_from(object, name);
  const bool may_be_codes = std::strcmp(name, "k") == 0 || std::strcmp(name, "v") == 0;
  if (!is_float(array.dtype) && !(may_be_codes && array.dtype == Dtype::kI8)) {
    raise_type("dtype of " + std::string(name) + " (" + describe_array(array) +
               ") must be float64, float32, float16, bfloat16, float8_e4m3fn or float8_e5m2" +
               (may_be_codes
                    ? std::string(", or int8 with scales, or uint8 with ") + name + "_dtype='u4'"
                    : ""));
  }
  return rows_of(std::move(array), name, order);
}

TensorView Inputs::packed_codes(PyObject* object, const char* name, RowOrder order) {
  const Array array = array_from(object, name);
  const std::string given = describe_array(array);
  if (array.dtype != Dtype::kU8) return as_u4({.dtype = array.dtype}, name, given);  // raises
  return as_u4(rows_of(array, name, order), name, given);
}

TensorView Inputs::rows_of(Array array, const char* name, RowOrder order) {
  if (PyArray_NDIM(array.array) != (order == RowOrder::kPacked ? 3 : 4)) {
    const bool may_be_packed = order != RowOrder::kPacked && PyArray_NDIM(array.array) == 3;
    const std::string hint =
        may_be_packed ? "; packed sequences need lengths, or cu_seqlens_q and cu_seqlens_kv" : "";
    raise_rank(array, name, (row_order_words(order) + hint).c_str());
  }
  TensorView view;
  if (const char* why = fill_view(array, 4, true, &view); why != nullptr) {
    Array copy = copied(array, PyArray_TYPE(array.array), std::string(name) + " is copied: " + why);
    fill_view(copy, 4, true, &view);
    keep(std::move(copy.owner));
  }
  if (array.owner.is_valid()) keep(std::move(array.owner));
  put_in_order(view, order);
  return view;
}

TensorView Inputs::scores(const Array& given, const char* name, Dtype dtype_q) {
  Array array = given;
  if (PyArray_NDIM(array.array) < 1 || PyArray_NDIM(array.array) > 4) {
    raise_rank(array, name, "1 to 4, broadcasting to [batch, q heads, queries, keys]");
  }
  const Dtype dtype = array.dtype;
  if (is_float(dtype) && dtype != Dtype::kF32 && dtype != Dtype::kF64 && dtype != dtype_q) {
    array = copied(array, NPY_FLOAT,
                   std::string(name) + " is converted from " + dtype_word(dtype) +
                       " to float32: it must be float32, float64 or q's type");
    array.dtype = Dtype::kF32;
  }
  TensorView view;
  if (const char* why = fill_view(array, 4, false, &view); why != nullptr) {
    array = copied(array, PyArray_TYPE(array.array), std::string(name) + " is copied: " + why);
    fill_view(array, 4, false, &view);
  }
  if (array.owner.is_valid()) keep(std::move(array.owner));
  return view;
}

TensorView Inputs::any_view(const Array& given, const char* name) {
  Array array = given;
  const int rank = PyArray_NDIM(array.array);
  if (rank < 1 || rank > kMaxRank) raise_rank(array, name, "1 to 4");
  TensorView view;
  if (const char* why = fill_view(array, rank, false, &view); why != nullptr) {
    array = copied(array, PyArray_TYPE(array.array), std::string(name) + " is copied: " + why);
    fill_view(array, rank, false, &view);
  }
  if (array.owner.is_valid()) keep(std::move(array.owner));
  return view;
}

TensorView Inputs::integers(PyObject* object, const char* name, const char* shape, bool wide) {
  Array array = small_array(object, name, kIntegerTypes);
  PyArrayObject* const a = array.array;
  const bool is_empty_list = PyArray_SIZE(a) == 0 && !is_array(object);  // NumPy makes it float64
  if (!PyArray_ISINTEGER(a) && !is_empty_list) {
    raise_type("dtype of " + std::string(name) + " (" + describe_array(array) + ") must be " +
               kIntegerTypes);
  }
  if (PyArray_NDIM(a) < 1 || PyArray_NDIM(a) > kMaxRank) raise_rank(array, name, shape);
  const Dtype wanted = wide ? Dtype::kI64 : Dtype::kI32;
  TensorView view;
  if (array.dtype == wanted && fill_view(array, PyArray_NDIM(a), false, &view) == nullptr) {
    if (array.owner.is_valid()) keep(std::move(array.owner));
    return view;
  }
  const nb::object numbers = converted(array, NPY_INT64);
  auto* const from = reinterpret_cast<PyArrayObject*>(numbers.ptr());
  const auto* values = static_cast<const std::int64_t*>(PyArray_DATA(from));
  for (npy_intp i = 0; !wide && i < PyArray_SIZE(from); ++i) {
    if (values[i] >= std::numeric_limits<std::int32_t>::min() &&
        values[i] <= std::numeric_limits<std::int32_t>::max()) {
      continue;
    }
    raise_value(std::string(name) + " holds " + std::to_string(values[i]) + " at " +
                std::to_string(i) + ", which must fit int32");
  }
  const bool explain_only = std::exchange(explain_only_, false);  // small: its values are checked
  Array copy = copied({from, wanted, numbers}, wide ? NPY_INT64 : NPY_INT32,
                      std::string(name) + " is converted to " + (wide ? "int64" : "int32"));
  explain_only_ = explain_only;
  fill_view(copy, PyArray_NDIM(copy.array), false, &view);
  keep(std::move(copy.owner));
  return view;
}

TensorView Inputs::starts(PyObject* object, const char* name) {
  constexpr const char* kTypes = "int32 or int64";
  Array array = small_array(object, name, kTypes);
  if (array.dtype != Dtype::kI32 && array.dtype != Dtype::kI64) {
    raise_type("dtype of " + std::string(name) + " (" + describe_array(array) + ") must be " +
               kTypes);
  }
  if (PyArray_NDIM(array.array) != 1) raise_rank(array, name, "1, [sequences + 1]");
  TensorView view;
  if (const char* why = fill_view(array, 1, true, &view); why != nullptr) {
    const bool explain_only = std::exchange(explain_only_, false);  // small: its values are read
    array = copied(array, PyArray_TYPE(array.array), std::string(name) + " is copied: " + why);
    explain_only_ = explain_only;
    fill_view(array, 1, true, &view);
  }
  if (array.owner.is_valid()) keep(std::move(array.owner));
  return view;
}

TensorView Inputs::numbers(PyObject* object, const char* name, const char* shape) {
  return numbers_of(small_array(object, name, kNumberTypes), name, shape);
}

TensorView Inputs::number_or_numbers(PyObject* object, const char* name, const char* shape) {
  Array array = small_array(object, name, kNumberTypes);
  if (PyArray_NDIM(array.array) == 0) {
    PyObject* const row = PyArray_Ravel(array.array, NPY_CORDER);
    if (row == nullptr) throw nb::python_error();
    if (array.owner.is_valid()) keep(std::move(array.owner));
    array.array = reinterpret_cast<PyArrayObject*>(row);
    array.owner = nb::steal(row);
  }
  return numbers_of(std::move(array), name, shape);
}

TensorView Inputs::numbers_of(Array array, const char* name, const char* shape) {
  const bool is_number = is_float(array.dtype) && !is_f8(array.dtype);
  if (!is_number && !PyArray_ISINTEGER(array.array)) {
    raise_type("dtype of " + std::string(name) + " (" + describe_array(array) + ") must be " +
               kNumberTypes);
  }
  if (PyArray_NDIM(array.array) < 1 || PyArray_NDIM(array.array) > 2) {
    raise_rank(array, name, shape);
  }
  TensorView view;
  const bool fits = array.dtype == Dtype::kF32 &&
                    fill_view(array, PyArray_NDIM(array.array), false, &view) == nullptr;
  if (!fits) {
    check_float32_range(array, name);
    array = copied(array, NPY_FLOAT, std::string(name) + " is converted to float32");
    array.dtype = Dtype::kF32;
    fill_view(array, PyArray_NDIM(array.array), false, &view);
  }
  if (array.owner.is_valid()) keep(std::move(array.owner));
  return view;
}

TensorView Inputs::output(const Array& array) const {
  TensorView view;
  fill_view(array, PyArray_NDIM(array.array), false, &view);
  return view;
}

TensorView Inputs::output_rows(const Array& array) const {
  TensorView view;
  fill_view(array, 4, true, &view);
  put_in_order(view, order_);
  return view;
}

}  // namespace regard::python
