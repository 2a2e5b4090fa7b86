#include "core/execute/write_call.h"

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <vector>

#include "base/checked.h"
#include "base/json_writer.h"
#include "base/message.h"
#include "platform/atomic_file.h"
#include "regard/case.h"
#include "regard/tensors.h"

namespace regard {
namespace {

constexpr const char* kSelfCheck = "self_check";
constexpr std::int64_t kMaxCallBytes = std::int64_t{1} << 30;

// "" of types that the format lacks.
const char* safetensors_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64: return "F64";
    case Dtype::kF32: return "F32";
    case Dtype::kBf16: return "BF16";
    case Dtype::kF16: return "F16";
    case Dtype::kF8E4M3: return "F8_E4M3";
    case Dtype::kF8E5M2: return "F8_E5M2";
    case Dtype::kI64: return "I64";
    case Dtype::kI32: return "I32";
    case Dtype::kI8: return "I8";
    case Dtype::kU8: return "U8";
    case Dtype::kBool: return "BOOL";
    default: return "";
  }
}

struct NamedTensor {
  const char* name;
  TensorView view;
  std::int64_t bytes;
};

// Inputs, those of large elements first, so that each is aligned in the file.
Expected<std::vector<NamedTensor>> named_inputs(const Buffers& buffers) {
  std::vector<NamedTensor> inputs;
  std::int64_t all = 0;
  for (const std::int64_t size : {8, 4, 2, 1}) {
    for (const TensorSpec& spec : kTensors) {
      const bool is_input = spec.forward == TensorRole::kIn || spec.forward == TensorRole::kInOut;
      if (spec.buffer == nullptr || !is_input) continue;
      const TensorView* const view = &(buffers.*spec.buffer);
      if (!view->present()) continue;
      if (*safetensors_name(view->dtype) == '\0') {
        return invalid(kSelfCheck, spec.name, " is of ", to_string(view->dtype),
                       ", which safetensors files lack");
      }
      if (size_of(view->dtype) != size) continue;
      const std::int64_t bytes = saturating_mul(view->num_elements(), size);
      all = saturating_add(all, bytes);
      inputs.push_back({spec.name, *view, bytes});
    }
  }
  if (all <= kMaxCallBytes) return inputs;
  return invalid(kSelfCheck, "its tensors have ", all, " bytes, more than ", kMaxCallBytes);
}

// What of a call the command line takes; "" where it takes all.
std::string not_taken_by_run(const AttentionParams& params, const Buffers& buffers) {
  constexpr FeatureSet kNotTaken{
      Feature::kPacked,    Feature::kPaged,         Feature::kAppendKv,      Feature::kRotary,
      Feature::kHadamard,  Feature::kCaptured,      Feature::kScoreFunction, Feature::kMaskFunction,
      Feature::kBlockMask, Feature::kScoreCallback, Feature::kCacheBatchIdx, Feature::kCacheLeftpad,
      Feature::kTreeMask};
  for (int i = 0; i < kFeatureCount; ++i) {
    const auto feature = static_cast<Feature>(i);
    if (kNotTaken.has(feature) && params.features.has(feature)) return to_string(feature);
  }
  return params.features.has(Feature::kDropout) && buffers.rng_offset != 0 ? "rng_offset" : "";
}

// Options as `regard run` reads them; tensors say the rest.
std::string options_words(const AttentionParams& params, const Buffers& buffers) {
  Case c;
  c.params = params;
  for (const TensorLayout& layout : kTensorLayouts) {
    c.params.*layout.order = Layout::kBhsd;
    c.params.*layout.align_log2 = kMaxAlignLog2;
  }
  c.params.tokens_q = c.params.tokens_kv = 0;
  c.params.features = c.params.features.without(
      {Feature::kNeedsGrad, Feature::kDLse, Feature::kDelta, Feature::kSavedStats});
  c.data.diagonal_offset = buffers.diagonal_offset;
  c.data.seed = buffers.rng_seed;
  c.data.dropout_origin = buffers.dropout_origin;
  canonicalize(c);
  return to_string(c);
}

std::string header_of(const std::vector<NamedTensor>& inputs, const PlanImpl& plan,
                      const AttentionParams& params, const Buffers& buffers) {
  JsonWriter w;
  w.begin_object().key("__metadata__").begin_object();
  w.key("regard.options").value(options_words(params, buffers));
  w.key("regard.case").value(to_string(params));
  w.key("regard.backend").value(to_string(plan.entry.ref));
  w.key("regard.kernel").value(plan.kernel.kernel);
  w.key("regard.version").value(plan.env->version);
  w.key("regard.rng").value(concat(buffers.rng_seed, " ", buffers.rng_offset));
  w.end_object();
  std::int64_t at = 0;
  for (const NamedTensor& tensor : inputs) {
    w.key(tensor.name).begin_object();
    w.key("dtype").value(safetensors_name(tensor.view.dtype)).key("shape").begin_array();
    for (int i = 0; i < tensor.view.rank; ++i) w.value(tensor.view.shape[i]);
    w.end_array().key("data_offsets").begin_array();
    w.value(at).value(at + tensor.bytes).end_array().end_object();
    at += tensor.bytes;
  }
  w.end_object();
  std::string header = w.str();
  header.append((8 - header.size() % 8) % 8, ' ');
  return header;
}

// Row-major, whatever the strides.
Status write_tensor(AtomicFile& file, const TensorView& view) {
  const std::int64_t size = size_of(view.dtype), elements = view.num_elements();
  std::string block;
  constexpr std::size_t kBlock = 1 << 20;
  std::int64_t index[kMaxRank] = {};
  for (std::int64_t n = 0; n < elements; ++n) {
    std::int64_t at = 0;
    for (int i = 0; i < view.rank; ++i) at += index[i] * view.strides[i];
    block.append(static_cast<const char*>(view.data) + at * size, static_cast<std::size_t>(size));
    for (int i = view.rank - 1; i >= 0 && ++index[i] == view.shape[i]; --i) index[i] = 0;
    if (block.size() < kBlock) continue;
    if (Status s = file.write(block); !s.ok()) return s;
    block.clear();
  }
  return file.write(block);
}

Status write_file(const std::string& path, const std::vector<NamedTensor>& inputs,
                  const std::string& header) {
  AtomicFile file(path, kSelfCheck);
  if (Status s = file.open(); !s.ok()) return s;
  char length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  if (Status s = file.write(length, sizeof(length)); !s.ok()) return s;
  if (Status s = file.write(header); !s.ok()) return s;
  for (const NamedTensor& tensor : inputs) {
    if (Status s = write_tensor(file, tensor.view); !s.ok()) return s;
  }
  return file.commit();
}

// A backend's name as part of a file's: letters, digits and "_".
std::string backend_word(const BackendRef& ref) {
  std::string word = to_string(ref).substr(0, 40);
  for (char& c : word) {
    if ((c < 'a' || c > 'z') && (c < '0' || c > '9')) c = '_';
  }
  return word;
}

// In single quotes for a shell.
std::string shell_word(const std::string& text) {
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

}  // namespace

WrittenCall write_call(const PlanImpl& plan, const AttentionParams& params, const Buffers& buffers,
                       const std::string& given_folder) {
  WrittenCall written;
  const std::string cache = user_cache_folder();
  const std::string folder =
      !given_folder.empty() || cache.empty() ? given_folder : cache + "/self_check";
  if (folder.empty()) {
    written.not_written = "there is no cache folder; set self_check_dir";
    return written;
  }
  const Expected<std::vector<NamedTensor>> inputs = named_inputs(buffers);
  Status status = inputs ? make_folder(folder, kSelfCheck) : inputs.status();
  static std::atomic<int> files{0};
  const std::string path =
      concat(folder, "/", backend_word(plan.entry.ref), "_", static_cast<std::int64_t>(::getpid()),
             "_", files.fetch_add(1) + 1, ".safetensors");
  if (status.ok()) {
    status = write_file(path, *inputs, header_of(*inputs, plan, params, buffers));
  }
  if (!status.ok()) {
    written.not_written = status.message();
    return written;
  }
  written.file = path;
  const std::string rest = not_taken_by_run(params, buffers);
  if (!rest.empty()) return written;
  written.command =
      concat("regard run ", shell_word(path), " --backend ", to_string(plan.entry.ref), " --isa ",
             to_string(plan.level.isa), " --threads ", plan.env->concurrency);
  return written;
}

}  // namespace regard
