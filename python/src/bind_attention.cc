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
  "softmax_scale=None, softcap=0.0, score_function=None, mask_function=None, "           \
  "captured=None, score_callback=None, block_mask=None, block_size_q=0, "                \
  "block_size_kv=0, "                                                                    \
  "alibi_slopes=None, sinks=None, seqlens_q=None, "                                      \
  "seqlens_kv=None, segment_ids_q=None, segment_ids_kv=None, cu_seqlens_q=None, "        \
  "cu_seqlens_kv=None, max_seqlen_q=None, max_seqlen_kv=None, lengths=None, "            \
  "lengths_kv=None, padding=None, page_table=None, cache_batch_idx=None, "               \
  "cache_leftpad=None, shared_prefix_kv=0, k_new=None, v_new=None, tree_mask=None, "     \
  "scales_k=None, scales_v=None, channel_scales_k=None, scales_q=None, "                 \
  "scale_layout=None, allow_future_scales=False, quantize_probs=False, "                 \
  "k_dtype=None, v_dtype=None, "                                                         \
  "rotary_cos=None, rotary_sin=None, rotary_interleaved=False, hadamard=False, "         \
  "positions=None, descale_q=None, "                                                     \
  "descale_k=None, descale_v=None, fp8_recipe=None, d_out_dtype=None, "                  \
  "gradient_dtype=None, dropout_p=0.0, seed=None, "                                      \
  "layout='BHSD', backends=None, policy=None, return_lse=False, return_scores=None, "    \
  "return_saved=False, out_amax=None, out=None)\n--\n\n"

constexpr const char* kAttentionDoc =
    "attention(q, k, v, " REGARD_SIGNATURE
    R"(softmax(softmax_scale * q @ k.T + attn_bias) @ v of arrays on a CPU.

q is [batch, heads, queries, head_dim], k [batch, kv heads, keys, head_dim] and v [batch, kv heads,
keys, head_dim of v]; with layout='BSHD' positions stand before heads. kv heads divide heads. They
are NumPy arrays or objects with __dlpack__, of float64, float32, float16, bfloat16 or 8-bit floats.

Returns out [batch, heads, queries, head_dim of v], of q's kind and type (bfloat16 for 8 bits), or
a tuple of out and what is requested, in this order: return_lse=True lse [batch, heads, queries],
return_scores scores [batch, heads, queries, keys], both float32 (float64 beside float64), and
return_saved=True a regard.Saved for attention_backward. out_amax, a float32 array of one element,
receives the largest magnitude of out before it is rounded.

    >>> import numpy as np, regard
    >>> q = np.ones((1, 8, 5, 64), np.float32)
    >>> k = v = np.ones((1, 2, 9, 64), np.float32)
    >>> out, lse = regard.attention(q, k, v, is_causal=True, diagonal='bottom_right', return_lse=True)
    >>> out.shape, lse.shape
    ((1, 8, 5, 64), (1, 8, 5))
    >>> regard.attention(q, k, v, backends=['flash', 'math']).shape  # nothing else may run
    (1, 8, 5, 64)

Packed sequences lie one behind another: q [total_q, heads, head_dim], k and v [total_kv, kv heads,
head_dim]. cu_seqlens_q and cu_seqlens_kv, int32 or int64 [sequences + 1], say where each begins;
max_seqlen_q and max_seqlen_kv, the longest lengths, are read from them where they are not given.
lengths, a regard.Lengths, stands for all four, and lengths_kv for those of k and v. out is [total_q,
heads, head_dim of v], lse [heads, total_q].

With tensors of rank 4, lengths say which positions of padded q, k and v hold rows; every other
position of out is 0. padding='auto' computes them with lengths, with a mask or packed, whichever
explain() predicts to be the fastest; 'padded' and 'packed' force one. ValueError where that one
cannot compute the call.

    >>> rows = np.ones((12, 2, 64), np.float32)
    >>> starts = [0, 5, 12]  # a sequence of 5 rows, then one of 7
    >>> regard.attention(rows, rows, rows, cu_seqlens_q=starts, cu_seqlens_kv=starts).shape
    (12, 2, 64)

With a page_table, int32 [batch, pages], k and v are pages, [pages in all, kv heads, page size,
head_dim] (layout='BSHD': [pages in all, page size, kv heads, head_dim]), and seqlens_kv say how many
keys each sequence has; -1 stands for no page. Queries may be packed, by cu_seqlens_q alone. With
cache_batch_idx, int32 [batch], a sequence has the keys of that entry of k and v. The first
cache_leftpad rows of each sequence, int32 [batch], are no keys; seqlens_kv count them. k_new and v_new
[batch, kv heads, new, head_dim] are written behind the seqlens_kv rows of each sequence, into the
arrays k and v, and then seen. tree_mask, bool or uint8 [1 or batch, queries, new], says which of the
last keys of its sequence each query may attend to, as the drafts of speculative decoding do.
shared_prefix_kv is how many keys all sequences have in the same first pages: these are read once for
all queries (regard.PagedKVCache.attend(shared_prefix=True) counts them).

k and v may be int8 or 8-bit floats with scales, float32 arrays: scales_k and scales_v [entries of k, kv
heads, rows of k] or [.., 1], in either layout, and channel_scales_k [kv heads, head_dim] for the columns of k.
int8 needs them. k_new and v_new are then of q's type and quantised as they are written, with a new scale
for each row where scales are one for each row.
scales_q [batch, heads, queries] are those of q of 8-bit floats. With scale_layout='1x32' (MXFP8), '1x128' or
'128x128' all three have one scale for each block of so many rows and columns, [.., blocks of rows, blocks of
columns]. '128x128' and a causal mask need allow_future_scales=True: a block's scale tells of later rows.
quantize_probs=True with q of 8-bit floats rounds probabilities to q's type, too, and their sum with them.

    >>> codes, scales = np.zeros((1, 2, 64, 64), np.int8), np.ones((1, 2, 64), np.float32)
    >>> new = np.full((1, 2, 1, 64), 2, np.float32)
    >>> regard.attention(np.ones((1, 8, 1, 64), np.float32), codes, codes.copy(), scales_k=scales,
    ...                  scales_v=scales.copy(), k_new=new, v_new=new, seqlens_kv=[3]).shape
    (1, 8, 1, 64)
    >>> int(codes[0, 0, 3, 0]), float(scales[0, 0, 3] * 127)  # row 3 was written
    (127, 2.0)

With k_dtype='u4', or v_dtype, the array is uint8 and half as wide: two codes of 0 to 15 in a byte, the
first in its low half. Its scales are [entries, kv heads, rows, 2 * groups]: for every 32 elements of a row
a scale and a minimum, code * scale + minimum being the element. head_dim is even.

    >>> codes, scales = np.zeros((1, 2, 64, 32), np.uint8), np.ones((1, 2, 64, 4), np.float32)
    >>> regard.attention(np.ones((1, 8, 1, 64), np.float32), codes, codes.copy(), k_dtype='u4', v_dtype='u4',
    ...                  scales_k=scales, scales_v=scales.copy(), k_new=new, v_new=new, seqlens_kv=[3]).shape
    (1, 8, 1, 64)
    >>> scales[0, 0, 3, 1].item()  # all elements of the row are the minimum
    2.0

hadamard=True multiplies q and k_new by the orthonormal Walsh-Hadamard matrix, after rotary embedding: k
holds such rows. Scores stay what they are, and outliers of a few columns are spread over all of them, so
that codes of few bits lose less. head_dim is a power of two.

rotary_cos and rotary_sin [positions, rotary_dim / 2], float32 or q's type, rotate q and k_new by the
position of each row: the rows before it, or positions, int32 [batch, queries]. rotary_dim is even, and
at most head_dim. Elements x and x + rotary_dim / 2 are a pair, as in Hugging Face's models; with
rotary_interleaved=True elements 2x and 2x + 1 are.

    >>> pages = np.zeros((3, 2, 16, 64), np.float32)
    >>> new = np.ones((1, 2, 1, 64), np.float32)
    >>> regard.attention(np.ones((1, 8, 1, 64), np.float32), pages, pages.copy(), k_new=new, v_new=new,
    ...                  page_table=[[2, 0]], seqlens_kv=[20]).shape  # row 4 of page 0 is written
    (1, 8, 1, 64)

Raises TypeError or ValueError for an argument, with its name, its value and what is accepted, and
regard.NoBackendError, with every reason, where no backend can run the call.

Every keyword: `python -m regard docs python`. What it computes: `python -m regard docs semantics`.)";

constexpr const char* kExplainDoc =
    "explain(q, k=None, v=None, " REGARD_SIGNATURE
    R"(Which backend runs a call of attention with these arguments, and why. Computes nothing.

Takes the arguments of attention, or a case in words in place of the tensors, beside which only
backends and policy are accepted. Returns a regard.Selection: print it for the table, or read
`chosen`, `refusals` and `to_dict()`.

    >>> import regard
    >>> regard.explain('b1 hq8 sq128 d64 f32 causal').chosen
    'flash'
    >>> for refusal in regard.explain('b1 hq8 sq128 d64 f32 scores=probs', backends='flash').refusals:
    ...     if refusal.backend == 'flash':
    ...         print(refusal)
    flash does not support scores_out; remove it, or use math

Raises TypeError or ValueError where attention would; a call that no backend can run is no error
here: `ok` is then False.

How the choice is made: `python -m regard docs selection`. Cases: `python -m regard docs cases`.)";

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
    if (call.padded) {
      status = attention_padded(context, call.request, *call.padded, call.policy, launch);
    } else if (call.shared_prefix_kv != 0) {
      status = attention_shared_prefix(context, call.request, call.shared_prefix_kv, call.policy,
                                       launch);
    } else {
      status = attention(context, call.request, call.policy, launch);
    }
  }
  // Before the plan is moved away: a copy of it counts references with locked instructions.
  // A call that failed may have left a KeyboardInterrupt, which making an object could clear.
  const nb::object saved = status.ok() ? saved_of(call, planned.plan, scope.layer()) : nb::object();
  remember_call(std::move(planned), status, call.notes());
  check(call, status);
  return call.result(saved);
}

/// The Selection, with the plan where there is one.
nb::object with_plan(Context& context, const Selection& selection, const Policy& policy,
                     const std::vector<std::string>& notes) {
  if (!selection.ok()) return python_selection(selection, notes);
  const Expected<Plan> made = plan(context, selection.params, policy);
  return python_selection(selection, notes, made ? &*made : nullptr);
}

/// The Selection of this machine.
nb::object explain_here(const AttentionParams& params, const Policy& policy,
                        const std::vector<std::string>& notes) {
  Context& context = process_context();
  const CallScope scope(context);
  return with_plan(context, explain(context, params, policy), policy, notes);
}

nb::object explain_padded_call(const Call& call) {
  Context& context = process_context();
  const CallScope scope(context);
  const Expected<Selection> selection =
      explain_padded(context, call.request, *call.padded, call.policy);
  if (!selection) raise_status(in_callers_words(call, selection.status()));
  return with_plan(context, *selection, call.policy, call.notes());
}

/// Without a plan: two calls have one each.
nb::object explain_shared_prefix_call(const Call& call, const AttentionParams& params) {
  Context& context = process_context();
  const CallScope scope(context);
  const Expected<Selection> selection =
      explain_shared_prefix(context, params, call.shared_prefix_kv, call.policy);
  if (!selection) raise_status(in_callers_words(call, selection.status()));
  return python_selection(*selection, call.notes());
}

nb::object explain_call(const Arguments& arguments) {
  const Call call(arguments, Call::Purpose::kExplain);
  const AmbientScopes scopes;
  if (call.padded) return explain_padded_call(call);
  const Expected<AttentionParams> params = describe(call.request);
  if (!params) raise_status(in_callers_words(call, params.status()));
  if (call.shared_prefix_kv != 0) return explain_shared_prefix_call(call, *params);
  return explain_here(*params, call.policy, call.notes());
}

nb::object explain_case(const Arguments& arguments) {
  for (int i = 0; i < kArgCount; ++i) {
    const auto arg = static_cast<Arg>(i);
    if (arg == kQ || arg == kPolicy || arg == kBackends || arguments.given(arg) == nullptr)
      continue;
    raise_type(std::string(name_of(arg)) +
               " was given beside a case in words, which says it itself; accepted are policy and "
               "backends");
  }
  const Policy policy = read_policy(arguments.given(kPolicy), arguments.given(kBackends));
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
