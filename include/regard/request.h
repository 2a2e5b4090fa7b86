#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "regard/export.h"
#include "regard/params.h"
#include "regard/plan.h"
#include "regard/status.h"
#include "regard/tensor.h"

namespace regard {

class Context;

/// A function of the host language, which edits scores after score_function: what an expression
/// cannot say. Workers call it at the same time, a row of some keys a call; it must not throw.
/// f32 arithmetic only. A key that becomes -inf is masked.
struct ScoreCallback {
  /// scores[x] is that of query `q` and key `kv_begin + x` of head `h` of sequence `b`, all counted
  /// within the sequence.
  using Edit = void (*)(void* user_data, float* scores, std::int64_t count, std::int64_t b,
                        std::int64_t h, std::int64_t q, std::int64_t kv_begin);
  /// d_scores holds the gradients of what Edit returned, and becomes those of `scores`.
  using Gradient = void (*)(void* user_data, const float* scores, float* d_scores,
                            std::int64_t count, std::int64_t b, std::int64_t h, std::int64_t q,
                            std::int64_t kv_begin);
  Edit edit = nullptr;
  Gradient gradient = nullptr;  // null: attention_backward is refused
  void* user_data = nullptr;
};

/// Where a call lies in a greater one, of which it computes some rows, keys or heads: dropout
/// counts from there, so that both draw the same mask.
struct DropoutOrigin {
  std::int64_t position = 0;  // added to a row's position on the diagonal
  std::int64_t key = 0;       // of the first key: a multiple of 8, at least 0
  std::int64_t head = 0;      // b * heads + h of the first head of the first sequence
  std::int64_t heads = 0;     // query heads of the greater call; 0: those of this one
  friend bool operator==(const DropoutOrigin&, const DropoutOrigin&) = default;
};

/// The tensors of a call and the scalars that change each step; selection reads none of their
/// contents. Shapes are q [B,Hq,Sq,Dqk], k [B,Hkv,Skv,Dqk], v [B,Hkv,Skv,Dv], out [B,Hq,Sq,Dv],
/// whatever the strides; the last stride of q, k, v and out is 1. Each field has a row in kTensors
/// (regard/tensors.h).
/// Packed sequences lie one after the other: q [1,Hq,total_q,Dqk], k [1,Hkv,total_kv,Dqk], and
/// cu_seqlens_q and cu_seqlens_kv say where each begins. Sq and Skv are then the longest lengths.
struct Buffers {
  TensorView q, k, v, out;
  TensorView lse;          // output, f32 (f64 for f64) [B,Hq,Sq], natural log
  TensorView saved_stats;  // output, f32 (f64 for f64) [B,Hq,Sq,2]: row maximum, row sum
  TensorView scores_out;   // output, f32 (f64 for f64) [B,Hq,Sq,Skv]
  // Output, f32 [1]: the largest magnitude of out before it is rounded; NaN where one is NaN
  TensorView out_amax;
  TensorView attn_mask;     // bool or u8 [1|B,1|Hq,1|Sq,1|Skv], true = may attend
  TensorView attn_bias;     // f32, f64 or q's dtype (not of 8 bits), [1|B,1|Hq,1|Sq,1|Skv], added
                            // after softcap
  TensorView alibi_slopes;  // f32 [Hq] or [B,Hq]
  TensorView sinks;         // f32 [Hq]: a logit that joins the denominator
  TensorView segment_ids_q, segment_ids_kv;  // i32 [B,Sq], [B,Skv]
  TensorView seqlens_q, seqlens_kv;          // i32 [B]
  // i32 [B]: the first rows of each sequence in k and v that are no keys; seqlens_kv count them
  TensorView cache_leftpad;
  TensorView diagonal_offsets;  // i64 [B], for Diagonal::kOffset per sequence
  // What q, k and v are multiplied by, f32 [1] or [B,Hkv]; absent: 1
  TensorView descale_q, descale_k, descale_v;
  // Packed sequences: i32 or i64 [B+1], ascending from 0; sequence b has the rows from element b up
  // to, not including, element b + 1. Rows past the last element are zeros in out and in gradients.
  TensorView cu_seqlens_q, cu_seqlens_kv;
  TensorView page_table;  // i32 [B, pages]
  // Of k and v of 8 bits: what each row is multiplied by, f32 [entries,Hkv,rows], one for each row
  // of k, or [entries,Hkv,1]; and each column of k, f32 [Hkv,Dqk]. i8 needs them. Of u4
  // [entries,Hkv,rows,2*groups]: a scale and a minimum for every 32 elements of a row
  TensorView scales_k, scales_v;
  // Of q of 8-bit floats, f32 [B,Hq,Sq]. With options.scale_layout these three have one for each
  // block of rows and columns, [B|entries,H,blocks of rows,blocks of columns], last stride 1.
  TensorView scales_q;
  TensorView channel_scales_k;
  // u8 [1|B,1|Hq,blocks_q,blocks_kv], of blocks of block_size_q x block_size_kv: what is known of
  // mask_function there. 0: it is false; 1: nothing; 2: it is true (regard/block_mask.h).
  TensorView block_mask;
  // What score_function and mask_function read, of 1 to 4 dimensions: r0 to r7 (f32, f64, bf16,
  // f16) or i0 to i7 (i32, i64, bool, u8)
  TensorView captured0, captured1, captured2, captured3, captured4, captured5, captured6, captured7;
  // [B,Hkv,Snew,.]: appended behind seqlens_kv before anything is read; of k's and v's types, or of
  // q's where they have scales
  TensorView k_new, v_new;
  // bool or u8 [1|B,Sq,Snew]: which of the last Snew keys of its sequence each query may attend to
  TensorView tree_mask;
  // Rotary embedding of q and k_new: f32 or q's dtype, [positions, rotary_dim / 2]
  TensorView rotary_cos, rotary_sin;
  TensorView positions;        // i32 [B,Sq]: of each query, and of each new key
  TensorView cache_batch_idx;  // i32 [B]

  // The longest lengths of packed sequences, or more. 0: total_q and total_kv, except that
  // attention() and attention_backward() read the lengths from cu_seqlens in host memory.
  std::int64_t max_seqlen_q = 0;
  std::int64_t max_seqlen_kv = 0;

  std::int64_t diagonal_offset = 0;  // for Diagonal::kOffset without diagonal_offsets
  std::uint64_t rng_seed = 0;        // of dropout
  std::uint64_t rng_offset = 0;
  DropoutOrigin dropout_origin{};

  ScoreCallback score_callback{};
};

/// The options of a call, from which the backend is selected. An unset softmax_scale means
/// 1/sqrt(head_dim_qk); NaN is an error.
struct AttentionOptions {
  bool is_causal = false;  // the same as window_right = 0
  std::int64_t window_left = kUnlimited;
  std::int64_t window_right = kUnlimited;
  Diagonal diagonal = Diagonal::kUnnamed;
  std::optional<double> softmax_scale;
  double softcap = 0.0;
  double dropout_p = 0.0;
  ScoresKind scores_kind = ScoresKind::kNone;  // what scores_out receives
  bool needs_grad = false;
  // With needs_grad: the backward will be given d_lse, or delta. Not every backward takes them; the
  // forward runs on a backend whose backward does.
  bool d_lse = false;
  bool delta = false;
  // With needs_grad and q of 8-bit floats: the type of d_out (absent: out's), and of d_q, d_k and
  // d_v (absent: bf16). attention_backward() takes those of the tensors it is given.
  std::optional<Dtype> dtype_d_out;
  std::optional<Dtype> dtype_gradients;
  Fp8Recipe fp8_recipe = Fp8Recipe::kNone;
  ScaleLayout scale_layout = ScaleLayout::kRows;  // of scales_q, scales_k and scales_v; not of u4
  // Scales of 128 x 128 elements with a causal mask are refused otherwise: such a scale depends on
  // later rows of its block, and so would earlier results.
  bool allow_future_scales = false;
  // With q of 8-bit floats: probabilities are rounded to q's type before they are multiplied with
  // v, as a device's products of 8 bits need them, and in a backward dS to d_out's where that has 8
  // bits (docs/semantics.md).
  bool quantize_probs = false;
  std::int64_t page_size = 0;
  // Rotary embedding turns elements 2x and 2x + 1 together; else x and x + rotary_dim / 2.
  bool rotary_interleaved = false;
  // The rows of k are keys times the orthonormal Walsh-Hadamard matrix; q and k_new are multiplied
  // in the call, after rotary embedding. Scores stay what they are.
  bool hadamard = false;
  // Edits of scaled scores, after softcap, and what hides keys: regard/expression.h.
  Expression score_function;
  Expression mask_function;
  std::int64_t block_size_q = 0;  // of block_mask
  std::int64_t block_size_kv = 0;
  // The sums of seqlens_q and seqlens_kv, for predictions (AttentionParams::tokens_q); 0: not
  // stated. They never change a result.
  std::int64_t tokens_q = 0;
  std::int64_t tokens_kv = 0;
};

struct AttentionRequest : Buffers {
  AttentionOptions options;
};

/// What a backward needs from its forward.
struct SavedContext {
  TensorView stats;  // saved_stats or lse
  enum class Kind : std::uint8_t { kNone = 0, kStats, kLse } kind = Kind::kNone;
  std::uint64_t rng_seed = 0;  // of dropout; the Buffers of the call must have the same
  std::uint64_t rng_offset = 0;
  Plan plan;  // its backend computes the backward; empty: attention_backward selects one
};

/// What a backward takes besides the tensors of its forward. A gradient has the shape and type of
/// its tensor; delta and d_lse are f32 (f64 for f64) [B,Hq,Sq].
struct GradBuffers {
  SavedContext saved;
  TensorView d_out;          // last stride 1
  TensorView descale_d_out;  // optional: what d_out is multiplied by, f32 [1] or [B,Hkv]
  // Optional beside scales_q: of d_out of 8-bit floats, of its rows or, with scale_layout, of
  // blocks
  TensorView scales_d_out;
  TensorView gradient_scales;  // optional: what d_q, d_k and d_v are multiplied by, f32 [3]
  // Optional output, f32 [3]: the largest magnitudes of d_q, d_k and d_v before gradient_scales and
  // before they are rounded; NaN where one is NaN
  TensorView gradient_amax;
  TensorView delta;    // optional: the sums of d_out * out over head_dim_v; else taken from out
  TensorView d_lse;    // optional
  TensorView d_q;      // outputs, each optional; the last strides of d_q, d_k and d_v are 1
  TensorView d_k;      // summed over the query heads of a group
  TensorView d_v;      //
  TensorView d_bias;   // summed over the dimensions in which attn_bias has an extent of 1
  TensorView d_sinks;  // summed over the batch and rows
  // Of captured tensors that score_function reads, as d_bias
  TensorView d_captured0, d_captured1, d_captured2, d_captured3, d_captured4, d_captured5,
      d_captured6, d_captured7;
};

struct AttentionGradRequest : AttentionRequest, GradBuffers {};

/// Checks a request and returns its problem in canonical form. Allocates only to report an error.
REGARD_EXPORT Expected<AttentionParams> describe(const AttentionRequest& request);

/// Runs task(state, worker) for worker in [0, workers), each once, in any order, perhaps serially,
/// and returns when all have ended; execute() fails if one was not run. A worker may wait for
/// another one that has begun, so workers that run at the same time need a thread each. A worker
/// sets the default floating-point environment (rounding to nearest, denormals kept, exceptions
/// masked) and restores the thread's.
class REGARD_EXPORT Executor {
 public:
  using Task = void (*)(void* state, int worker);
  virtual ~Executor();
  virtual void run(int workers, Task task, void* state) = 0;
};

/// Memory that a call may use, on the device of its tensors; 64-byte aligned.
struct Workspace {
  void* data = nullptr;
  std::size_t bytes = 0;
};

class Interrupt;     // regard/interrupt.h
struct PlannedCall;  // regard/trace.h

/// How to launch; everything may be left out. Without an executor the Context's pool is used (in
/// execute() that of the plan's Context). Without a workspace attention() leases one from the
/// Context, and execute() fails if the plan needs one. On a CUDA device the lease ends once the
/// stream reaches the end of the call's work.
struct Launch {
  Executor* executor = nullptr;
  void* stream = nullptr;  // a cudaStream_t of the tensors' device; null: its default stream
  Workspace workspace{};
  Interrupt* interrupt = nullptr;  // ends a call on a CPU early
  // Receives the call's params and plan before it runs. A call that fails may not write it.
  PlannedCall* planned = nullptr;
};

/// Checks lengths that lie on a device, which execute never reads: kernels clamp them to 0 and the
/// extent. Copies them, waits for the stream, and refuses what execute refuses on a CPU.
REGARD_EXPORT Status check_device_data(const AttentionRequest& request, const Launch& launch = {});

/// One partial attention result over some keys: out [B,H,S,D] and its lse [B,H,S].
struct StateView {
  TensorView out;
  TensorView lse;
};

/// Merges partial results over disjoint sets of keys into out and lse (lse may be absent), in f32
/// and in the order given, so that the bits do not depend on threads. A partial result with lse =
/// -inf contributes nothing, whatever its out holds. out and lse may be one of the inputs. From
/// some 65,536 elements on the rows are divided among workers of the launch's executor, or the
/// context's.
/// Without a context, it is the default one, whose concurrency and executor apply.
REGARD_EXPORT Status merge_states(Context& context, const std::vector<StateView>& states,
                                  const TensorView& out, const TensorView& lse = {},
                                  const Launch& launch = {});
REGARD_EXPORT Status merge_states(const std::vector<StateView>& states, const TensorView& out,
                                  const TensorView& lse = {}, const Launch& launch = {});

}  // namespace regard
