#include <algorithm>
#include <cstring>
#include <string_view>

#include "call.h"
#include "openmp_team.h"
#include "regard/tensors.h"
#include "signals.h"

// What a call returns: arrays that are made or given, in the order of rows that the caller has.

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

std::string tuple_text(const std::vector<npy_intp>& shape) {
  std::string text;
  for (const npy_intp extent : shape) text += (text.empty() ? "(" : ", ") + std::to_string(extent);
  return text + ")";
}

/// As the core reads a longest length: 0 is not stated, and none exceeds the total.
npy_intp longest_of(std::int64_t stated, npy_intp total) {
  return stated <= 0 ? total : std::min<npy_intp>(static_cast<npy_intp>(stated), total);
}

}  // namespace

TensorView Call::make_output(int rank, const npy_intp* shape, Dtype dtype, nb::object* made) {
  *made = new_array(rank, shape, typenum_beside(q_, dtype));
  return inputs_.output({reinterpret_cast<PyArrayObject*>(made->ptr()), dtype, {}});
}

std::vector<npy_intp> Call::shape_of_rows(const std::int64_t (&shape)[4]) const {
  switch (order_) {
    case RowOrder::kBhsd: break;
    case RowOrder::kBshd: return {shape[0], shape[2], shape[1], shape[3]};
    case RowOrder::kPacked: return {shape[2], shape[1], shape[3]};
  }
  return {shape[0], shape[1], shape[2], shape[3]};
}

TensorView Call::make_rows(const std::int64_t (&shape)[4], Dtype dtype, nb::object* made) {
  const std::vector<npy_intp> own = shape_of_rows(shape);
  *made = new_array(static_cast<int>(own.size()), own.data(), typenum_beside(q_, dtype));
  return inputs_.output_rows({reinterpret_cast<PyArrayObject*>(made->ptr()), dtype, {}});
}

nb::object Call::as_callers_kind(const nb::object& array, Dtype dtype) const {
  return array.is_valid() ? as_kind_of(q_, array, dtype) : array;
}

void Call::make_outputs(const Arguments& arguments) {
  const TensorView& q = request.q;
  const std::int64_t shape[4] = {q.shape[0], q.shape[1], q.shape[2], request.v.shape[3]};
  if (PyObject* given = arguments.given(kOut)) {
    take_out(given, shape_of_rows(shape));
  } else {
    request.out = make_rows(shape, default_dtype_out(q.dtype), &out_);
  }
  if (PyObject* given = arguments.given(kOutAmax)) take_amax(given);
  const npy_intp rows[4] = {q.shape[0], q.shape[1], q.shape[2], rows_of_keys(request)};
  const Dtype dtype = statistics_dtype(q.dtype);
  const bool packed = order_ == RowOrder::kPacked;
  if (PyObject* lse = arguments.value[kReturnLse]; lse && read_bool(lse, "return_lse")) {
    request.lse =
        packed ? make_output(2, rows + 1, dtype, &lse_) : make_output(3, rows, dtype, &lse_);
  }
  if (PyObject* scores = arguments.given(kReturnScores)) {
    request.options.scores_kind = read_scores_kind(scores);
    if (packed) {  // no backend computes them: the selection says so
      const npy_intp longest[4] = {std::max<npy_intp>(request.cu_seqlens_q.shape[0] - 1, 0),
                                   rows[1], longest_of(request.max_seqlen_q, rows[2]),
                                   longest_of(request.max_seqlen_kv, rows[3])};
      request.scores_out = make_output(4, longest, dtype, &scores_);
    } else {
      request.scores_out = make_output(4, rows, dtype, &scores_);
    }
  }
  if (PyObject* saved = arguments.value[kReturnSaved]; saved && read_bool(saved, "return_saved")) {
    const npy_intp pairs[4] = {rows[0], rows[1], rows[2], 2};
    request.options.needs_grad = true;
    request.options.d_lse = request.lse.present();  // a gradient of what is returned may follow
    request.saved_stats = make_output(4, pairs, dtype, &stats_);
  }
}

void Call::take_amax(PyObject* object) {
  Array amax = array_from(object, "out_amax");
  if (amax.dtype != Dtype::kF32 || PyArray_NDIM(amax.array) != 1 ||
      PyArray_DIM(amax.array, 0) != 1 || PyArray_ISBYTESWAPPED(amax.array) ||
      !PyArray_ISALIGNED(amax.array)) {
    raise_value("out_amax (" + describe_array(amax) +
                ") must be an aligned float32 array of shape (1,): it is written in place");
  }
  request.out_amax = inputs_.output(amax);
  if (amax.owner.is_valid()) inputs_.keep(std::move(amax.owner));
}

void Call::take_out(PyObject* object, const std::vector<npy_intp>& shape) {
  Array out = array_from(object, "out");
  const bool wider = size_of(request.q.dtype) == 2 && out.dtype == Dtype::kF32;
  const bool decoded = is_f8(request.q.dtype) && is_float(out.dtype) && !is_f8(out.dtype) &&
                       out.dtype != Dtype::kF64;
  if (out.dtype != request.q.dtype && !wider && !decoded) {
    raise_type("dtype of out (" + describe_array(out) +
               ") must be q's, or float32 where q's is float16 or bfloat16, or one of these where "
               "q's is of 8 bits");
  }
  const int rank = static_cast<int>(shape.size());
  if (PyArray_NDIM(out.array) != rank ||
      !PyArray_CompareLists(PyArray_DIMS(out.array), shape.data(), rank)) {
    raise_value("shape of out (" + describe_array(out) + ") must be " + tuple_text(shape));
  }
  if (PyArray_ISBYTESWAPPED(out.array) || !PyArray_ISALIGNED(out.array)) {
    raise_value("out (" + describe_array(out) +
                ") must be aligned and of this machine's byte order: results are written in place");
  }
  const npy_intp size = size_of(out.dtype);
  for (int i = 0; i < rank && PyArray_SIZE(out.array) != 0; ++i) {
    const npy_intp stride = PyArray_STRIDE(out.array, i);
    const bool dense = i != rank - 1 || stride == size;
    if (shape[i] <= 1 || (stride >= 0 && stride % size == 0 && dense)) continue;
    raise_value("stride " + std::to_string(i) + " of out (" + std::to_string(stride) +
                " bytes) must be positive, and the last dimension dense: results are written in "
                "place");
  }
  request.out = inputs_.output_rows(out);
  out_ = nb::borrow(object);
  out_is_callers_ = true;
  if (out.owner.is_valid()) inputs_.keep(std::move(out.owner));
}

Launch Call::launch() {
  Launch launch;
  if (!PyArray_Check(q_)) launch.executor = openmp_team();
  launch.interrupt = interrupt_by_signals(request, &interrupt_);
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
