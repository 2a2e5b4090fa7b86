#include "bind_backward.h"

#include <optional>
#include <string>

#include "bind_policy.h"
#include "call.h"
#include "call_scope.h"
#include "gil.h"
#include "process_context.h"
#include "regard/backend.h"
#include "saved.h"

namespace regard::python {
namespace {

constexpr const char* kBackwardDoc =
    "attention_backward(d_out, q, k, v, out, saved, *, d_lse=None, delta=None, descale_d_out=None, "
    "scales_d_out=None, gradient_scales=None, return_amax=False, attn_mask=None, "
    "attn_bias=None, is_causal=False, diagonal=None, window=(-1, -1), softmax_scale=None, "
    "softcap=0.0, score_function=None, mask_function=None, captured=None, "
    "score_callback=None, block_mask=None, block_size_q=0, block_size_kv=0, alibi_slopes=None, "
    "sinks=None, "
    "seqlens_q=None, seqlens_kv=None, "
    "segment_ids_q=None, segment_ids_kv=None, cu_seqlens_q=None, cu_seqlens_kv=None, "
    "max_seqlen_q=None, max_seqlen_kv=None, lengths=None, lengths_kv=None, padding=None, "
    "scales_k=None, scales_v=None, scales_q=None, scale_layout=None, allow_future_scales=False, "
    "quantize_probs=False, "
    "descale_q=None, descale_k=None, descale_v=None, fp8_recipe=None, d_out_dtype=None, "
    "gradient_dtype=None, dropout_p=0.0, seed=None, layout='BHSD', backends=None, "
    "policy=None)\n--\n\n"
    R"(The gradients of attention(q, k, v, ..., return_saved=True), with the options of that call.

d_out and out have the shape of out, saved is what the forward returned. d_lse, the gradient of lse,
and delta, the sums of d_out * out over head_dim, are [batch, heads, queries]. Returns
regard.Gradients: d_q, d_k, d_v, d_bias (None without attn_bias), d_sinks (None without sinks) and
d_captured (None without captured; in it, None for what score_function does not read as real numbers),
each with the shape, layout and kind of the array that it belongs to.

    >>> import numpy as np, regard
    >>> q = k = v = np.ones((1, 2, 5, 64), np.float32)
    >>> out, saved = regard.attention(q, k, v, is_causal=True, return_saved=True)
    >>> gradients = regard.attention_backward(np.ones_like(out), q, k, v, out, saved, is_causal=True)
    >>> gradients.d_q.shape, gradients.d_bias
    ((1, 2, 5, 64), None)

Where q, k and v are 8-bit floats, d_out may be one too, with descale_d_out (a number, or [batch, kv heads])
or, beside scales_q, scales_d_out (float32 [batch, heads, queries], or of scale_layout's blocks),
and gradient_dtype names the type of d_q, d_k and d_v, 'bf16' where it is left out. They are multiplied by
gradient_scales, three numbers, before they are rounded; return_amax=True gives their largest magnitudes before
that, as `amax` [3].

lengths of padded arrays, of rank 4, are those of the forward; d_q, d_k and d_v are 0 at positions
without a row. They are computed the way that the forward was; `padding` holds where `saved` has no
plan.

The backend of the forward, which `saved` holds, computes them, whatever policy is in force.
`backends` and `policy` restrict it (only, deny, require, max_error, max_workspace_bytes). Without a
plan or a backend in `saved` (an lse alone) the policies in force select one.

Raises TypeError or ValueError for an argument, with its name, its value and what is accepted, and
regard.NoBackendError, with every reason, where nothing is left.

More: `python -m regard docs python`.)";

constexpr Signature kBackward{"attention_backward",
                              {kDOut, kQ, kK, kV, kOut, kSaved},
                              args_between(kQ, kPadding) | args_between(kScalesK, kScalesV) |
                                  args_between(kScalesQ, kQuantizeProbs) |
                                  args_between(kDescaleQ, kPolicy) |
                                  args_between(kOut, kReturnAmax)};

/// The gradients of one call: what the core writes, and what the caller gets.
struct Gradients {
  GradBuffers buffers;
  nb::object d_q, d_k, d_v, d_bias, d_sinks;
  nb::object d_captured[kMaxCaptured];
  nb::object amax;
};

const Saved& read_saved(PyObject* object) {
  const Saved* saved = nullptr;
  if (!nb::try_cast<const Saved*>(nb::handle(object), saved, false) || saved == nullptr) {
    raise_type("saved (" + repr(object) +
               ") must be the regard.Saved that attention(..., return_saved=True) returned");
  }
  return *saved;
}

TensorView Buffers::*const kSavedCapturedViews[kMaxCaptured] = {
    &Buffers::captured0, &Buffers::captured1, &Buffers::captured2, &Buffers::captured3,
    &Buffers::captured4, &Buffers::captured5, &Buffers::captured6, &Buffers::captured7};
TensorView GradBuffers::*const kCapturedGradients[kMaxCaptured] = {
    &GradBuffers::d_captured0, &GradBuffers::d_captured1, &GradBuffers::d_captured2,
    &GradBuffers::d_captured3, &GradBuffers::d_captured4, &GradBuffers::d_captured5,
    &GradBuffers::d_captured6, &GradBuffers::d_captured7};

/// How the text of a function names that tensor where its elements are real numbers.
std::string real_element(int slot) { return "r" + std::to_string(slot) + "["; }

/// f32, or f64 beside f64: statistics and what belongs to one row.
TensorView read_rows(Call& call, PyObject* object, const char* name) {
  const Array array = array_from(object, name);
  if (array.dtype != Dtype::kF32 && array.dtype != Dtype::kF64) {
    raise_type("dtype of " + std::string(name) + " (" + describe_array(array) +
               ") must be float32, or float64 where q's is");
  }
  return call.inputs().any_view(array, name);
}

// The mask that the forward drew must be drawn again.
void take_seed(Call& call, const Arguments& arguments, const Saved& saved) {
  if (PyObject* const given = arguments.given(kSeed);
      given != nullptr && read_uint64(given, "seed") != saved.rng_seed) {
    raise_value("seed (" + repr(given) + ") must be saved.seed, " + std::to_string(saved.rng_seed));
  }
  call.request.rng_seed = saved.rng_seed;
  call.request.rng_offset = saved.rng_offset;
}

/// Of the tensors of real numbers that the score function reads.
void make_captured_gradients(Call& call, Gradients* made) {
  const std::string& text = call.request.options.score_function.text();
  for (int i = 0; i < kMaxCaptured; ++i) {
    const TensorView& view = call.request.*kSavedCapturedViews[i];
    if (!view.present() || text.find(real_element(i)) == std::string::npos) continue;
    npy_intp shape[kMaxRank] = {};
    for (int d = 0; d < view.rank; ++d) shape[d] = view.shape[d];
    made->buffers.*kCapturedGradients[i] =
        call.make_output(view.rank, shape, view.dtype, &made->d_captured[i]);
  }
}

/// Of d_q, d_k and d_v.
Dtype gradient_dtype(const AttentionRequest& request) {
  return request.options.dtype_gradients.value_or(default_dtype_out(request.q.dtype));
}

void read_f8_scales(Call& call, const Arguments& arguments, Gradients* made) {
  GradBuffers& buffers = made->buffers;
  if (PyObject* const given = arguments.given(kDescaleDOut)) {
    buffers.descale_d_out =
        call.inputs().number_or_numbers(given, "descale_d_out", "1, [1], or 2, [batch, kv heads]");
  }
  if (PyObject* const given = arguments.given(kScalesDOut)) {
    buffers.scales_d_out =
        call.inputs().any_view(array_from(given, "scales_d_out"), "scales_d_out");
  }
  if (PyObject* const given = arguments.given(kGradientScales)) {
    buffers.gradient_scales = call.inputs().numbers(given, "gradient_scales", "1, [3]");
  }
  PyObject* const wanted = arguments.value[kReturnAmax];
  if (wanted == nullptr || !read_bool(wanted, "return_amax")) return;
  const npy_intp shape[1] = {3};
  buffers.gradient_amax = call.make_output(1, shape, Dtype::kF32, &made->amax);
}

Gradients make_gradients(Call& call, const Arguments& arguments, const Saved& saved) {
  const AttentionRequest& request = call.request;
  Gradients made;
  GradBuffers& buffers = made.buffers;
  buffers.d_out = call.inputs().tensor(arguments.value[kDOut], "d_out");
  buffers.saved.stats = read_rows(call, saved.stats.ptr(), "saved.stats");
  buffers.saved.kind = saved.kind;
  buffers.saved.rng_seed = saved.rng_seed;
  buffers.saved.rng_offset = saved.rng_offset;
  if (PyObject* given = arguments.given(kDLse)) buffers.d_lse = read_rows(call, given, "d_lse");
  if (PyObject* given = arguments.given(kDelta)) buffers.delta = read_rows(call, given, "delta");
  read_f8_scales(call, arguments, &made);
  const Dtype dtype = gradient_dtype(request);
  buffers.d_q = call.make_rows(request.q.shape, dtype, &made.d_q);
  buffers.d_k = call.make_rows(request.k.shape, dtype, &made.d_k);
  buffers.d_v = call.make_rows(request.v.shape, dtype, &made.d_v);
  if (const TensorView& bias = request.attn_bias; bias.present()) {
    const npy_intp shape[4] = {bias.shape[0], bias.shape[1], bias.shape[2], bias.shape[3]};
    buffers.d_bias = call.make_output(4, shape, bias.dtype, &made.d_bias);
  }
  if (request.sinks.present()) {
    const npy_intp heads[1] = {request.sinks.shape[0]};
    buffers.d_sinks = call.make_output(1, heads, request.sinks.dtype, &made.d_sinks);
  }
  make_captured_gradients(call, &made);
  return made;
}

/// The problem of the forward: of padded arrays, of the way that it is predicted to take.
Expected<AttentionParams> params_of(const Call& call, const Policy& policy) {
  if (!call.padded) return describe(call.request);
  const Expected<Selection> selection =
      explain_padded(process_context(), call.request, *call.padded, policy);
  return selection ? Expected<AttentionParams>(selection->params) : selection.status();
}

/// The forward's plan, or one of the same backend; empty where that one is not known.
Plan plan_of(const Call& call, const Saved& saved) {
  if (!saved.plan.empty() || !saved.backend) return saved.plan;
  Policy policy;
  policy.only = {{*saved.backend}};
  policy.max_error = saved.max_error;
  const Expected<AttentionParams> params = params_of(call, policy);
  if (!params) raise_status(in_callers_words(call, params.status()));
  const Expected<Plan> made = plan(process_context(), *params, policy);
  if (!made) raise_status(made.status());
  return *made;
}

/// Of as many dimensions as the caller's bias has.
nb::object bias_gradient(const Call& call, const Arguments& arguments, const Gradients& made) {
  if (!made.d_bias.is_valid()) return nb::none();
  PyObject* const bias = arguments.given(kAttnBias);
  const nb::object shape = nb::handle(bias ? bias : arguments.value[kAttnMask]).attr("shape");
  const nb::object shaped = made.d_bias.attr("reshape")(nb::tuple(shape));
  return call.as_callers_kind(shaped, call.request.attn_bias.dtype);
}

/// One for each captured tensor, None of those that have no gradient; None without them.
nb::object captured_gradients(const Call& call, const Gradients& made) {
  nb::list found;
  for (int i = 0; i < kMaxCaptured; ++i) {
    const TensorView& view = call.request.*kSavedCapturedViews[i];
    if (!view.present()) break;
    found.append(made.d_captured[i].is_valid()
                     ? call.as_callers_kind(made.d_captured[i], view.dtype)
                     : nb::none());
  }
  if (found.size() == 0) return nb::none();
  return nb::tuple(found);
}

nb::object python_gradients(const Call& call, const Arguments& arguments, const Gradients& made) {
  const AttentionRequest& request = call.request;
  const nb::object d_sinks =
      made.d_sinks.is_valid() ? call.as_callers_kind(made.d_sinks, Dtype::kF32) : nb::none();
  const nb::object type = nb::module_::import_("regard._gradients").attr("Gradients");
  const nb::object amax =
      made.amax.is_valid() ? call.as_callers_kind(made.amax, Dtype::kF32) : nb::none();
  const Dtype dtype = gradient_dtype(request);
  return type(call.as_callers_kind(made.d_q, dtype), call.as_callers_kind(made.d_k, dtype),
              call.as_callers_kind(made.d_v, dtype), bias_gradient(call, arguments, made), d_sinks,
              captured_gradients(call, made), amax);
}

nb::object run_backward(const CallArgs& args) {
  const Arguments arguments = parse_arguments(kBackward, args);
  for (const Arg arg : kBackward.positional) {
    if (arguments.value[arg] == nullptr) {
      raise_type(std::string(name_of(arg)) +
                 " is missing; d_out, q, k, v, out and saved are "
                 "required");
    }
  }
  const Saved& saved = read_saved(arguments.value[kSaved]);
  Call call(arguments, Call::Purpose::kBackward);
  take_seed(call, arguments, saved);
  Gradients made = make_gradients(call, arguments, saved);
  Context& context = process_context();
  const CallScope scope(context, &saved.layer);
  made.buffers.saved.plan = plan_of(call, saved);
  AttentionGradRequest request;
  static_cast<AttentionRequest&>(request) = call.request;
  static_cast<GradBuffers&>(request) = made.buffers;
  std::optional<AmbientScopes> scopes;
  if (request.saved.plan.empty()) scopes.emplace();
  Status status;
  PlannedCall planned;
  Launch launch = call.launch();
  launch.planned = &planned;
  {
    const GilRelease unlocked;
    status = call.padded
                 ? attention_padded_backward(context, request, *call.padded, call.policy, launch)
                 : attention_backward(context, request, call.policy, launch);
  }
  remember_call(std::move(planned), status, call.notes());
  check(call, status);
  return python_gradients(call, arguments, made);
}

PyObject* backward_vectorcall(PyObject*, PyObject* const* values, Py_ssize_t positional,
                              PyObject* keywords) noexcept {
  return guarded([&] { return run_backward({values, positional, keywords}); });
}

PyMethodDef backward_methods[] = {
    {"attention_backward",
     reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(backward_vectorcall)),
     METH_FASTCALL | METH_KEYWORDS, kBackwardDoc},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void bind_backward(nb::module_& module) {
  if (PyModule_AddFunctions(module.ptr(), backward_methods) != 0) throw nb::python_error();
}

}  // namespace regard::python
