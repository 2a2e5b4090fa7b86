#include "c_api/read.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "c_api/errors.h"
#include "c_api/struct_size.h"

namespace regard::c_api {
namespace {

// DLPack's DLTensor, version 1: a pointer to one may be cast.
static_assert(sizeof(regard_dtype) == 4 && offsetof(regard_dtype, bits) == 1 &&
              offsetof(regard_dtype, lanes) == 2);
static_assert(sizeof(regard_device) == 8 && offsetof(regard_device, device_id) == 4);
static_assert(sizeof(void*) != 8 ||
              (sizeof(regard_tensor) == 48 && offsetof(regard_tensor, device) == 8 &&
               offsetof(regard_tensor, ndim) == 16 && offsetof(regard_tensor, dtype) == 20 &&
               offsetof(regard_tensor, shape) == 24 && offsetof(regard_tensor, strides) == 32 &&
               offsetof(regard_tensor, byte_offset) == 40));

constexpr unsigned packed(unsigned code, unsigned bits) { return code << 8 | bits; }

std::optional<Dtype> dtype_of(const regard_dtype& dtype) noexcept {
  if (dtype.lanes != 1) return std::nullopt;
  switch (packed(dtype.code, dtype.bits)) {
    case packed(REGARD_DTYPE_FLOAT, 64): return Dtype::kF64;
    case packed(REGARD_DTYPE_FLOAT, 32): return Dtype::kF32;
    case packed(REGARD_DTYPE_BFLOAT, 16): return Dtype::kBf16;
    case packed(REGARD_DTYPE_FLOAT, 16): return Dtype::kF16;
    case packed(REGARD_DTYPE_FLOAT8_E4M3FN, 8): return Dtype::kF8E4M3;
    case packed(REGARD_DTYPE_FLOAT8_E5M2, 8): return Dtype::kF8E5M2;
    case packed(REGARD_DTYPE_INT, 8): return Dtype::kI8;
    case packed(REGARD_DTYPE_UINT, 8): return Dtype::kU8;
    case packed(REGARD_DTYPE_UINT, 4): return Dtype::kU4;
    case packed(REGARD_DTYPE_BOOL, 8): return Dtype::kBool;
    case packed(REGARD_DTYPE_INT, 32): return Dtype::kI32;
    case packed(REGARD_DTYPE_INT, 64): return Dtype::kI64;
    default: return std::nullopt;
  }
}

[[gnu::cold, gnu::noinline]] Status bad_dtype(const char* where, const char* name,
                                              const regard_dtype& dtype) {
  return invalid(where, "dtype of " + std::string(name) + " (code " + std::to_string(dtype.code) +
                            ", " + std::to_string(dtype.bits) + " bits, " +
                            std::to_string(dtype.lanes) +
                            " lanes) must have 1 lane and be one of: float 64, 32, 16, "
                            "bfloat 16, float8 e4m3fn or e5m2, int 8, 32, 64, uint 4, 8 or bool 8");
}

static_assert(REGARD_PADDING_AUTO == static_cast<int>(PaddingPolicy::kAuto) &&
              REGARD_PADDING_PADDED == static_cast<int>(PaddingPolicy::kPadded) &&
              REGARD_PADDING_PACKED == static_cast<int>(PaddingPolicy::kPacked));

// A value of the caller's that has a meaning from 0 to `last` only.
Status check_choice(const char* where, const char* name, std::int32_t value, std::int32_t last) {
  if (value >= 0 && value <= last) return {};
  const std::string choices = last == 0 ? "0" : "0.." + std::to_string(last);
  return invalid(where, std::string(name) + " (" + std::to_string(value) + ") must be " + choices);
}

// Shape and strides in one loop: two calls of memmove a tensor would take longer.
void set_extents(const regard_tensor& given, TensorView* view) noexcept {
  std::int64_t dense = 1;  // as in make_view it saturates, and describe names the size
  for (int i = view->rank - 1; i >= 0; --i) {
    const std::int64_t extent = given.shape[i];
    view->shape[i] = extent;
    view->strides[i] = given.strides != nullptr ? given.strides[i] : dense;
    if (__builtin_mul_overflow(dense, std::max<std::int64_t>(extent, 1), &dense)) {
      dense = INT64_MAX;
    }
  }
}

Status set_data(const char* where, const char* name, const regard_tensor& given, TensorView* view) {
  const auto address = reinterpret_cast<std::uintptr_t>(given.data);
  std::uintptr_t begin = 0;
  if (__builtin_add_overflow(address, given.byte_offset, &begin)) {
    return Status(StatusCode::kOverflow, "[" + std::string(where) + "] byte_offset of " + name +
                                             " (" + std::to_string(given.byte_offset) +
                                             ") must not lead past the address space");
  }
  view->data = given.data == nullptr ? nullptr : static_cast<char*>(given.data) + given.byte_offset;
  return {};
}

Status read_functions(const regard_request& given, AttentionOptions* options) {
  struct Text {
    const char* text;
    Expression* function;
  };
  for (const Text& t : {Text{given.score_function, &options->score_function},
                        Text{given.mask_function, &options->mask_function}}) {
    if (t.text == nullptr) continue;
    Expected<Expression> parsed = Expression::parse(t.text);
    if (!parsed) return parsed.status();
    *t.function = *std::move(parsed);
  }
  options->block_size_q = given.block_size_q;
  options->block_size_kv = given.block_size_kv;
  return {};
}

static_assert(REGARD_FP8_RECIPE_NONE == static_cast<int>(Fp8Recipe::kNone) &&
              REGARD_FP8_RECIPE_DELAYED == static_cast<int>(Fp8Recipe::kDelayed) &&
              REGARD_FP8_RECIPE_CURRENT == static_cast<int>(Fp8Recipe::kCurrent) &&
              REGARD_FP8_RECIPE_MXFP8 == static_cast<int>(Fp8Recipe::kMxfp8) &&
              REGARD_FP8_RECIPE_BLOCK == static_cast<int>(Fp8Recipe::kBlock));
static_assert(REGARD_SCALES_ROWS == static_cast<int>(ScaleLayout::kRows) &&
              REGARD_SCALES_1X32 == static_cast<int>(ScaleLayout::k1x32) &&
              REGARD_SCALES_1X128 == static_cast<int>(ScaleLayout::k1x128) &&
              REGARD_SCALES_128X128 == static_cast<int>(ScaleLayout::k128x128));

Status read_f8_options(const char* where, const regard_request& given, AttentionOptions* options) {
  Status status = check_choice(where, "fp8_recipe", given.fp8_recipe, REGARD_FP8_RECIPE_BLOCK);
  if (status.ok()) {
    status = check_choice(where, "scale_layout", given.scale_layout, REGARD_SCALES_128X128);
  }
  if (status.ok()) {
    status = check_choice(where, "allow_future_scales", given.allow_future_scales, 1);
  }
  if (status.ok()) status = check_choice(where, "quantize_probs", given.quantize_probs, 1);
  if (!status.ok()) return status;
  options->scale_layout = static_cast<ScaleLayout>(given.scale_layout);
  options->allow_future_scales = given.allow_future_scales != 0;
  options->quantize_probs = given.quantize_probs != 0;
  options->fp8_recipe = static_cast<Fp8Recipe>(given.fp8_recipe);
  struct Chosen {
    const char* name;
    const regard_dtype* given;
    std::optional<Dtype>* dtype;
  };
  for (const Chosen& c :
       {Chosen{"dtype_d_out", given.dtype_d_out, &options->dtype_d_out},
        Chosen{"dtype_gradients", given.dtype_gradients, &options->dtype_gradients}}) {
    if (c.given == nullptr) continue;
    *c.dtype = dtype_of(*c.given);
    if (!c.dtype->has_value()) return bad_dtype(where, c.name, *c.given);
  }
  return {};
}

Status read_options(const char* where, const regard_request& given, AttentionOptions* options) {
  if (Status s = check_choice(where, "is_causal", given.is_causal, 1); !s.ok()) return s;
  if (Status s = check_choice(where, "needs_grad", given.needs_grad, 1); !s.ok()) return s;
  if (Status s = check_choice(where, "d_lse", given.d_lse, 1); !s.ok()) return s;
  if (Status s = check_choice(where, "delta", given.delta, 1); !s.ok()) return s;
  if (Status s = check_choice(where, "rotary_interleaved", given.rotary_interleaved, 1); !s.ok()) {
    return s;
  }
  if (Status s = check_choice(where, "hadamard", given.hadamard, 1); !s.ok()) return s;
  if (Status s = check_choice(where, "diagonal", given.diagonal, REGARD_DIAGONAL_OFFSET); !s.ok()) {
    return s;
  }
  if (Status s = check_choice(where, "scores_kind", given.scores_kind, REGARD_SCORES_PROBS);
      !s.ok()) {
    return s;
  }
  options->is_causal = given.is_causal != 0;
  options->needs_grad = given.needs_grad != 0;
  options->d_lse = given.d_lse != 0;
  options->delta = given.delta != 0;
  options->rotary_interleaved = given.rotary_interleaved != 0;
  options->hadamard = given.hadamard != 0;
  options->diagonal = static_cast<Diagonal>(given.diagonal);
  options->scores_kind = static_cast<ScoresKind>(given.scores_kind);
  if (given.window_left != nullptr) options->window_left = *given.window_left;
  if (given.window_right != nullptr) options->window_right = *given.window_right;
  if (given.softmax_scale != nullptr) options->softmax_scale = *given.softmax_scale;
  options->softcap = given.softcap;
  options->dropout_p = given.dropout_p;
  options->page_size = given.page_size;
  if (Status s = read_f8_options(where, given, options); !s.ok()) return s;
  return read_functions(given, options);
}

static_assert(REGARD_DIAGONAL_UNNAMED == static_cast<int>(Diagonal::kUnnamed) &&
              REGARD_DIAGONAL_TOP_LEFT == static_cast<int>(Diagonal::kTopLeft) &&
              REGARD_DIAGONAL_BOTTOM_RIGHT == static_cast<int>(Diagonal::kBottomRight) &&
              REGARD_DIAGONAL_OFFSET == static_cast<int>(Diagonal::kOffset));
static_assert(REGARD_SCORES_NONE == static_cast<int>(ScoresKind::kNone) &&
              REGARD_SCORES_SCALED == static_cast<int>(ScoresKind::kScaled) &&
              REGARD_SCORES_EDITED == static_cast<int>(ScoresKind::kEdited) &&
              REGARD_SCORES_PROBS == static_cast<int>(ScoresKind::kProbs));
static_assert(REGARD_SAVED_NONE == static_cast<int>(SavedContext::Kind::kNone) &&
              REGARD_SAVED_STATS == static_cast<int>(SavedContext::Kind::kStats) &&
              REGARD_SAVED_LSE == static_cast<int>(SavedContext::Kind::kLse));

}  // namespace

Status read_tensor(const char* where, const char* name, const regard_tensor* given,
                   TensorView* view) {
  if (given == nullptr) return {};
  const std::int32_t rank = given->ndim;
  if (rank < 1 || rank > kMaxRank) {
    return invalid(where, "ndim of " + std::string(name) + " (" + std::to_string(rank) +
                              ") must be 1.." + std::to_string(kMaxRank));
  }
  if (given->shape == nullptr) {
    return invalid(where, "shape of " + std::string(name) + " (null) must hold its " +
                              std::to_string(rank) + " extents");
  }
  const std::optional<Dtype> dtype = dtype_of(given->dtype);
  if (!dtype) return bad_dtype(where, name, given->dtype);
  const regard_device_type device = given->device.device_type;
  if (device != REGARD_DEVICE_CPU && device != REGARD_DEVICE_CUDA) {
    return invalid(where, "device_type of " + std::string(name) + " (" + std::to_string(device) +
                              ") must be 1 (cpu) or 2 (cuda)");
  }
  view->dtype = *dtype;
  view->device = {device == REGARD_DEVICE_CPU ? DeviceType::kCpu : DeviceType::kCuda,
                  given->device.device_id};
  view->rank = rank;
  set_extents(*given, view);
  return set_data(where, name, *given, view);
}

Status read_tensors(const char* where, const regard_request& given, Buffers* buffers,
                    TensorSpecs specs) {
  for (const TensorSpec& spec : specs) {
    if (spec.buffer == nullptr) break;  // the rows of a backward
    const regard_tensor* const tensor = given.*spec.c_request;
    if (tensor == nullptr) continue;
    Status status = read_tensor(where, spec.name, tensor, &(buffers->*spec.buffer));
    if (!status.ok()) return status;
  }
  return {};
}

Status read_tensors(const char* where, const regard_gradients& given, GradBuffers* gradients,
                    TensorSpecs specs) {
  for (const TensorSpec& spec : specs) {
    if (spec.buffer != nullptr || given.*spec.c_gradient == nullptr) continue;
    TensorView* const view = spec.in(gradients);
    if (Status s = read_tensor(where, spec.name, given.*spec.c_gradient, view); !s.ok()) return s;
  }
  return {};
}

Status read_request(const char* where, const regard_request* given, AttentionRequest* request) {
  Versioned<regard_request> r;
  if (Status s = r.read(where, "request", given); !s.ok()) return s;
  if (Status s = read_tensors(where, *r, request); !s.ok()) return s;
  request->diagonal_offset = r->diagonal_offset;
  request->max_seqlen_q = r->max_seqlen_q;
  request->max_seqlen_kv = r->max_seqlen_kv;
  request->rng_seed = r->rng_seed;
  request->rng_offset = r->rng_offset;
  const std::int64_t(&origin)[4] = r->dropout_origin;
  request->dropout_origin = {origin[0], origin[1], origin[2], origin[3]};
  if (r->score_callback != nullptr) {
    const regard_score_callback& callback = *r->score_callback;
    if (callback.edit == nullptr) {
      return invalid(where, "edit of score_callback (null) must be given");
    }
    request->score_callback = {callback.edit, callback.gradient, callback.user_data};
  }
  return read_options(where, *r, &request->options);
}

Status read_words(const char* where, const regard_request* request, const regard_policy* policy,
                  CallWords* words) {
  if (Status s = read_request(where, request, &words->request); !s.ok()) return s;
  return read_policy(where, policy, &words->policy);
}

Status read_sequences(const char* where, const regard_padded_sequences* given,
                      PaddedSequences* sequences) {
  Versioned<regard_padded_sequences> s;
  if (Status status = s.read(where, "sequences", given); !status.ok()) return status;
  if (Status status = require(where, "q of sequences", s->q); !status.ok()) return status;
  Status status = check_choice(where, "padding", s->padding, REGARD_PADDING_PACKED);
  if (status.ok()) status = check_choice(where, "reserved", s->reserved, 0);
  if (!status.ok()) return status;
  sequences->q = s->q->lengths;
  sequences->kv = s->kv == nullptr ? sequences->q : s->kv->lengths;
  sequences->policy = static_cast<PaddingPolicy>(s->padding);
  return {};
}

Status read_gradients(const char* where, const regard_gradients* given, GradBuffers* gradients) {
  Versioned<regard_gradients> g;
  if (Status s = g.read(where, "gradients", given); !s.ok()) return s;
  if (Status s = check_choice(where, "saved_kind", g->saved_kind, REGARD_SAVED_LSE); !s.ok()) {
    return s;
  }
  if (Status s = check_choice(where, "reserved", g->reserved, 0); !s.ok()) return s;
  if (Status s = read_tensors(where, *g, gradients); !s.ok()) return s;
  SavedContext& saved = gradients->saved;
  saved.kind = static_cast<SavedContext::Kind>(g->saved_kind);
  saved.rng_seed = g->rng_seed;
  saved.rng_offset = g->rng_offset;
  if (g->plan != nullptr) saved.plan = g->plan->plan;
  return {};
}

Status read_launch(const char* where, const regard_launch* given, CallLaunch* call) {
  if (given == nullptr) return {};
  Versioned<regard_launch> l;
  if (Status s = l.read(where, "launch", given); !s.ok()) return s;
  if (l->executor.run != nullptr) {
    call->launch.executor = &call->executor.emplace(l->executor);
  } else if (l->executor.user != nullptr) {
    return invalid(where, "run of launch's executor (null) must be given with its user");
  }
  call->launch.stream = l->stream;
  call->launch.workspace = {l->workspace, l->workspace_bytes};
  return {};
}

}  // namespace regard::c_api
