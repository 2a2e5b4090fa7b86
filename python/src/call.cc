#include "call.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string_view>
#include <tuple>

#include "bind_lengths.h"
#include "bind_policy.h"
#include "regard/lengths.h"
#include "regard/tensors.h"

namespace regard::python {
namespace {

std::uint64_t fresh_seed() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

bool speaks_of_extents(const std::string& message) {
  for (const char* word : {"shape", "stride", "batch", "num_heads", "seqlen", "head_dim"}) {
    if (message.find(word) != std::string::npos) return true;
  }
  return false;
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

/// Whether a tensor has at most two dimensions in each of its shapes: lists are taken, too.
bool is_small(const TensorSpec& spec) {
  if (spec.dtype != DtypeRule::kI32 && spec.dtype != DtypeRule::kF32) return false;
  for (const ShapeRule::Alternative& shape : spec.shape.alternatives()) {
    if (shape.rank > 2) return false;
  }
  return true;
}

std::vector<Vector> vectors_of_a_call() {
  std::vector<Vector> vectors;
  for (const TensorSpec& spec : kTensors) {
    const int arg = arg_named(spec.name);
    // What a call may write is taken where it is, by read_keys.
    const bool may_be_written = !spec.written_with.empty() || spec.forward != TensorRole::kIn;
    if (arg == kArgCount || may_be_written || !is_small(spec)) continue;
    const Vector::Kind kind = spec.dtype == DtypeRule::kI32 ? Vector::Kind::kIntegers
                              : is_one_number(spec.shape.alternatives()[0])
                                  ? Vector::Kind::kNumberOrNumbers
                                  : Vector::Kind::kNumbers;
    vectors.push_back({static_cast<Arg>(arg), kind, spec.buffer, shape_words(spec.shape)});
  }
  return vectors;
}

}  // namespace

RowOrder read_layout(PyObject* object) {
  if (object == nullptr) return RowOrder::kBhsd;
  const char* word = read_text(object, "layout", "'BHSD' or 'BSHD'");
  if (std::strcmp(word, "BHSD") == 0) return RowOrder::kBhsd;
  if (std::strcmp(word, "BSHD") == 0) return RowOrder::kBshd;
  raise_value("layout (" + repr(object) + ") must be 'BHSD' or 'BSHD'");
}

void check(const Call& call, const Status& status) {
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  if (!status.ok()) raise_status(in_callers_words(call, status));
}

// Messages of the core name [B,H,S,D], also where the caller's layout is another, and an attn_bias,
// which may have come as attn_mask.
Status in_callers_words(const Call& call, const Status& status) {
  if (status.code() != StatusCode::kInvalidArgument) return status;
  std::string message = status.message();
  if (call.bias_is_mask()) {
    const std::size_t at = message.find("attn_bias");
    if (at != std::string::npos) message.replace(at, std::strlen("attn_bias"), "attn_mask");
  }
  if (call.order() != RowOrder::kBhsd && speaks_of_extents(message)) {
    message += call.order() == RowOrder::kBshd
                   ? " (shapes and strides in the order BHSD; the layout is BSHD)"
                   : " (packed tensors are [1, heads, total, head_dim] here)";
  }
  return Status(status.code(), std::move(message));
}

namespace {

int rank_of(PyObject* q) {
  if (PyArray_Check(q)) return PyArray_NDIM(reinterpret_cast<PyArrayObject*>(q));
  const nb::object rank = nb::getattr(nb::handle(q), "ndim", nb::none());
  return PyLong_Check(rank.ptr()) ? static_cast<int>(PyLong_AsLong(rank.ptr())) : 0;
}

/// Whether lengths say which positions of padded tensors hold rows.
bool has_padded_lengths(const Arguments& arguments) {
  if (arguments.given(kLengths) == nullptr) return false;
  return arguments.value[kQ] != nullptr && rank_of(arguments.value[kQ]) == 4;
}

/// Packed sequences are [total, heads, head_dim], whatever the layout of padded ones.
RowOrder order_of(const Arguments& arguments) {
  const RowOrder order = read_layout(arguments.value[kLayout]);
  if (has_padded_lengths(arguments)) return order;
  for (const Arg arg : {kCuSeqlensQ, kCuSeqlensKv, kLengths, kLengthsKv}) {
    if (arguments.given(arg) != nullptr) return RowOrder::kPacked;
  }
  return order;
}

}  // namespace

Call::Call(const Arguments& arguments, Purpose purpose)
    : q_(arguments.value[kQ]),
      order_(order_of(arguments)),
      inputs_(order_, purpose == Purpose::kExplain) {
  for (const Arg arg : {kQ, kK, kV}) {
    if (arguments.value[arg] == nullptr) {
      raise_type(std::string(name_of(arg)) + " is missing; q, k and v are required");
    }
  }
  request.q = inputs_.tensor(arguments.value[kQ], "q");
  read_keys(arguments);
  read_options(arguments);
  read_f8(arguments);
  read_mask_and_bias(arguments);
  read_functions(arguments);
  read_score_callback(arguments);
  read_cache(arguments);
  read_vectors(arguments);
  read_packed(arguments);
  read_block_mask(arguments);
  read_padding(arguments);
  if (purpose == Purpose::kExplain) state_tokens();
  read_dropout(arguments);
  policy = read_policy(arguments.given(kPolicy), arguments.given(kBackends));
  if (purpose == Purpose::kBackward) {
    request.options.needs_grad = true;
    request.out = inputs_.tensor(arguments.value[kOut], "out");
  } else {
    make_outputs(arguments);
  }
}

/// k and v, and the rows that are appended to them. In pages they are in the order of the layout,
/// whether q is packed or not.
void Call::read_keys(const Arguments& arguments) {
  const bool paged = arguments.given(kPageTable) != nullptr;
  const RowOrder order = paged ? read_layout(arguments.value[kLayout]) : order_;
  const std::size_t copies = inputs_.notes().size();
  const auto read_rows = [&](Arg arg, Arg dtype) {
    const bool packed = is_u4(arguments.given(dtype), name_of(dtype));
    return packed ? inputs_.packed_codes(arguments.value[arg], name_of(arg), order)
                  : inputs_.tensor(arguments.value[arg], name_of(arg), order);
  };
  request.k = read_rows(kK, kKDtype);
  request.v = read_rows(kV, kVDtype);
  if (arguments.given(kKNew) != nullptr && inputs_.notes().size() != copies) {
    raise_value("k and v must be taken where they are, since k_new is appended to them; " +
                inputs_.notes().back());
  }
  const auto read = [&](Arg arg, TensorView* view) {
    PyObject* const given = arguments.given(arg);
    if (given != nullptr) *view = inputs_.tensor(given, name_of(arg), order);
  };
  read(kKNew, &request.k_new);
  read(kVNew, &request.v_new);
  const auto read_as_given = [&](Arg arg, TensorView* view) {
    PyObject* const given = arguments.given(arg);
    if (given != nullptr) *view = inputs_.any_view(array_from(given, name_of(arg)), name_of(arg));
  };
  for (const Arg arg : {kScalesK, kScalesV}) {
    PyObject* const given = arguments.given(arg);
    if (given == nullptr || !(PyList_Check(given) || PyTuple_Check(given))) continue;
    raise_type(std::string(name_of(arg)) +
               " must be a float32 array, not a list: k_new may write it");
  }
  read_as_given(kScalesK, &request.scales_k);
  read_as_given(kScalesV, &request.scales_v);
  read_as_given(kScalesQ, &request.scales_q);
  if (PyObject* const given = arguments.given(kScaleLayout)) {
    constexpr const char* kAccepted = "'1x32', '1x128' or '128x128'";
    const std::string_view word = read_text(given, "scale_layout", kAccepted);
    for (const ScaleLayout layout :
         {ScaleLayout::k1x32, ScaleLayout::k1x128, ScaleLayout::k128x128}) {
      if (word == to_string(layout)) request.options.scale_layout = layout;
    }
    if (request.options.scale_layout == ScaleLayout::kRows) {
      raise_value("scale_layout (" + repr(given) + ") must be " + kAccepted);
    }
  }
  if (PyObject* const given = arguments.value[kAllowFutureScales]) {
    request.options.allow_future_scales = read_bool(given, "allow_future_scales");
  }
  if (PyObject* const given = arguments.value[kQuantizeProbs]) {
    request.options.quantize_probs = read_bool(given, "quantize_probs");
  }
  read_as_given(kRotaryCos, &request.rotary_cos);
  read_as_given(kRotarySin, &request.rotary_sin);
  if (PyObject* const given = arguments.value[kRotaryInterleaved]) {
    request.options.rotary_interleaved = read_bool(given, "rotary_interleaved");
  }
  if (PyObject* const given = arguments.value[kHadamard]) {
    request.options.hadamard = read_bool(given, "hadamard");
  }
}

void Call::read_options(const Arguments& arguments) {
  AttentionOptions& options = request.options;
  if (PyObject* causal = arguments.value[kIsCausal])
    options.is_causal = read_bool(causal, "is_causal");
  if (PyObject* diagonal = arguments.given(kDiagonal)) read_diagonal(diagonal);
  if (PyObject* window = arguments.value[kWindow]) {
    std::tie(options.window_left, options.window_right) = read_window(window);
  }
  if (PyObject* scale = arguments.given(kSoftmaxScale)) {
    options.softmax_scale = read_double(scale, "softmax_scale");
  }
  if (PyObject* softcap = arguments.value[kSoftcap])
    options.softcap = read_double(softcap, "softcap");
}

void Call::read_f8(const Arguments& arguments) {
  AttentionOptions& options = request.options;
  if (PyObject* const given = arguments.given(kFp8Recipe)) {
    constexpr const char* kAccepted = "'delayed', 'current', 'mxfp8' or 'block'";
    const std::string_view word = read_text(given, "fp8_recipe", kAccepted);
    for (const Fp8Recipe recipe :
         {Fp8Recipe::kDelayed, Fp8Recipe::kCurrent, Fp8Recipe::kMxfp8, Fp8Recipe::kBlock}) {
      if (word == to_string(recipe)) options.fp8_recipe = recipe;
    }
    if (options.fp8_recipe == Fp8Recipe::kNone) {
      raise_value("fp8_recipe (" + repr(given) + ") must be " + kAccepted);
    }
  }
  const auto read = [&](Arg arg, std::optional<Dtype>* dtype) {
    PyObject* const given = arguments.given(arg);
    if (given == nullptr) return;
    constexpr const char* kAccepted = "'f8e4m3', 'f8e5m2', 'bf16', 'f16' or 'f32'";
    const std::optional<Dtype> word = parse_dtype(read_text(given, name_of(arg), kAccepted));
    if (!word || !is_f8_gradient(*word)) {
      raise_value(std::string(name_of(arg)) + " (" + repr(given) + ") must be " + kAccepted);
    }
    *dtype = word;
  };
  read(kDOutDtype, &options.dtype_d_out);
  read(kGradientDtype, &options.dtype_gradients);
}

void Call::read_diagonal(PyObject* diagonal) {
  constexpr const char* kAccepted =
      "'top_left', 'bottom_right', an integer offset or an integer array [batch]";
  AttentionOptions& options = request.options;
  if (PyUnicode_Check(diagonal)) {
    options.diagonal = read_diagonal_word(diagonal, kAccepted);
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

void Call::read_cache(const Arguments& arguments) {
  if (PyObject* const shared = arguments.value[kSharedPrefixKv]) {
    shared_prefix_kv = read_int64(shared, "shared_prefix_kv");
    if (shared_prefix_kv != 0 && arguments.given(kLengths) != nullptr) {
      raise_value("shared_prefix_kv (" + std::to_string(shared_prefix_kv) +
                  ") must be left out beside lengths");
    }
  }
  PyObject* const given = arguments.given(kTreeMask);
  if (given != nullptr)
    request.tree_mask = inputs_.any_view(array_from(given, "tree_mask"), "tree_mask");
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

void Call::read_padding(const Arguments& arguments) {
  PyObject* const given = arguments.given(kPadding);
  if (given == nullptr) return;
  constexpr const char* kAccepted = "'auto', 'padded' or 'packed'";
  const Expected<PaddingPolicy> word = parse_padding_policy(read_text(given, "padding", kAccepted));
  if (!word) raise_value("padding (" + repr(given) + ") must be " + kAccepted);
  if (!padded) {
    raise_value("padding (" + repr(given) + ") needs lengths and padded tensors, of rank 4");
  }
  padded->policy = *word;
}

void Call::state_tokens() {
  const auto sum_of = [](const TensorView& seqlens) {
    std::int64_t sum = 0;
    if (!seqlens.present() || seqlens.rank != 1) return sum;
    for (std::int64_t b = 0; b < seqlens.shape[0]; ++b) {
      const std::int32_t length =
          static_cast<const std::int32_t*>(seqlens.data)[b * seqlens.strides[0]];
      sum += std::max(length, 0);
    }
    return sum;
  };
  request.options.tokens_q = sum_of(request.seqlens_q);
  request.options.tokens_kv = sum_of(request.seqlens_kv);
}

void Call::read_packed(const Arguments& arguments) {
  PyObject* const lengths = arguments.given(kLengths);
  PyObject* const lengths_kv = arguments.given(kLengthsKv);
  if (lengths == nullptr && lengths_kv == nullptr) {
    read_starts(arguments, kCuSeqlensQ, kMaxSeqlenQ, &request.cu_seqlens_q, &request.max_seqlen_q);
    // Keys in pages are not packed.
    const bool states_keys = arguments.given(kCuSeqlensKv) || arguments.given(kMaxSeqlenKv);
    if (request.page_table.present() && !states_keys) return;
    read_starts(arguments, kCuSeqlensKv, kMaxSeqlenKv, &request.cu_seqlens_kv,
                &request.max_seqlen_kv);
    return;
  }
  for (const Arg arg : {kCuSeqlensQ, kCuSeqlensKv, kMaxSeqlenQ, kMaxSeqlenKv}) {
    if (arguments.given(arg) == nullptr) continue;
    raise_value(std::string(name_of(arg)) + " (" + repr(arguments.value[arg]) +
                ") was given beside lengths, which state it; expected one");
  }
  if (lengths == nullptr) raise_value("lengths is missing: lengths_kv is given beside it");
  const Lengths& q = read_lengths(lengths, "lengths");
  const Lengths& kv = lengths_kv == nullptr ? q : read_lengths(lengths_kv, "lengths_kv");
  if (order_ != RowOrder::kPacked) {
    padded = PaddedSequences{q, kv};
    return;
  }
  request.cu_seqlens_q = q.cu_seqlens_view();
  request.max_seqlen_q = q.max_seqlen();
  request.cu_seqlens_kv = kv.cu_seqlens_view();
  request.max_seqlen_kv = kv.max_seqlen();
}

void Call::read_starts(const Arguments& arguments, Arg starts, Arg longest, TensorView* cu_seqlens,
                       std::int64_t* max_seqlen) {
  const char* const name = name_of(starts);
  const char* const max_name = name_of(longest);
  PyObject* const given_max = arguments.given(longest);
  if (given_max != nullptr) *max_seqlen = read_int64(given_max, max_name);
  if (order_ != RowOrder::kPacked) {
    if (given_max == nullptr) return;
    raise_value(std::string(max_name) + " (" + repr(given_max) + ") needs " + name +
                "; the lengths of padded sequences are seqlens_q and seqlens_kv");
  }
  if (arguments.given(starts) == nullptr) {
    raise_value(std::string(name) +
                " is missing: packed sequences need cu_seqlens_q and cu_seqlens_kv");
  }
  // The same starts given twice are one array: a diagonal may then stay unnamed.
  const bool same =
      starts == kCuSeqlensKv && arguments.value[kCuSeqlensQ] == arguments.value[starts];
  *cu_seqlens = same ? request.cu_seqlens_q : inputs_.starts(arguments.value[starts], name);
  if (given_max != nullptr && *max_seqlen != 0) return;
  *max_seqlen = longest_sequence(*cu_seqlens);
  if (given_max != nullptr && *max_seqlen != 0) {  // the core reads 0 as not given
    raise_value(std::string(max_name) + " (0) must be at least the longest length, " +
                std::to_string(*max_seqlen));
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

}  // namespace regard::python
