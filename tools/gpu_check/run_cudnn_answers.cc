#include <cmath>
#include <cstring>
#include <vector>

#include "tools/gpu_check/case_tensors.h"
#include "tools/gpu_check/cudnn_direct.h"
#include "tools/gpu_check/phase.h"

// What cuDNN answers to cases that CUDNN does not claim: whether it runs them, with how much
// workspace, and what it writes to rows that see no key or lie beyond a length.

namespace regard::gpu_check {
namespace {

constexpr unsigned char kPattern = 0xff;  // of outputs before a call

/// What those bytes of a tensor hold: "zeros", "not written", "-inf", "inf", "NaN" or "numbers".
std::string contents(DeviceMemory& memory, const TensorView& view, std::int64_t begin,
                     std::int64_t count) {
  const auto size = static_cast<std::size_t>(size_of(view.dtype));
  std::vector<unsigned char> bytes(static_cast<std::size_t>(count) * size);
  memory.download(bytes.data(),
                  static_cast<char*>(view.data) + begin * static_cast<std::int64_t>(size),
                  bytes.size());
  std::string found;
  for (std::size_t at = 0; at < bytes.size(); at += size) {
    std::uint32_t bits = 0;  // bf16 is the upper half of f32
    std::memcpy(reinterpret_cast<char*>(&bits) + sizeof(bits) - size, &bytes[at], size);
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    const bool is_pattern = std::memcmp(&bytes[at], "\xff\xff\xff\xff", size) == 0;
    const char* kind = is_pattern           ? "not written"
                       : std::isnan(value)  ? "NaN"
                       : value == 0.0f      ? "zeros"
                       : !std::isinf(value) ? "numbers"
                       : value < 0          ? "-inf"
                                            : "inf";
    if (found.find(kind) == std::string::npos)
      found += (found.empty() ? "" : ", ") + std::string(kind);
  }
  return found;
}

void fill(DeviceMemory& memory, const TensorView& view) {
  const auto size = static_cast<std::size_t>(view.num_elements()) * size_of(view.dtype);
  const std::vector<unsigned char> bytes(size, kPattern);
  memory.upload(view.data, bytes.data(), size);
}

/// regard in the place of cuDNN.
DirectCall stand_in(Session& session, const AttentionGradRequest& request, bool backward) {
  DirectCall call;
  call.run = [&session, &request, backward] {
    const Status status = backward ? attention_backward(session.context(), request)
                                   : attention(session.context(), request);
    return status.ok() ? "" : status.to_string();
  };
  return call;
}

void add_contents(DeviceMemory& memory, const AttentionParams& p, const AttentionGradRequest& r,
                  JsonLine* line) {
  const std::int64_t rows = p.num_heads_q * p.seqlen_q, first = p.num_heads_q * p.seqlen_q;
  line->add("out_without_keys", contents(memory, r.out, 0, rows * p.head_dim_v))
      .add("lse_without_keys", contents(memory, r.lse, 0, rows));
  // The last quarter of the second sequence's first head.
  const std::int64_t length = p.seqlen_q * 3 / 4, beyond = p.seqlen_q - length;
  line->add("out_beyond_length",
            contents(memory, r.out, (first + length) * p.head_dim_v, beyond * p.head_dim_v))
      .add("lse_beyond_length", contents(memory, r.lse, first + length, beyond));
}

}  // namespace

JsonLine run_cudnn_answer(Session& session, const Item& item) {
  DeviceMemory& memory = session.memory();
  const Case c = case_of(session.setup, item.words);
  const bool backward = item.variant == "backward";
  const CaseTensors tensors(memory, c.params);
  JsonLine line;
  if (!tensors.error().empty()) {
    return line.add("result", "failed").add("detail", tensors.error());
  }
  const AttentionGradRequest& request = tensors.request();
  const auto build = [&](bool is_backward) {
    return session.setup.rehearse ? stand_in(session, request, is_backward)
                                  : make_direct_cudnn(c.params, request, is_backward, memory);
  };
  fill(memory, request.out);
  fill(memory, request.lse);
  // A backward takes what the forward writes.
  const DirectCall forward = build(false);
  std::string error = forward.error.empty() ? forward.run() : forward.error;
  if (error.empty()) error = memory.wait();
  std::int64_t workspace_bytes = forward.workspace_bytes;
  if (error.empty() && backward) {
    const DirectCall call = build(true);
    error = call.error.empty() ? call.run() : call.error;
    if (error.empty()) error = memory.wait();
    workspace_bytes = call.workspace_bytes;
  }
  if (!error.empty()) return line.add("result", "refused").add("detail", error);
  line.add("result", "accepted").add("workspace_bytes", static_cast<long>(workspace_bytes));
  if (!backward && request.seqlens_kv.present()) add_contents(memory, c.params, request, &line);
  return line;
}

}  // namespace regard::gpu_check
