#include "bind_attention.h"

#include <string>

#include "bind_policy.h"
#include "call.h"
#include "call_scope.h"
#include "gil.h"
#include "process_context.h"
#include "python_selection.h"
#include "regard/case.h"
#include "saved.h"

namespace regard::python {
namespace {

#define REGARD_SIGNATURE                                                                 \
  "*, attn_mask=None, attn_bias=None, is_causal=False, diagonal=None, window=(-1, -1), " \
  "softmax_scale=None, softcap=0.0, alibi_slopes=None, sinks=None, seqlens_q=None, "     \
  "seqlens_kv=None, segment_ids_q=None, segment_ids_kv=None, cu_seqlens_q=None, "        \
  "cu_seqlens_kv=None, max_seqlen_q=None, max_seqlen_kv=None, lengths=None, "            \
  "lengths_kv=None, padding=None, descale_q=None, "                                      \
  "descale_k=None, descale_v=None, dropout_p=0.0, seed=None, "                           \
  "layout='BHSD', backend=None, policy=None, return_lse=False, return_scores=None, "     \
  "return_saved=False, out=None)\n--\n\n"

constexpr const char* kAttentionDoc =
    "attention(q, k, v, " REGARD_SIGNATURE
    "softmax(softmax_scale * q @ k.T + ...) @ v of arrays on a CPU.\n\n"
    "q is [batch, heads, positions, head_dim], or [batch, positions, heads, head_dim] with\n"
    "layout='BSHD'. Returns out, or a tuple of out, lse, scores and saved, those requested.\n\n"
    "Packed sequences lie one behind another: q [total_q, heads, head_dim], k and v\n"
    "[total_kv, kv heads, head_dim], and cu_seqlens_q and cu_seqlens_kv, int32 or int64\n"
    "[sequences + 1], say where each begins. out is [total_q, heads, head_dim], lse [heads,\n"
    "total_q]. max_seqlen_q and max_seqlen_kv, the longest lengths, are read from them where\n"
    "they are not given:\n\n"
    "    starts = [0, 5, 12]  # a sequence of 5 rows, then one of 7\n"
    "    out = regard.attention(q, k, v, cu_seqlens_q=starts, cu_seqlens_kv=starts)\n\n"
    "lengths, a regard.Lengths, stands for all four, and lengths_kv for those of k and v.\n\n"
    "With tensors of rank 4, lengths say which positions of padded q, k and v hold rows; every\n"
    "other position of out is 0. padding='auto' computes them with lengths, with a mask or "
    "packed,\n"
    "whichever explain() predicts to be the fastest; 'padded' and 'packed' force one. ValueError\n"
    "where that one cannot compute the call.\n\n"
    "docs/semantics.md says what every option means, docs/python.md what arrays are taken.";

constexpr const char* kExplainDoc =
    "explain(q, k=None, v=None, " REGARD_SIGNATURE
    "The Selection for a call of attention with these arguments, or for a case in words:\n"
    "explain('b1 hq8 sq128 d64 f32 causal'). Nothing is computed.";

constexpr Signature kAttention{"attention", {kQ, kK, kV}, args_between(kQ, kOut)};
constexpr Signature kExplain{"explain", {kQ, kK, kV}, args_between(kQ, kOut)};

/// What the backward of the call needs; null where the caller did not request it.
nb::object saved_of(const Call& call, const Plan& plan, const std::string& layer) {
  if (!call.returns_saved()) return {};
  return nb::cast(Saved{call.stats(), SavedContext::Kind::kStats, call.request.rng_seed,
                        call.request.rng_offset, plan, plan.backend(), plan.policy().max_error,
                        layer});
}

nb::object run_attention(const CallArgs& args) {
  Call call(parse_arguments(kAttention, args), Call::Purpose::kCompute);
  const AmbientScopes scopes;
  Context& context = process_context();
  const CallScope scope(context);
  Status status;
  PlannedCall planned;
  Launch launch = call.launch();
  launch.planned = &planned;
  {
    const GilRelease unlocked;
    status = call.padded
                 ? attention_padded(context, call.request, *call.padded, call.policy, launch)
                 : attention(context, call.request, call.policy, launch);
  }
  const Plan ran = planned.plan;
  remember_call(std::move(planned), status, call.notes());
  check(call, status);
  return call.result(saved_of(call, ran, scope.layer()));
}

/// The Selection of this machine, with the plan where there is one.
nb::object explain_here(const AttentionParams& params, const Policy& policy,
                        const std::vector<std::string>& notes) {
  Context& context = process_context();
  const CallScope scope(context);
  const Selection selection = explain(context, params, policy);
  if (!selection.ok()) return python_selection(selection, notes);
  const Expected<Plan> made = plan(context, params, policy);
  return python_selection(selection, notes, made ? &*made : nullptr);
}

nb::object explain_padded_call(const Call& call) {
  Context& context = process_context();
  const CallScope scope(context);
  const Expected<Selection> selection =
      explain_padded(context, call.request, *call.padded, call.policy);
  if (!selection) raise_status(in_callers_words(call, selection.status()));
  if (!selection->ok()) return python_selection(*selection, call.notes());
  const Expected<Plan> made = plan(context, selection->params, call.policy);
  return python_selection(*selection, call.notes(), made ? &*made : nullptr);
}

nb::object explain_call(const Arguments& arguments) {
  const Call call(arguments, Call::Purpose::kExplain);
  const AmbientScopes scopes;
  if (call.padded) return explain_padded_call(call);
  const Expected<AttentionParams> params = describe(call.request);
  if (!params) raise_status(in_callers_words(call, params.status()));
  return explain_here(*params, call.policy, call.notes());
}

nb::object explain_case(const Arguments& arguments) {
  for (int i = 0; i < kArgCount; ++i) {
    const auto arg = static_cast<Arg>(i);
    if (arg == kQ || arg == kPolicy || arg == kBackend || arguments.given(arg) == nullptr) continue;
    raise_type(std::string(name_of(arg)) +
               " was given beside a case in words, which says it itself; accepted are policy and "
               "backend");
  }
  const Policy policy = read_policy(arguments);
  const Expected<Case> problem = parse_case(read_text(arguments.value[kQ], "case", "text"));
  if (!problem) raise_status(problem.status());
  const AmbientScopes scopes;
  if (problem->env == EnvOverrides{}) return explain_here(problem->params, policy, {});
  // Another machine: no plan of this one.
  Context& context = process_context();
  const Env env = apply_overrides(context.env(), *problem);
  return python_selection(explain(context, problem->params, policy, env));
}

PyObject* attention_vectorcall(PyObject*, PyObject* const* values, Py_ssize_t positional,
                               PyObject* keywords) noexcept {
  return guarded([&] { return run_attention({values, positional, keywords}); });
}

PyObject* explain_vectorcall(PyObject*, PyObject* const* values, Py_ssize_t positional,
                             PyObject* keywords) noexcept {
  return guarded([&] {
    const Arguments arguments = parse_arguments(kExplain, {values, positional, keywords});
    PyObject* const first = arguments.value[kQ];
    return first != nullptr && PyUnicode_Check(first) ? explain_case(arguments)
                                                      : explain_call(arguments);
  });
}

template <class F>
PyCFunction as_method(F* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef methods[] = {
    {"attention", as_method(attention_vectorcall), METH_FASTCALL | METH_KEYWORDS, kAttentionDoc},
    {"explain", as_method(explain_vectorcall), METH_FASTCALL | METH_KEYWORDS, kExplainDoc},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void bind_attention(nb::module_& module) {
  if (!intern_argument_names() || PyModule_AddFunctions(module.ptr(), methods) != 0) {
    throw nb::python_error();
  }
}

}  // namespace regard::python
