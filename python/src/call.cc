#include "call.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "bind_policy.h"
#include "openmp_team.h"
#include "regard/tensors.h"

namespace regard::python {
namespace {

Dtype statistics_dtype(Dtype dtype_q) { return dtype_q == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32; }

ScoresKind read_scores_kind(PyObject* object) {
  constexpr const char* kAccepted = "None, 'scaled', 'edited' or 'probs'";
  const char* word = read_text(object, "return_scores", kAccepted);
  for (const ScoresKind kind : {ScoresKind::kScaled, ScoresKind::kEdited, ScoresKind::kProbs}) {
    if (std::strcmp(word, to_string(kind)) == 0) return kind;
  }
  raise_value("return_scores (" + repr(object) + ") must be " + kAccepted);
}

std::uint64_t fresh_seed() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

// A C-ordered view of the caller's layout as [B,H,S,D].
TensorView in_layout(TensorView view, bool bshd) {
  view.strides[3] = 1;
  if (bshd) {
    std::swap(view.shape[1], view.shape[2]);
    std::swap(view.strides[1], view.strides[2]);
  }
  return view;
}

std::string tuple_text(const npy_intp (&shape)[4]) {
  std::string text = "(";
  for (int i = 0; i < 4; ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + ")";
}

bool speaks_of_extents(const std::string& message) {
  for (const char* word : {"shape", "stride", "batch", "num_heads", "seqlen", "head_dim"}) {
    if (message.find(word) != std::string::npos) return true;
  }
  return false;
}

/// Whether a call lasts some milliseconds at least; what a shorter one spends on signals would
/// show.
bool is_long(const AttentionRequest& request) {
  constexpr double kProducts = 1 << 28;
  const TensorView& q = request.q;
  const auto extent = [](std::int64_t n) { return static_cast<double>(n); };
  const double pairs = extent(q.num_elements()) * extent(request.k.shape[2]);
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

/// A small tensor of integers or f32 that is an argument of its own name.
struct Vector {
  enum class Kind { kIntegers, kNumbers, kNumberOrNumbers };
  Arg arg;
  Kind kind;
  TensorView Buffers::*view;
  std::string shape;  // in a message's words: "1 or 2, [heads] or [batch, heads]"
};

bool is_one_number(const ShapeRule::Alternative& shape) {
  return shape.rank == 1 && shape.dims[0].extent == Extent::kCount && shape.dims[0].plus == 1;
}

std::string extent_words(const ShapeRule::Dim& dim) {
  switch (dim.extent) {
    case Extent::kB: return "batch";
    case Extent::kHq: return "heads";
    case Extent::kHkv: return "kv heads";
    case Extent::kSq: return "queries";
    case Extent::kSkv: return "keys";
    default: return kExtentNames[static_cast<int>(dim.extent)];
  }
}

std::string shape_words(const ShapeRule& rule) {
  std::string ranks, shapes;
  for (const ShapeRule::Alternative& shape : rule.alternatives()) {
    const char* const separator = ranks.empty() ? "" : " or ";
    const bool is_number = is_one_number(shape);
    ranks += separator + std::to_string(is_number ? 0 : shape.rank);
    std::string extents;
    for (int i = 0; i < shape.rank && !is_number; ++i) {
      extents += (i == 0 ? "" : ", ") + extent_words(shape.dims[i]);
    }
    shapes += separator + (is_number ? "a number" : "[" + extents + "]");
  }
  return ranks + ", " + shapes;
}

std::vector<Vector> vectors_of_a_call() {
  std::vector<Vector> vectors;
  for (const TensorSpec& spec : kTensors) {
    const int arg = arg_named(spec.name);
    const bool is_small = spec.dtype == DtypeRule::kI32 || spec.dtype == DtypeRule::kF32;
    if (arg == kArgCount || spec.forward != TensorRole::kIn || !is_small) continue;
    const Vector::Kind kind = spec.dtype == DtypeRule::kI32 ? Vector::Kind::kIntegers
                              : is_one_number(spec.shape.alternatives()[0])
                                  ? Vector::Kind::kNumberOrNumbers
                                  : Vector::Kind::kNumbers;
    vectors.push_back({static_cast<Arg>(arg), kind, spec.buffer, shape_words(spec.shape)});
  }
  return vectors;
}

}  // namespace

bool read_layout(PyObject* object) {
  if (object == nullptr) return false;
  const char* word = read_text(object, "layout", "'BHSD' or 'BSHD'");
  if (std::strcmp(word, "BHSD") == 0) return false;
  if (std::strcmp(word, "BSHD") == 0) return true;
  raise_value("layout (" + repr(object) + ") must be 'BHSD' or 'BSHD'");
}

Policy read_policy(const Arguments& arguments) {
  Policy policy;
  if (PyObject* const given = arguments.given(kPolicy); given != nullptr) {
    const Policy* value = policy_in(given);
    if (value == nullptr) {
      raise_type("policy (" + repr(given) + ") must be a regard.Policy");
    }
    policy = *value;
  }
  if (PyObject* const given = arguments.given(kBackend); given != nullptr) {
    if (policy.only.has_value()) {
      raise_value("backend (" + repr(given) + ") and policy.only were both given; expected one");
    }
    policy.only = {read_backend(given, "backend")};
  }
  return policy;
}

void check(const Call& call, const Status& status) {
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  if (!status.ok()) raise_status(in_callers_words(call, status));
}

// Messages of the core speak of [B,H,S,D], which a caller of another layout must be told, and of an
// attn_bias, which may have come as attn_mask.
Status in_callers_words(const Call& call, const Status& status) {
  if (status.code() != StatusCode::kInvalidArgument) return status;
  std::string message = status.message();
  if (call.bias_is_mask()) {
    const std::size_t at = message.find("attn_bias");
    if (at != std::string::npos) message.replace(at, std::strlen("attn_bias"), "attn_mask");
  }
  if (call.is_bshd() && speaks_of_extents(message)) {
    message += " (shapes and strides in the order BHSD; the layout is BSHD)";
  }
  return Status(status.code(), std::move(message));
}

Call::Call(const Arguments& arguments, Purpose purpose)
    : q_(arguments.value[kQ]),
      bshd_(read_layout(arguments.value[kLayout])),
      inputs_(bshd_, purpose == Purpose::kExplain) {
  for (const Arg arg : {kQ, kK, kV}) {
    if (arguments.value[arg] == nullptr) {
      raise_type(std::string(name_of(arg)) + " is missing; q, k and v are required");
    }
  }
  request.q = inputs_.tensor(arguments.value[kQ], "q");
  request.k = inputs_.tensor(arguments.value[kK], "k");
  request.v = inputs_.tensor(arguments.value[kV], "v");
  read_options(arguments);
  read_mask_and_bias(arguments);
  read_vectors(arguments);
  read_dropout(arguments);
  policy = read_policy(arguments);
  if (purpose == Purpose::kBackward) {
    request.options.needs_grad = true;
    request.out = inputs_.tensor(arguments.value[kOut], "out");
  } else {
    make_outputs(arguments);
  }
}

void Call::read_options(const Arguments& arguments) {
  AttentionOptions& options = request.options;
  if (PyObject* causal = arguments.value[kIsCausal])
    options.is_causal = read_bool(causal, "is_causal");
  if (PyObject* diagonal = arguments.given(kDiagonal)) read_diagonal(diagonal);
  if (PyObject* window = arguments.value[kWindow]) read_window(window);
  if (PyObject* scale = arguments.given(kSoftmaxScale)) {
    options.softmax_scale = read_double(scale, "softmax_scale");
  }
  if (PyObject* softcap = arguments.value[kSoftcap])
    options.softcap = read_double(softcap, "softcap");
}

void Call::read_diagonal(PyObject* diagonal) {
  constexpr const char* kAccepted =
      "'top_left', 'bottom_right', an integer offset or an integer array [batch]";
  AttentionOptions& options = request.options;
  if (PyUnicode_Check(diagonal)) {
    const char* word = read_text(diagonal, "diagonal", kAccepted);
    if (std::strcmp(word, "top_left") == 0) {
      options.diagonal = Diagonal::kTopLeft;
    } else if (std::strcmp(word, "bottom_right") == 0) {
      options.diagonal = Diagonal::kBottomRight;
    } else {
      raise_value("diagonal (" + repr(diagonal) + ") must be " + kAccepted);
    }
    return;
  }
  options.diagonal = Diagonal::kOffset;
  const bool is_array_like =
      is_array(diagonal) || PyList_Check(diagonal) || PyTuple_Check(diagonal);
  if (is_array_like && !PyArray_IsScalar(diagonal, Generic)) {
    request.diagonal_offsets = inputs_.integers(diagonal, "diagonal", "1, [batch]", /*wide=*/true);
  } else if (PyIndex_Check(diagonal) && !PyBool_Check(diagonal)) {
    request.diagonal_offset = read_int64(diagonal, "diagonal");
  } else {
    raise_type("diagonal (" + repr(diagonal) + ") must be " + kAccepted);
  }
}

void Call::read_window(PyObject* window) {
  constexpr const char* kAccepted = "a pair of integers (left, right), -1 where it is unlimited";
  if (!PyTuple_Check(window) && !PyList_Check(window)) {
    raise_type("window (" + repr(window) + ") must be " + kAccepted);
  }
  if (PySequence_Fast_GET_SIZE(window) != 2) {
    raise_value("window (" + repr(window) + ") must be " + kAccepted);
  }
  // New references: another thread may change a list meanwhile.
  const nb::object left = nb::steal(PySequence_GetItem(window, 0));
  const nb::object right = nb::steal(PySequence_GetItem(window, 1));
  if (!left.is_valid() || !right.is_valid()) throw nb::python_error();
  request.options.window_left = read_int64(left.ptr(), "window[0]");
  request.options.window_right = read_int64(right.ptr(), "window[1]");
}

void Call::read_mask_and_bias(const Arguments& arguments) {
  if (PyObject* given = arguments.given(kAttnMask)) {
    const Array mask = array_from(given, "attn_mask");
    if (mask.dtype == Dtype::kBool) {
      request.attn_mask = inputs_.scores(mask, "attn_mask", request.q.dtype);
    } else if (!is_float(mask.dtype) || is_f8(mask.dtype)) {
      raise_type(
          "dtype of attn_mask (" + describe_array(mask) +
          ") must be bool (true = may attend), or a float type, which is added to the scores "
          "as attn_bias is");
    } else if (arguments.given(kAttnBias) != nullptr) {
      raise_value("attn_mask (" + describe_array(mask) +
                  ") is added to the scores as attn_bias is, and both were given; expected one");
    } else {
      request.attn_bias = inputs_.scores(mask, "attn_mask", request.q.dtype);
      bias_is_mask_ = true;
    }
  }
  if (PyObject* given = arguments.given(kAttnBias)) {
    const Array bias = array_from(given, "attn_bias");
    if (!is_float(bias.dtype) || is_f8(bias.dtype)) {
      raise_type("dtype of attn_bias (" + describe_array(bias) +
                 ") must be float64, float32, float16 or bfloat16; a boolean mask is attn_mask");
    }
    request.attn_bias = inputs_.scores(bias, "attn_bias", request.q.dtype);
  }
}

void Call::read_vectors(const Arguments& arguments) {
  static const std::vector<Vector> vectors = vectors_of_a_call();
  // The same lengths given twice are one array: a diagonal may then stay unnamed.
  PyObject* const lengths = arguments.given(kSeqlensQ);
  const bool same = lengths != nullptr && lengths == arguments.value[kSeqlensKv];
  for (const Vector& each : vectors) {
    PyObject* const given = arguments.given(each.arg);
    if (given == nullptr) continue;
    TensorView& view = request.*each.view;
    const char* const name = name_of(each.arg);
    switch (each.kind) {
      case Vector::Kind::kIntegers:
        view = each.arg == kSeqlensKv && same
                   ? request.seqlens_q
                   : inputs_.integers(given, name, each.shape.c_str(), /*wide=*/false);
        break;
      case Vector::Kind::kNumbers: view = inputs_.numbers(given, name, each.shape.c_str()); break;
      case Vector::Kind::kNumberOrNumbers:
        view = inputs_.number_or_numbers(given, name, each.shape.c_str());
        break;
    }
  }
}

void Call::read_dropout(const Arguments& arguments) {
  if (PyObject* p = arguments.value[kDropoutP]) {
    request.options.dropout_p = read_double(p, "dropout_p");
  }
  if (PyObject* seed = arguments.given(kSeed)) {
    request.rng_seed = read_uint64(seed, "seed");
  } else if (request.options.dropout_p > 0.0) {
    request.rng_seed = fresh_seed();
  }
}

TensorView Call::make_output(int rank, const npy_intp* shape, Dtype dtype, nb::object* made) {
  *made = new_array(rank, shape, typenum_beside(q_, dtype));
  return inputs_.output({reinterpret_cast<PyArrayObject*>(made->ptr()), dtype, {}}, false);
}

TensorView Call::make_rows_like(const TensorView& view, nb::object* made) {
  npy_intp shape[4] = {view.shape[0], view.shape[1], view.shape[2], view.shape[3]};
  if (bshd_) std::swap(shape[1], shape[2]);
  return in_layout(make_output(4, shape, view.dtype, made), bshd_);
}

nb::object Call::as_callers_kind(const nb::object& array, Dtype dtype) const {
  return array.is_valid() ? as_kind_of(q_, array, dtype) : array;
}

void Call::make_outputs(const Arguments& arguments) {
  const TensorView& q = request.q;
  npy_intp shape[4] = {q.shape[0], q.shape[1], q.shape[2], request.v.shape[3]};
  if (bshd_) std::swap(shape[1], shape[2]);
  if (PyObject* given = arguments.given(kOut)) {
    take_out(given, shape);
  } else {
    request.out = in_layout(make_output(4, shape, default_dtype_out(q.dtype), &out_), bshd_);
  }
  const npy_intp rows[4] = {q.shape[0], q.shape[1], q.shape[2], request.k.shape[2]};
  const Dtype dtype = statistics_dtype(q.dtype);
  if (PyObject* lse = arguments.value[kReturnLse]; lse && read_bool(lse, "return_lse")) {
    request.lse = make_output(3, rows, dtype, &lse_);
  }
  if (PyObject* scores = arguments.given(kReturnScores)) {
    request.options.scores_kind = read_scores_kind(scores);
    request.scores_out = make_output(4, rows, dtype, &scores_);
  }
  if (PyObject* saved = arguments.value[kReturnSaved]; saved && read_bool(saved, "return_saved")) {
    const npy_intp pairs[4] = {rows[0], rows[1], rows[2], 2};
    request.options.needs_grad = true;
    request.options.d_lse = request.lse.present();  // a gradient of what is returned may follow
    request.saved_stats = make_output(4, pairs, dtype, &stats_);
  }
}

void Call::take_out(PyObject* object, const npy_intp (&shape)[4]) {
  Array out = array_from(object, "out");
  const bool wider = size_of(request.q.dtype) == 2 && out.dtype == Dtype::kF32;
  const bool decoded = is_f8(request.q.dtype) && is_float(out.dtype) && !is_f8(out.dtype) &&
                       out.dtype != Dtype::kF64;
  if (out.dtype != request.q.dtype && !wider && !decoded) {
    raise_type("dtype of out (" + describe_array(out) +
               ") must be q's, or float32 where q's is float16 or bfloat16, or one of these where "
               "q's is of 8 bits");
  }
  if (PyArray_NDIM(out.array) != 4 || !PyArray_CompareLists(PyArray_DIMS(out.array), shape, 4)) {
    raise_value("shape of out (" + describe_array(out) + ") must be " + tuple_text(shape));
  }
  if (!PyArray_ISWRITEABLE(out.array)) {
    raise_value("out (" + describe_array(out) + ") is read-only; expected a writable array");
  }
  if (PyArray_ISBYTESWAPPED(out.array) || !PyArray_ISALIGNED(out.array)) {
    raise_value("out (" + describe_array(out) +
                ") must be aligned and of this machine's byte order: results are written in place");
  }
  const npy_intp size = size_of(out.dtype);
  for (int i = 0; i < 4 && PyArray_SIZE(out.array) != 0; ++i) {
    const npy_intp stride = PyArray_STRIDE(out.array, i);
    const bool dense = i != 3 || stride == size;
    if (shape[i] <= 1 || (stride >= 0 && stride % size == 0 && dense)) continue;
    raise_value("stride " + std::to_string(i) + " of out (" + std::to_string(stride) +
                " bytes) must be positive, and the last dimension dense: results are written in "
                "place");
  }
  request.out = inputs_.output(out, true);
  out_ = nb::borrow(object);
  out_is_callers_ = true;
  if (out.owner.is_valid()) inputs_.keep(std::move(out.owner));
}

Launch Call::launch() {
  Launch launch;
  if (!PyArray_Check(q_)) launch.executor = openmp_team();
  if (is_long(request) && is_main_thread()) {
    launch.interrupt = &interrupt_.emplace(run_signal_handlers);
  }
  return launch;
}

nb::object Call::stats() const {
  return as_callers_kind(stats_, statistics_dtype(request.q.dtype));
}

nb::object Call::result(const nb::object& saved) const {
  const Dtype dtype = statistics_dtype(request.q.dtype);
  const nb::object out = out_is_callers_ ? out_ : as_callers_kind(out_, request.out.dtype);
  if (!lse_.is_valid() && !scores_.is_valid() && !saved.is_valid()) return out;
  nb::list results;
  results.append(out);
  if (lse_.is_valid()) results.append(as_callers_kind(lse_, dtype));
  if (scores_.is_valid()) results.append(as_callers_kind(scores_, dtype));
  if (saved.is_valid()) results.append(saved);
  return nb::tuple(results);
}

}  // namespace regard::python
