#include "dlpack.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace regard::python {
namespace {

// DLPack's public structures (ABI of version 1, and the unversioned one before it).
struct ManagedTensor {
  nb::dlpack::dltensor tensor;
  void* manager_context;
  void (*deleter)(ManagedTensor*);
};
struct ManagedTensorVersioned {
  std::uint32_t major, minor;
  void* manager_context;
  void (*deleter)(ManagedTensorVersioned*);
  std::uint64_t flags;
  nb::dlpack::dltensor tensor;
};
struct ExchangeHeader {
  std::uint32_t major, minor;
  ExchangeHeader* previous;
};
// What a library puts on its tensors' type (DLPack 1.3): some 20 ns where __dlpack__, written in
// Python, takes PyTorch's tensors 4 microseconds.
struct ExchangeApi {
  ExchangeHeader header;
  void (*allocate)();
  void (*from_object)();
  int (*to_object)(ManagedTensorVersioned*, void** object);
  int (*view_of_object)(void* object, nb::dlpack::dltensor* out);
  void (*current_stream)();
};
constexpr std::uint64_t kReadOnly = 1;
constexpr int kCpu = 1;
constexpr int kCudaHost = 3;
constexpr int kMaxDims = 32;

const char* device_name(int type) {
  switch (type) {
    case 2: return "cuda";
    case 4: return "opencl";
    case 7: return "vulkan";
    case 8: return "metal";
    case 10: return "rocm";
    case 13: return "cuda_managed";
    case 14: return "oneapi";
    default: return "device";
  }
}

void check_device(int type, const std::string& index, const char* name) {
  if (type == kCpu || type == kCudaHost) return;
  raise_value(std::string(name) + " is on " + device_name(type) + ":" + index +
              "; expected memory of a CPU, for this function takes no others");
}

void check_device(nb::handle object, const char* name) {
  if (!nb::hasattr(object, "__dlpack_device__")) return;
  const nb::object device = object.attr("__dlpack_device__")();
  check_device(nb::cast<int>(nb::int_(nb::object(device[0]))),
               nb::str(nb::object(device[1])).c_str(), name);
}

/// False inside torch.no_grad(), where no gradient is lost.
bool records_gradients() {
  PyObject* const torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
  if (torch == nullptr) return true;
  return nb::handle(torch).attr("is_grad_enabled")().ptr() == Py_True;
}

void check_gradient(nb::handle object, const char* name) {
  static PyObject* const word = PyUnicode_InternFromString("requires_grad");
  const nb::object wanted = nb::getattr(object, nb::handle(word), nb::none());
  if (wanted.ptr() != Py_True || !records_gradients()) return;
  raise_type(std::string(name) +
             " requires a gradient, which this function does not record; call "
             "regard.torch.scaled_dot_product_attention, which does, or pass " +
             name + ".detach()");
}

/// The functions on the object's type, or null.
const ExchangeApi* exchange_of(PyObject* object) {
  static PyObject* const word = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
  const nb::object found = nb::getattr(nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(object))),
                                       nb::handle(word), nb::none());
  if (!PyCapsule_IsValid(found.ptr(), "dlpack_exchange_api")) return nullptr;
  const auto* api =
      static_cast<const ExchangeApi*>(PyCapsule_GetPointer(found.ptr(), "dlpack_exchange_api"));
  return api->header.major == 1 ? api : nullptr;
}

/// PyTorch's sparse and mkldnn tensors have no memory that strides describe.
void check_layout(nb::handle object, const char* name) {
  const std::string layout = nb::str(nb::getattr(object, "layout", nb::none())).c_str();
  if (layout.rfind("torch.", 0) != 0 || layout == "torch.strided") return;
  raise_type("layout of " + std::string(name) + " (" + layout + ") must be torch.strided; pass " +
             name + ".to_dense()");
}

/// Raises the library's refusal again under the argument's name.
[[noreturn]] void raise_unreadable(nb::python_error& error, PyObject* object, const char* name) {
  if (!error.matches(PyExc_Exception)) throw error;  // KeyboardInterrupt, SystemExit
  check_layout(object, name);
  const std::string reason = nb::str(error.value()).c_str();
  nb::raise_from(error, PyExc_ValueError, "%s (%s) cannot be read by DLPack: %s", name,
                 Py_TYPE(object)->tp_name, reason.substr(0, reason.find('\n')).c_str());
}

nb::object capsule_of(nb::handle object) {
  try {
    return object.attr("__dlpack__")(nb::arg("max_version") = nb::make_tuple(1, 0));
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;  // written before DLPack had versions
  }
  return object.attr("__dlpack__")();
}

/// What the object exports.
nb::object exported(nb::handle object, const char* name) {
  try {
    check_device(object, name);
    return capsule_of(object);
  } catch (nb::python_error& error) {
    const std::string reason = nb::str(error.value()).c_str();
    if (reason.compare(0, std::strlen(name), name) == 0) throw;  // check_device's own
    raise_unreadable(error, object.ptr(), name);
  }
}

struct Borrowed {
  const nb::dlpack::dltensor* tensor = nullptr;
  bool writable = true;
};

// The capsule keeps its name, so it stays the owner: its destructor frees the tensor.
Borrowed tensor_in(nb::handle capsule, const char* name) {
  PyObject* const c = capsule.ptr();
  if (PyCapsule_IsValid(c, "dltensor_versioned")) {
    const auto* managed =
        static_cast<ManagedTensorVersioned*>(PyCapsule_GetPointer(c, "dltensor_versioned"));
    if (managed->major == 1) return {&managed->tensor, (managed->flags & kReadOnly) == 0};
    raise_type(std::string(name) + ": its __dlpack__ is of version " +
               std::to_string(managed->major) + ", expected 1");
  }
  if (PyCapsule_IsValid(c, "dltensor")) {
    return {&static_cast<ManagedTensor*>(PyCapsule_GetPointer(c, "dltensor"))->tensor, true};
  }
  raise_type(std::string(name) + ": its __dlpack__ returned " + repr(c) +
             ", expected a DLPack capsule");
}

/// The NumPy type number and the Dtype of a DLPack type; -1 where regard has none.
int typenum_of(nb::dlpack::dtype type, Dtype* dtype) {
  struct Known {
    nb::dlpack::dtype_code code;
    int bits, typenum;
    Dtype dtype;
  };
  using Code = nb::dlpack::dtype_code;
  static constexpr Known kKnown[] = {
      {Code::Float, 32, NPY_FLOAT, Dtype::kF32},   {Code::Float, 64, NPY_DOUBLE, Dtype::kF64},
      {Code::Float, 16, NPY_HALF, Dtype::kF16},    {Code::Bfloat, 16, NPY_UINT16, Dtype::kBf16},
      {Code::Bool, 8, NPY_BOOL, Dtype::kBool},     {Code::Int, 8, NPY_INT8, Dtype::kI8},
      {Code::UInt, 8, NPY_UINT8, Dtype::kU8},      {Code::Int, 32, NPY_INT32, Dtype::kI32},
      {Code::Int, 64, NPY_INT64, Dtype::kI64},     {kFloat8E4M3Fn, 8, NPY_UINT8, Dtype::kF8E4M3},
      {kFloat8E5M2, 8, NPY_UINT8, Dtype::kF8E5M2},
  };
  for (const Known& known : kKnown) {
    if (static_cast<int>(known.code) != type.code || known.bits != type.bits || type.lanes != 1) {
      continue;
    }
    *dtype = known.dtype;
    return known.typenum;
  }
  return -1;
}

[[noreturn]] void raise_dtype(const nb::dlpack::dtype& dtype, const char* name) {
  raise_type("dtype of " + std::string(name) + " (DLPack code " + std::to_string(dtype.code) +
             ", " + std::to_string(dtype.bits) + " bits, " + std::to_string(dtype.lanes) +
             " lanes) must have 1 lane and be " + kArrayTypes);
}

/// Where the elements of a DLPack tensor lie.
struct Layout {
  Dtype dtype = Dtype::kF32;
  int typenum = -1;
  int rank = 0;
  char* data = nullptr;
  std::int64_t shape[kMaxDims] = {};
  std::int64_t strides[kMaxDims] = {};  // in bytes
  bool is_empty = false;
};

/// False where a size or a stride in bytes does not fit 64 bits, or an element's address wraps.
bool set_strides(const nb::dlpack::dltensor& tensor, std::uint64_t address, Layout* layout) {
  const std::int64_t size = size_of(layout->dtype);
  std::int64_t dense = size, low = 0, high = size;
  bool fits = true;
  for (int i = layout->rank - 1; i >= 0; --i) {
    const std::int64_t extent = layout->shape[i];
    std::int64_t& stride = layout->strides[i];
    std::int64_t span = 0;
    bool wraps = false;
    if (tensor.strides == nullptr) {
      stride = dense;
    } else {
      wraps = __builtin_mul_overflow(tensor.strides[i], size, &stride);
    }
    if (extent <= 1) {
      if (wraps) stride = 0;  // of a single element it says nothing
      wraps = false;
    }
    wraps |= __builtin_mul_overflow(std::max<std::int64_t>(extent - 1, 0), stride, &span);
    std::int64_t& end = span < 0 ? low : high;
    wraps |= __builtin_add_overflow(end, span, &end);
    wraps |= __builtin_mul_overflow(dense, std::max<std::int64_t>(extent, 1), &dense);
    fits &= !wraps;
  }
  std::uint64_t last = 0;
  return fits && !__builtin_add_overflow(address, low, &last) &&
         !__builtin_add_overflow(address, high, &last);
}

/// Raises where the structure describes no memory that the process can have.
Layout read_layout(PyObject* object, const nb::dlpack::dltensor& tensor, int max_rank,
                   const char* name) {
  const std::string of = std::string(" of ") + name + " (";
  Layout layout;
  layout.rank = tensor.ndim;
  if (layout.rank < 0 || layout.rank > max_rank) {
    raise_value("rank" + of + std::to_string(tensor.ndim) + ") must be 0 to " +
                std::to_string(max_rank));
  }
  if (layout.rank > 0 && tensor.shape == nullptr) {
    raise_value("shape" + of + "null) must hold its " + std::to_string(layout.rank) + " extents");
  }
  layout.typenum = typenum_of(tensor.dtype, &layout.dtype);
  if (layout.typenum < 0) raise_dtype(tensor.dtype, name);
  for (int i = 0; i < layout.rank; ++i) {
    layout.shape[i] = tensor.shape[i];
    layout.is_empty |= tensor.shape[i] == 0;
    if (tensor.shape[i] >= 0) continue;
    raise_value("extent " + std::to_string(i) + of + std::to_string(tensor.shape[i]) +
                ") must be >= 0");
  }
  if (tensor.data == nullptr && !layout.is_empty) {
    raise_value(std::string(name) + " (" + Py_TYPE(object)->tp_name +
                ") has no memory: its data is null, as a fake or a meta tensor's; expected one "
                "that holds numbers");
  }
  std::uint64_t address = 0;
  const bool wraps = __builtin_add_overflow(reinterpret_cast<std::uintptr_t>(tensor.data),
                                            tensor.byte_offset, &address);
  if (wraps || (!set_strides(tensor, address, &layout) && !layout.is_empty)) {
    raise_value(std::string(name) + " (" + Py_TYPE(object)->tp_name +
                "): its sizes, strides and addresses in bytes must fit 64 bits");
  }
  layout.data = reinterpret_cast<char*>(address);
  return layout;
}

// `owner` keeps the memory alive.
Array array_over(const Layout& layout, bool writable, nb::object owner) {
  npy_intp shape[kMaxDims];
  npy_intp strides[kMaxDims];
  for (int i = 0; i < layout.rank; ++i) {
    shape[i] = static_cast<npy_intp>(layout.shape[i]);
    strides[i] = static_cast<npy_intp>(layout.strides[i]);
  }
  PyObject* const made = PyArray_New(&PyArray_Type, layout.rank, shape, layout.typenum, strides,
                                     layout.data, 0, writable ? NPY_ARRAY_WRITEABLE : 0, nullptr);
  if (made == nullptr) throw nb::python_error();
  Array result;
  result.dtype = layout.dtype;
  result.owner = nb::steal(made);
  result.array = reinterpret_cast<PyArrayObject*>(made);
  PyArray_UpdateFlags(result.array, NPY_ARRAY_ALIGNED);
  if (PyArray_SetBaseObject(result.array, owner.release().ptr()) != 0) throw nb::python_error();
  return result;
}

// What the C functions do not look at: the memory of a tensor with the negative bit holds other
// numbers.
void check_negative_bit(PyObject* object, const char* name) {
  static PyObject* const is_neg = PyUnicode_InternFromString("is_neg");
  const nb::object method = nb::getattr(nb::handle(object), nb::handle(is_neg), nb::none());
  if (method.is_none() || method().ptr() != Py_True) return;
  raise_value(std::string(name) + " has its negative bit set; pass " + name + ".resolve_neg()");
}

// A tensor that a result's memory leaves as: the NumPy array lives until its deleter runs.
struct Exported {
  ManagedTensorVersioned managed;
  std::int64_t shape[4], strides[4];
};

void release_exported(ManagedTensorVersioned* managed) {
  if (Py_IsInitialized() != 0) {
    const nb::gil_scoped_acquire locked;
    Py_DECREF(static_cast<PyObject*>(managed->manager_context));
  }
  delete reinterpret_cast<Exported*>(managed);
}

}  // namespace

Array array_from_dlpack(PyObject* object, const char* name) {
  check_gradient(object, name);
  if (const ExchangeApi* api = exchange_of(object); api != nullptr && api->view_of_object) {
    nb::dlpack::dltensor tensor;
    if (api->view_of_object(object, &tensor) != 0) {
      nb::python_error error;
      raise_unreadable(error, object, name);
    }
    check_device(tensor.device.device_type, std::to_string(tensor.device.device_id), name);
    const Layout layout = read_layout(object, tensor, kMaxDims, name);
    check_negative_bit(object, name);
    return array_over(layout, true, nb::borrow(object));
  }
  nb::object capsule = exported(object, name);
  const Borrowed borrowed = tensor_in(capsule, name);
  const auto& device = borrowed.tensor->device;
  check_device(device.device_type, std::to_string(device.device_id), name);
  const Layout layout = read_layout(object, *borrowed.tensor, kMaxDims, name);
  return array_over(layout, borrowed.writable, std::move(capsule));
}

namespace {

constexpr int kCuda = 2;

TensorView view_over(PyObject* object, const Borrowed& borrowed, const char* name) {
  const nb::dlpack::dltensor& tensor = *borrowed.tensor;
  const int device = tensor.device.device_type;
  if (device != kCuda) check_device(device, std::to_string(tensor.device.device_id), name);
  const Layout layout = read_layout(object, tensor, kMaxRank, name);
  TensorView view;
  view.dtype = layout.dtype;
  view.data = layout.data;
  view.read_only = !borrowed.writable;
  if (device == kCuda) view.device = {DeviceType::kCuda, tensor.device.device_id};
  view.rank = layout.rank;
  for (int i = 0; i < view.rank; ++i) {
    view.shape[i] = layout.shape[i];
    view.strides[i] = layout.strides[i] / size_of(layout.dtype);
  }
  return view;
}

}  // namespace

TensorView view_from_dlpack(PyObject* object, const char* name, std::vector<nb::object>* owners) {
  if (const ExchangeApi* api = exchange_of(object); api != nullptr && api->view_of_object) {
    nb::dlpack::dltensor tensor;
    if (api->view_of_object(object, &tensor) != 0) {
      nb::python_error error;
      raise_unreadable(error, object, name);
    }
    check_negative_bit(object, name);
    return view_over(object, {&tensor, true}, name);  // the caller's own reference keeps it
  }
  // A stream of -1: whoever calls orders the work, on the stream that they pass.
  owners->push_back(nb::handle(object).attr("__dlpack__")(nb::arg("stream") = -1));
  return view_over(object, tensor_in(owners->back(), name), name);
}

nb::object exchanged(PyObject* like, const nb::object& array, nb::dlpack::dtype dtype) {
  const ExchangeApi* api = exchange_of(like);
  if (api == nullptr || api->to_object == nullptr) return {};
  auto* const a = reinterpret_cast<PyArrayObject*>(array.ptr());
  auto made = std::make_unique<Exported>();
  ManagedTensorVersioned& managed = made->managed;
  managed = {1, 0, array.ptr(), release_exported, 0, {}};
  managed.tensor.data = PyArray_DATA(a);
  managed.tensor.device = {kCpu, 0};
  managed.tensor.ndim = PyArray_NDIM(a);
  managed.tensor.dtype = dtype;
  managed.tensor.shape = made->shape;
  managed.tensor.strides = made->strides;
  std::int64_t dense = 1;
  for (int i = managed.tensor.ndim - 1; i >= 0; --i) {
    made->shape[i] = PyArray_DIM(a, i);
    made->strides[i] = dense;
    dense *= std::max<std::int64_t>(made->shape[i], 1);
  }
  array.inc_ref();
  void* object = nullptr;
  const int failed = api->to_object(&made.release()->managed, &object);
  if (failed != 0) throw nb::python_error();
  return nb::steal(static_cast<PyObject*>(object));
}

nb::object dlpack_export(const nb::object& array, nb::dlpack::dtype dtype) {
  auto* const a = reinterpret_cast<PyArrayObject*>(array.ptr());
  std::vector<std::size_t> shape;
  for (int i = 0; i < PyArray_NDIM(a); ++i) {
    shape.push_back(static_cast<std::size_t>(PyArray_DIM(a, i)));
  }
  return nb::cast(nb::ndarray<nb::array_api>(PyArray_DATA(a), shape.size(), shape.data(), array,
                                             nullptr, dtype, nb::device::cpu::value));
}

}  // namespace regard::python
