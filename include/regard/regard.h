#pragma once

// The C ABI: C99, and valid C++. docs/c_api.md is its guide.
//
// Structs    A struct with struct_size grows at its end in later versions. Zero it and set
//            struct_size to its sizeof; zero and null mean the default in every other field.
// Errors     No function throws, prints or exits. A function that fails returns a code and sets
//            regard_last_error() of this thread. A null argument is an error unless stated
//            otherwise.
// Texts      A function with (buffer, capacity, needed) writes a text with its final zero and
//            stores its number of bytes, the zero included, to needed, which may be null. With a
//            null buffer and capacity 0 it stores needed alone; a buffer that is too small is an
//            error.
// Threads    Every function may be called from any thread, several at once on one handle; a handle
//            is destroyed when no call uses it.

#include <stddef.h>
#include <stdint.h>

#include "regard/export.h"
#include "regard/version.h"

// A C enum is as wide as an int; in C++ that must be stated.
#if defined(__cplusplus)
#define REGARD_INT32_ENUM : int32_t
#define REGARD_ZEROED \
  {}
extern "C" {
#else
#define REGARD_INT32_ENUM
#define REGARD_ZEROED \
  { 0 }
#endif

typedef enum regard_status REGARD_INT32_ENUM {
  REGARD_STATUS_OK = 0,
  REGARD_STATUS_INVALID_ARGUMENT = 1,    // an argument is wrong
  REGARD_STATUS_OVERFLOW = 2,            // a size or stride product does not fit 64 bits
  REGARD_STATUS_NO_BACKEND = 3,          // nothing can run it; regard_explain() has the reasons
  REGARD_STATUS_WORKSPACE = 4,           // the workspace is too small, misaligned or not available
  REGARD_STATUS_REFUSED_AT_PLAN = 5,     // a backend's library refused what its record allows
  REGARD_STATUS_NOT_FOUND = 6,           // an unknown name
  REGARD_STATUS_CONFORMANCE_FAILED = 7,  // a backend failed the suite it was registered with
  REGARD_STATUS_INTERNAL = 8,            // a bug in regard
  REGARD_STATUS_INTERRUPTED = 9,         // the call was ended early
  REGARD_STATUS_UNAVAILABLE = 10,        // a backend's library lacks memory or a handle now
  REGARD_STATUS_OUT_OF_MEMORY = 11       // an allocation failed: outputs hold no result
} regard_status;

// DLPack's numbers.
typedef enum regard_device_type REGARD_INT32_ENUM {
  REGARD_DEVICE_CPU = 1,
  REGARD_DEVICE_CUDA = 2
} regard_device_type;

typedef enum regard_dtype_code REGARD_INT32_ENUM {
  REGARD_DTYPE_INT = 0,
  REGARD_DTYPE_UINT = 1,
  REGARD_DTYPE_FLOAT = 2,
  REGARD_DTYPE_BFLOAT = 4,
  REGARD_DTYPE_BOOL = 6,
  REGARD_DTYPE_FLOAT8_E4M3FN = 10,
  REGARD_DTYPE_FLOAT8_E5M2 = 12
} regard_dtype_code;

typedef struct regard_device {
  regard_device_type device_type;
  int32_t device_id;
} regard_device;

/// {REGARD_DTYPE_FLOAT, 32, 1} is f32, {REGARD_DTYPE_BFLOAT, 16, 1} bf16; lanes are 1.
typedef struct regard_dtype {
  uint8_t code;  // a regard_dtype_code
  uint8_t bits;
  uint16_t lanes;
} regard_dtype;

/// A tensor in memory that the caller owns, laid out as DLPack's DLTensor: cast a pointer to one.
typedef struct regard_tensor {
  void* data;  // inputs are only read
  regard_device device;
  int32_t ndim;  // 1 to 4
  regard_dtype dtype;
  const int64_t* shape;
  const int64_t* strides;  // in elements; null: dense, row-major
  uint64_t byte_offset;    // added to data
} regard_tensor;

/// A dense, row-major tensor in the memory of this machine. `shape` is kept, not copied.
static inline regard_tensor regard_make_tensor(void* data, regard_dtype dtype, int32_t ndim,
                                               const int64_t* shape) {
  regard_tensor tensor = REGARD_ZEROED;
  tensor.data = data;
  tensor.device.device_type = REGARD_DEVICE_CPU;
  tensor.ndim = ndim;
  tensor.dtype = dtype;
  tensor.shape = shape;
  return tensor;
}

/// The same of const memory, for inputs alone: DLPack's layout has no flag for it, so that one
/// given as an output is written.
static inline regard_tensor regard_make_input(const void* data, regard_dtype dtype, int32_t ndim,
                                              const int64_t* shape) {
  return regard_make_tensor((void*)data, dtype, ndim, shape);
}

typedef enum regard_diagonal REGARD_INT32_ENUM {
  REGARD_DIAGONAL_UNNAMED = 0,
  REGARD_DIAGONAL_TOP_LEFT = 1,
  REGARD_DIAGONAL_BOTTOM_RIGHT = 2,
  REGARD_DIAGONAL_OFFSET = 3  // by diagonal_offset or diagonal_offsets
} regard_diagonal;

typedef enum regard_scores_kind REGARD_INT32_ENUM {
  REGARD_SCORES_NONE = 0,
  REGARD_SCORES_SCALED = 1,
  REGARD_SCORES_EDITED = 2,
  REGARD_SCORES_PROBS = 3
} regard_scores_kind;

typedef enum regard_fp8_recipe REGARD_INT32_ENUM {
  REGARD_FP8_RECIPE_NONE = 0,
  REGARD_FP8_RECIPE_DELAYED = 1,
  REGARD_FP8_RECIPE_CURRENT = 2,
  REGARD_FP8_RECIPE_MXFP8 = 3,
  REGARD_FP8_RECIPE_BLOCK = 4
} regard_fp8_recipe;

/// Of which rows x columns of 8-bit codes scales are: all columns of a row, or of an entry, or
/// blocks.
typedef enum regard_scale_layout REGARD_INT32_ENUM {
  REGARD_SCALES_ROWS = 0,
  REGARD_SCALES_1X32 = 1,
  REGARD_SCALES_1X128 = 2,
  REGARD_SCALES_128X128 = 3
} regard_scale_layout;

/// A function of the caller over a row of scores, applied after score_function. Workers call it at
/// the same time. scores[x] is that of query q and key kv_begin + x of head h of sequence b; -inf
/// hides a key. gradient turns d_scores, gradients of what edit returned, into those of scores;
/// null refuses a backward. This struct never grows.
typedef struct regard_score_callback {
  void (*edit)(void* user_data, float* scores, int64_t count, int64_t b, int64_t h, int64_t q,
               int64_t kv_begin);
  void (*gradient)(void* user_data, const float* scores, float* d_scores, int64_t count, int64_t b,
                   int64_t h, int64_t q, int64_t kv_begin);
  void* user_data;
} regard_score_callback;

/// A problem with its tensors; docs/semantics.md defines every field. q, k, v and out must
/// be given, every other pointer may be null. What is pointed to is read during the call only.
typedef struct regard_request {
  size_t struct_size;
  const regard_tensor* q;               // [B,Hq,Sq,Dqk]
  const regard_tensor* k;               // [B,Hkv,Skv,Dqk]
  const regard_tensor* v;               // [B,Hkv,Skv,Dv]
  const regard_tensor* out;             // output [B,Hq,Sq,Dv]
  const regard_tensor* lse;             // output, f32 (f64 for f64) [B,Hq,Sq], natural log
  const regard_tensor* saved_stats;     // output, f32 (f64 for f64) [B,Hq,Sq,2]
  const regard_tensor* scores_out;      // output, f32 (f64 for f64) [B,Hq,Sq,Skv]
  const regard_tensor* attn_mask;       // bool or u8 [1|B,1|Hq,1|Sq,1|Skv], true = may attend
  const regard_tensor* attn_bias;       // f32, f64 or q's dtype (not 8 bits) [1|B,1|Hq,1|Sq,1|Skv]
  const regard_tensor* alibi_slopes;    // f32 [Hq] or [B,Hq]
  const regard_tensor* sinks;           // f32 [Hq]
  const regard_tensor* segment_ids_q;   // i32 [B,Sq]
  const regard_tensor* segment_ids_kv;  // i32 [B,Skv]
  const regard_tensor* seqlens_q;       // i32 [B]
  const regard_tensor* seqlens_kv;      // i32 [B]
  const regard_tensor* cache_leftpad;   // i32 [B]: first rows of k and v that are no keys
  const regard_tensor* diagonal_offsets;  // i64 [B]
  // Packed sequences: where each begins in q and out [1,Hq,total_q,.], k and v [1,Hkv,total_kv,.].
  // lse is then [Hq,total_q], saved_stats [1,Hq,total_q,2], segment_ids [total_q] and [total_kv].
  const regard_tensor* cu_seqlens_q;   // i32 or i64 [B+1]
  const regard_tensor* cu_seqlens_kv;  // i32 or i64 [B+1]
  const regard_tensor* page_table;     // i32 [B,pages]
  // Of k and v of 8 bits: what rows are multiplied by, f32 [entries,Hkv,rows] or [entries,Hkv,1],
  // and columns of k, f32 [Hkv,Dqk]. Of unsigned integers of 4 bits [entries,Hkv,rows,2*groups]: a
  // scale and a minimum for every 32 elements of a row. Two of these share a byte, the first in its
  // low half; strides count elements.
  const regard_tensor* scales_k;
  const regard_tensor* scales_v;
  const regard_tensor* channel_scales_k;
  // Of q of 8-bit floats: what rows are multiplied by, f32 [B,Hq,Sq]. With scale_layout these and
  // scales_k and scales_v, but for u4, are of blocks: [B|entries,H,blocks of rows,blocks of
  // columns]
  const regard_tensor* scales_q;
  // u8 [1|B,1|Hq,blocks_q,blocks_kv]: what is known of mask_function in each block; 0: it is false,
  // 1: nothing, 2: it is true
  const regard_tensor* block_mask;
  // What score_function and mask_function read, of 1 to 4 dimensions
  const regard_tensor *captured0, *captured1, *captured2, *captured3;
  const regard_tensor *captured4, *captured5, *captured6, *captured7;
  const regard_tensor* k_new;      // [B,Hkv,Snew,Dqk], appended to k; q's dtype where it has scales
  const regard_tensor* v_new;      // [B,Hkv,Snew,Dv], appended to v; likewise
  const regard_tensor* tree_mask;  // bool or u8 [1|B,Sq,Snew], of the last Snew keys
  // Rotary embedding of q and k_new: f32 or q's dtype, [positions,rotary_dim/2].
  const regard_tensor* rotary_cos;
  const regard_tensor* rotary_sin;
  const regard_tensor* positions;        // i32 [B,Sq]
  const regard_tensor* cache_batch_idx;  // i32 [B]
  // What q, k and v are multiplied by: f32 [1] or [B,Hkv]; null: 1.
  const regard_tensor* descale_q;
  const regard_tensor* descale_k;
  const regard_tensor* descale_v;
  const regard_tensor* out_amax;  // output, f32 [1]: the largest magnitude of out before rounding
  // Scalars that may change each step.
  int64_t diagonal_offset;  // for REGARD_DIAGONAL_OFFSET without diagonal_offsets
  uint64_t rng_seed;        // of dropout
  uint64_t rng_offset;
  int64_t dropout_origin[4];  // where they begin: position, key, head, heads of the greater call
  // The longest lengths of packed sequences, or more. 0: total_q and total_kv, except that
  // regard_attention() and regard_attention_backward() read them from cu_seqlens in host memory.
  int64_t max_seqlen_q;
  int64_t max_seqlen_kv;
  // Options, from which the backend is selected. regard_execute() takes those of its plan instead.
  const double* softmax_scale;  // null: 1/sqrt(Dqk)
  const int64_t* window_left;   // null or -1: unlimited
  const int64_t* window_right;  // null or -1: unlimited
  double softcap;               // 0: none
  double dropout_p;             // probability of dropping
  int64_t page_size;
  regard_diagonal diagonal;
  regard_scores_kind scores_kind;  // what scores_out receives
  int32_t is_causal;               // 0 or 1
  int32_t needs_grad;              // 0 or 1: the plan then holds a forward and its backward
  int32_t d_lse;                   // 0 or 1, with needs_grad: the backward will be given d_lse
  int32_t delta;                   // 0 or 1, with needs_grad: the backward will be given delta
  int32_t rotary_interleaved;      // 0: pairs are half of rotary_dim apart; 1: they are neighbours
  int32_t hadamard;                // 0 or 1: k's rows are keys times the Walsh-Hadamard matrix
  // With needs_grad and q of 8-bit floats: types of the backward's d_out (null: out's), and of d_q,
  // d_k and d_v (null: bf16).
  const regard_dtype* dtype_d_out;
  const regard_dtype* dtype_gradients;
  regard_fp8_recipe fp8_recipe;      // of q of 8-bit floats: how the caller finds its scales
  regard_scale_layout scale_layout;  // of scales_q, scales_k and scales_v
  int32_t allow_future_scales;  // 0 or 1: blocks of rows and a causal mask, where later rows show
  int32_t quantize_probs;       // 0 or 1: P and dS are rounded to 8 bits, too
  const char* score_function;   // an edit of each score, as text; null: none
  const char* mask_function;    // true where a query may attend to a key; null: none
  int64_t block_size_q;         // of block_mask
  int64_t block_size_kv;
  const regard_score_callback* score_callback;  // null: none
} regard_request;

/// What a caller allows and prefers (docs/selection.md). A null field leaves the choice to the next
/// source: the context, then the environment. Lists are backends' names, separated by commas.
typedef struct regard_policy {
  size_t struct_size;
  const char* only;                    // nothing else may run: "flash,efficient"
  const char* deny;                    // these may not run
  const char* prefer;                  // an order; the rest follow in the built-in one
  const char* require;                 // run_to_run, thread_count_invariant, batch_invariant, none
  const char* on_fallback;             // allow, warn, error
  const double* max_error;             // refuses backends with a larger error bound
  const int64_t* max_workspace_bytes;  // refuses backends that need more
  const int32_t* assume_finite;        // 1: no NaN or infinity lies behind a mask; 0
  // One forward in so many recomputes some of its rows on MATH (docs/self_check.md); 0: none does
  const int64_t* self_check;
  const int32_t* self_check_deny;  // 1: a backend that fails may not run from then on; 0
  const char* self_check_dir;      // where failures leave files; null: the user's cache
} regard_policy;

/// Runs one worker of a call.
typedef void (*regard_task)(void* state, int32_t worker);

/// The caller's threads. run() calls task(state, worker) once for each worker in [0, workers), on
/// any threads, in any order, and returns when all have returned. A task may wait for another one
/// that has begun, so tasks that run at the same time need a thread each. This struct never grows.
typedef struct regard_executor {
  void (*run)(void* user, int32_t workers, regard_task task, void* state);
  void* user;
} regard_executor;

/// How to launch. A zeroed executor is the context's; a null workspace is leased from the context
/// by regard_attention() and refused by regard_execute() where the plan needs one.
typedef struct regard_launch {
  size_t struct_size;
  regard_executor executor;
  void* stream;     // an opaque device stream
  void* workspace;  // aligned to 64 bytes
  size_t workspace_bytes;
} regard_launch;

static inline regard_request regard_request_default(void) {
  regard_request request = REGARD_ZEROED;
  request.struct_size = sizeof(request);
  return request;
}
static inline regard_policy regard_policy_default(void) {
  regard_policy policy = REGARD_ZEROED;
  policy.struct_size = sizeof(policy);
  return policy;
}
static inline regard_launch regard_launch_default(void) {
  regard_launch launch = REGARD_ZEROED;
  launch.struct_size = sizeof(launch);
  return launch;
}

/// The version of the library that is linked, as REGARD_VERSION_NUMBER gives that of the header.
REGARD_EXPORT int32_t regard_version_number(void);
REGARD_EXPORT const char* regard_version(void);  // "0.1.0"

/// "ok", "invalid_argument", ...; "?" for an unknown status.
REGARD_EXPORT const char* regard_status_name(regard_status status);

/// The message of the last failed call of this thread: "[function] what (value) and what was
/// expected". Empty before the first; valid until the thread's next failure.
REGARD_EXPORT const char* regard_last_error(void);

/// Environment, policy, plan cache and threads: everything that outlives a call.
typedef struct regard_context regard_context;

REGARD_EXPORT regard_status regard_context_create(regard_context** context);
/// Does nothing for null and for the default context.
REGARD_EXPORT void regard_context_destroy(regard_context* context);
/// The context of the process, shared with C++ callers; made at the first use. Null if that fails.
REGARD_EXPORT regard_context* regard_default_context(void);

/// Applies to calls that start later; null restores the default. An executor's `user` is used until
/// the context and all its plans are destroyed.
REGARD_EXPORT regard_status regard_context_set_policy(regard_context* context,
                                                      const regard_policy* policy);
REGARD_EXPORT regard_status regard_context_set_executor(regard_context* context,
                                                        const regard_executor* executor);

/// Workers that calls may use, 1 to 1024: REGARD_NUM_THREADS, or the CPUs allowed, until set. It
/// may be set while calls run: they finish as they began. Results have the same bits with any
/// number.
REGARD_EXPORT regard_status regard_context_set_concurrency(regard_context* context,
                                                           int32_t concurrency);
REGARD_EXPORT regard_status regard_context_concurrency(regard_context* context,
                                                       int32_t* concurrency);

/// Checks a request and writes its problem, without tensors: as a case
/// ("b1 hq8 hkv8 sq128 skv128 d64 f32 causal diag=tl"), or as JSON.
REGARD_EXPORT regard_status regard_describe(const regard_request* request, char* buffer,
                                            size_t capacity, size_t* needed);
REGARD_EXPORT regard_status regard_describe_json(const regard_request* request, char* buffer,
                                                 size_t capacity, size_t* needed);

/// Which backend would run, with every reason against every other one, as a JSON object: for a
/// request, or for a case ("b1 hq8 sq128 d64"), which needs no tensors. `policy` may be null.
REGARD_EXPORT regard_status regard_explain(regard_context* context, const regard_request* request,
                                           const regard_policy* policy, char* buffer,
                                           size_t capacity, size_t* needed);
REGARD_EXPORT regard_status regard_explain_case(regard_context* context, const char* words,
                                                const regard_policy* policy, char* buffer,
                                                size_t capacity, size_t* needed);

/// What will run and how. Immutable; accepts calls whose extents are at most its own; may outlive
/// its context.
typedef struct regard_plan regard_plan;

/// `policy` may be null. *plan is null after a failure. A case may not describe another machine
/// (isa=, device=smNN).
REGARD_EXPORT regard_status regard_plan_create(regard_context* context,
                                               const regard_request* request,
                                               const regard_policy* policy, regard_plan** plan);
REGARD_EXPORT regard_status regard_plan_create_case(regard_context* context, const char* words,
                                                    const regard_policy* policy,
                                                    regard_plan** plan);
REGARD_EXPORT void regard_plan_destroy(regard_plan* plan);  // does nothing for null

/// "flash", "custom:mine", ...; valid until the plan is destroyed. Null for a null plan.
REGARD_EXPORT const char* regard_plan_backend(const regard_plan* plan);
/// The bytes that regard_execute() needs, aligned to 64.
REGARD_EXPORT regard_status regard_plan_workspace_bytes(const regard_plan* plan, size_t* bytes);
/// The same for regard_execute_backward(); 0 for a plan that was made without needs_grad.
REGARD_EXPORT regard_status regard_plan_backward_workspace_bytes(const regard_plan* plan,
                                                                 size_t* bytes);
/// One line for people.
REGARD_EXPORT regard_status regard_plan_text(const regard_plan* plan, char* buffer, size_t capacity,
                                             size_t* needed);
/// The decision that led to the plan, as regard_explain() writes it.
REGARD_EXPORT regard_status regard_plan_explain(const regard_plan* plan, char* buffer,
                                                size_t capacity, size_t* needed);

/// Builds what regard_execute() needs for the strides of these tensors: with cudnn, a graph for
/// strides that are not dense. May allocate. regard_attention() calls it by itself.
REGARD_EXPORT regard_status regard_prepare(const regard_plan* plan, const regard_request* request);

/// Checks the request's tensors against the plan, then computes; allocates nothing. `launch` may be
/// null where the plan needs no workspace.
REGARD_EXPORT regard_status regard_execute(const regard_plan* plan, const regard_request* request,
                                           const regard_launch* launch);

/// Describes, plans (from the context's cache) and executes. `policy` and `launch` may be null.
REGARD_EXPORT regard_status regard_attention(regard_context* context, const regard_request* request,
                                             const regard_policy* policy,
                                             const regard_launch* launch);

typedef enum regard_saved_kind REGARD_INT32_ENUM {
  REGARD_SAVED_NONE = 0,
  REGARD_SAVED_STATS = 1,  // saved_stats
  REGARD_SAVED_LSE = 2     // lse, less exact where scores are large (docs/numerics.md)
} regard_saved_kind;

/// What a backward takes besides the request of its forward, in which `out` is now an input and the
/// other outputs are not used. saved, saved_kind and d_out must be given; a null output is a
/// gradient that is not requested. A gradient has the type and shape of its tensor; where q has
/// 8-bit floats, d_out may have 8, 16 or 32 bits, and so may d_q, d_k and d_v, all three of one
/// type.
typedef struct regard_gradients {
  size_t struct_size;
  const regard_tensor* saved;            // what the forward wrote, saved_stats or lse
  const regard_tensor* d_out;            // [B,Hq,Sq,Dv]
  const regard_tensor* descale_d_out;    // what d_out is multiplied by: f32 [1] or [B,Hkv]; null: 1
  const regard_tensor* scales_d_out;     // of d_out's rows, or blocks; beside scales_q alone
  const regard_tensor* gradient_scales;  // of d_q, d_k and d_v: f32 [3]; null: 1
  const regard_tensor* delta;  // [B,Hq,Sq], the sums of d_out * out; null: computed from out
  const regard_tensor* d_lse;  // [B,Hq,Sq]; null: 0
  const regard_tensor* d_q;    // output
  const regard_tensor* d_k;    // output, summed over the query heads of a group
  const regard_tensor* d_v;    // output
  // output, f32 [3]: the largest magnitudes of d_q, d_k and d_v before their scales and rounding
  const regard_tensor* gradient_amax;
  const regard_tensor* d_bias;   // output, summed over dimensions in which attn_bias has extent 1
  const regard_tensor* d_sinks;  // output, summed over the batch and rows
  // outputs, of captured tensors that score_function reads
  const regard_tensor *d_captured0, *d_captured1, *d_captured2, *d_captured3;
  const regard_tensor *d_captured4, *d_captured5, *d_captured6, *d_captured7;
  const regard_plan* plan;  // for regard_attention_backward(), a pair's; null: it plans
  uint64_t rng_seed;        // of the forward; with dropout the request must have the same
  uint64_t rng_offset;
  regard_saved_kind saved_kind;  // what `saved` holds
  int32_t reserved;              // 0
} regard_gradients;

static inline regard_gradients regard_gradients_default(void) {
  regard_gradients gradients = REGARD_ZEROED;
  gradients.struct_size = sizeof(gradients);
  return gradients;
}

/// The same as regard_prepare(), for regard_execute_backward().
REGARD_EXPORT regard_status regard_prepare_backward(const regard_plan* plan,
                                                    const regard_request* request,
                                                    const regard_gradients* gradients);

/// The backward of a plan that was made with needs_grad. Checks the tensors against the plan, then
/// computes; allocates nothing, and reads no policy. `launch` as in regard_execute(), with
/// regard_plan_backward_workspace_bytes().
REGARD_EXPORT regard_status regard_execute_backward(const regard_plan* plan,
                                                    const regard_request* request,
                                                    const regard_gradients* gradients,
                                                    const regard_launch* launch);

/// The backward of a regard_attention() with needs_grad: on the backend of the plan in `gradients`,
/// under what `policy` restricts (only, deny, require, max_error, max_workspace_bytes), or, without
/// a plan, on one that is selected as regard_plan_create() does. `policy` and `launch` may be null.
REGARD_EXPORT regard_status regard_attention_backward(regard_context* context,
                                                      const regard_request* request,
                                                      const regard_gradients* gradients,
                                                      const regard_policy* policy,
                                                      const regard_launch* launch);

/// A partial result over some keys. Never grows.
typedef struct regard_state {
  const regard_tensor* out;  // [B,H,S,D]
  const regard_tensor* lse;  // [B,H,S]
} regard_state;

/// Merges partial results over disjoint sets of keys, in their order, into out and lse (which may
/// be null). out and lse may be those of a state.
REGARD_EXPORT regard_status regard_merge_states(const regard_state* states, size_t count,
                                                const regard_tensor* out, const regard_tensor* lse);

/// Which positions of a padded tensor [batch,seqlen,...] hold rows, and where the sequences begin
/// once these rows are packed, [total,...]. Immutable; made once for a batch, for every layer.
typedef struct regard_lengths regard_lengths;

/// *lengths is null after a failure. mask: bool, u8, i32 or i64 [batch,seqlen], nonzero where a
/// position holds a row. seqlens: i32 or i64 [batch], the first so many of `seqlen` positions.
/// position_ids: i32 or i64 [batch,seqlen]; a sequence begins at each 0.
REGARD_EXPORT regard_status regard_lengths_from_mask(const regard_tensor* mask,
                                                     regard_lengths** lengths);
REGARD_EXPORT regard_status regard_lengths_from_seqlens(const regard_tensor* seqlens,
                                                        int64_t seqlen, regard_lengths** lengths);
REGARD_EXPORT regard_status regard_lengths_from_position_ids(const regard_tensor* position_ids,
                                                             regard_lengths** lengths);
REGARD_EXPORT void regard_lengths_destroy(regard_lengths* lengths);  // null: nothing to destroy

/// What lengths hold; the arrays live as long as they do. Never grows.
typedef struct regard_lengths_view {
  int64_t batch;              // of the padded tensor
  int64_t seqlen;             // of the padded tensor
  int64_t num_sequences;      // batch, but for position_ids
  int64_t total;              // rows
  int64_t max_seqlen;         // rows of the longest sequence
  const int64_t* indices;     // [total]: where each row lies, b * seqlen + s
  const int32_t* cu_seqlens;  // [num_sequences + 1]: the row with which each begins, then total
} regard_lengths_view;

REGARD_EXPORT regard_status regard_lengths_read(const regard_lengths* lengths,
                                                regard_lengths_view* view);

/// Copies the rows of `padded` [batch,seqlen,...] (of 2 to 4 dimensions) to `packed` [total,...].
REGARD_EXPORT regard_status regard_unpad(const regard_lengths* lengths, const regard_tensor* padded,
                                         const regard_tensor* packed);
/// Copies the rows back; every other position of `padded` becomes zeros.
REGARD_EXPORT regard_status regard_pad(const regard_lengths* lengths, const regard_tensor* packed,
                                       const regard_tensor* padded);

/// How to compute padded tensors.
typedef enum regard_padding REGARD_INT32_ENUM {
  REGARD_PADDING_AUTO = 0,    // the way that is predicted to be the fastest
  REGARD_PADDING_PADDED = 1,  // with lengths where rows come first, else with a mask
  REGARD_PADDING_PACKED = 2
} regard_padding;

/// Which positions of padded q, k, v and out hold rows, and how to compute them.
typedef struct regard_padded_sequences {
  size_t struct_size;
  const regard_lengths* q;
  const regard_lengths* kv;  // null: those of q
  regard_padding padding;
  int32_t reserved;  // 0
} regard_padded_sequences;

static inline regard_padded_sequences regard_padded_sequences_default(void) {
  regard_padded_sequences sequences = REGARD_ZEROED;
  sequences.struct_size = sizeof(sequences);
  return sequences;
}

/// regard_attention() of padded sequences, as attention_padded() of regard/context.h: the lengths
/// have the batch and seqlen of q and of k, and every other position of out becomes exactly 0 and
/// of lse -inf. `policy` and `launch` may be null.
REGARD_EXPORT regard_status regard_attention_padded(regard_context* context,
                                                    const regard_request* request,
                                                    const regard_padded_sequences* sequences,
                                                    const regard_policy* policy,
                                                    const regard_launch* launch);

/// Writes the Selection of the path that regard_attention_padded() would take, as regard_explain()
/// does, with the paths that can compute the call in "paths". Fails as regard_attention_padded()
/// does. `policy` may be null.
REGARD_EXPORT regard_status regard_explain_padded(regard_context* context,
                                                  const regard_request* request,
                                                  const regard_padded_sequences* sequences,
                                                  const regard_policy* policy, char* buffer,
                                                  size_t capacity, size_t* needed);

/// regard_attention() of sequences over pages whose first `shared_prefix_kv` keys are the same
/// rows, which are read once for all of them, as attention_shared_prefix() of regard/context.h.
/// `policy` and `launch` may be null.
REGARD_EXPORT regard_status regard_attention_shared_prefix(regard_context* context,
                                                           const regard_request* request,
                                                           int64_t shared_prefix_kv,
                                                           const regard_policy* policy,
                                                           const regard_launch* launch);

/// Writes the Selection of the call over each sequence's own keys, as regard_explain() does, with
/// that of the call over the shared keys in "prefix". Reads no data; fails as
/// regard_attention_shared_prefix() does. `policy` may be null.
REGARD_EXPORT regard_status regard_explain_shared_prefix(regard_context* context,
                                                         const regard_request* request,
                                                         int64_t shared_prefix_kv,
                                                         const regard_policy* policy, char* buffer,
                                                         size_t capacity, size_t* needed);

/// Both calls of regard_attention_shared_prefix(), planned once for a prefix of that length.
/// Immutable; accepts calls whose other extents are at most its own; may outlive its context.
typedef struct regard_shared_prefix_plan regard_shared_prefix_plan;

/// Reads no data. `policy` may be null. *plan is null after a failure.
REGARD_EXPORT regard_status regard_shared_prefix_plan_create(regard_context* context,
                                                             const regard_request* request,
                                                             int64_t shared_prefix_kv,
                                                             const regard_policy* policy,
                                                             regard_shared_prefix_plan** plan);
REGARD_EXPORT void regard_shared_prefix_plan_destroy(
    regard_shared_prefix_plan* plan);  // does nothing for null

/// The bytes that regard_execute_shared_prefix() needs, aligned to 64.
REGARD_EXPORT regard_status
regard_shared_prefix_plan_workspace_bytes(const regard_shared_prefix_plan* plan, size_t* bytes);

/// Checks the request's tensors against the plan, then computes what
/// regard_attention_shared_prefix() does; allocates nothing.
REGARD_EXPORT regard_status regard_execute_shared_prefix(const regard_shared_prefix_plan* plan,
                                                         const regard_request* request,
                                                         const regard_launch* launch);

/// The backward of a regard_attention_padded() with needs_grad, as regard_attention_backward() of
/// padded tensors: every position without a row is not read, and is 0 in d_q, d_k and d_v. The way
/// is that of the plan in `gradients`, else what `sequences` state.
REGARD_EXPORT regard_status regard_attention_padded_backward(
    regard_context* context, const regard_request* request, const regard_gradients* gradients,
    const regard_padded_sequences* sequences, const regard_policy* policy,
    const regard_launch* launch);

#if defined(__cplusplus)
}  // extern "C"
#endif
#undef REGARD_INT32_ENUM
#undef REGARD_ZEROED
