#include "backends/cudnn/graph.h"

#include <cuda_runtime_api.h>
#include <cudnn_frontend.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/message.h"
#include "platform/cudnn_library.h"

// The only file that calls cuDNN. Its frontend throws and allocates; neither leaves this
// file.

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // the frontend takes every function of cuDNN from there
}

namespace regard::cudnn {
namespace {

namespace fe = cudnn_frontend;
namespace graph = cudnn_frontend::graph;

enum Uid : std::int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kStats,
  kDOut,
  kDQ,
  kDK,
  kDV,
  // of kSdpaF8
  kDescaleQ,
  kDescaleK,
  kDescaleV,
  kDescaleS,
  kScaleS,
  kScaleO,
  kAmaxS,
  kAmaxO
};

using Tensor = std::shared_ptr<graph::Tensor_attributes>;
using Dims = std::vector<std::int64_t>;

bool load_library() {
  fe::cudnn_dlhandle = cudnn_library().handle;
  return fe::cudnn_dlhandle != nullptr;
}

fe::DataType_t type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF16: return fe::DataType_t::HALF;
    case Dtype::kF8E4M3: return fe::DataType_t::FP8_E4M3;
    default: return fe::DataType_t::BFLOAT16;
  }
}

Dims list(const std::int64_t (&strides)[4]) { return {strides, strides + 4}; }

// cuDNN's bounds are 32 bits wide; no sequence of its is as long as the largest that is requested.
int bound(std::int64_t keys) {
  constexpr std::int64_t kMax = 1 << 30;
  return static_cast<int>(std::min(keys, kMax));
}

// A problem's mask in cuDNN's words. Its left bound counts the diagonal itself: a
// window of L keys to the left of it is L + 1 there, while the right bound is regard's own.
template <class Attributes>
void set_band(const AttentionParams& p, Attributes* attributes) {
  const bool bottom_right = p.diagonal == Diagonal::kBottomRight;
  attributes->set_diagonal_alignment(bottom_right ? fe::DiagonalAlignment_t::BOTTOM_RIGHT
                                                  : fe::DiagonalAlignment_t::TOP_LEFT);
  if (p.window_left >= 0) {
    attributes->set_diagonal_band_left_bound(bound(p.window_left) + 1);
  }
  if (p.window_right >= 0) {
    attributes->set_diagonal_band_right_bound(bound(p.window_right));
  }
}

// The graph of one node: its inputs and outputs, and nothing built yet.
class GraphMaker {
 public:
  /// `sm_version` 0: the current device's.
  GraphMaker(const AttentionParams& params, const Strides& strides, std::int32_t sm_version)
      : p_(params), s_(strides), made_(std::make_shared<graph::Graph>()) {
    made_->set_io_data_type(type_of(p_.dtype_q))
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    if (sm_version != 0) made_->set_sm_version(sm_version);  // before nodes take a copy of it
  }

  std::shared_ptr<graph::Graph> make(Node node) {
    switch (node) {
      case Node::kSdpa: forward(); break;
      case Node::kSdpaBackward: backward(); break;
      case Node::kSdpaF8: forward_f8(); break;
    }
    return made_;
  }

 private:
  Dims q_dims() const { return {p_.batch, p_.num_heads_q, p_.seqlen_q, p_.head_dim_qk}; }
  Dims k_dims() const { return {p_.batch, p_.num_heads_kv, p_.seqlen_kv, p_.head_dim_qk}; }
  Dims v_dims() const { return {p_.batch, p_.num_heads_kv, p_.seqlen_kv, p_.head_dim_v}; }
  Dims out_dims() const { return {p_.batch, p_.num_heads_q, p_.seqlen_q, p_.head_dim_v}; }
  Dims stats_dims() const { return {p_.batch, p_.num_heads_q, p_.seqlen_q, 1}; }
  Dims stats_strides() const { return {s_.stats[0], s_.stats[1], s_.stats[2], 1}; }

  Tensor input(Uid uid, const Dims& dims, const Dims& strides) {
    return made_->tensor(graph::Tensor_attributes().set_uid(uid).set_dim(dims).set_stride(strides));
  }
  static void output(const Tensor& tensor, Uid uid, const Dims& dims, const Dims& strides) {
    tensor->set_output(true).set_uid(uid).set_dim(dims).set_stride(strides);
  }

  bool wants_stats() const { return p_.features.has(Feature::kLse); }
  template <class Attributes>
  Attributes forward_attributes(const char* name) const {
    Attributes attributes;
    attributes.set_name(name)
        .set_attn_scale(static_cast<float>(p_.softmax_scale))
        .set_generate_stats(wants_stats());
    set_band(p_, &attributes);
    return attributes;
  }
  void output_stats(const Tensor& stats) const {
    if (!wants_stats()) return;
    output(stats, kStats, stats_dims(), stats_strides());
    stats->set_data_type(fe::DataType_t::FLOAT);
  }

  void forward() {
    const auto attributes = forward_attributes<graph::SDPA_attributes>("sdpa");
    auto [out, stats] =
        made_->sdpa(input(kQ, q_dims(), list(s_.q)), input(kK, k_dims(), list(s_.k)),
                    input(kV, v_dims(), list(s_.v)), attributes);
    output(out, kOut, out_dims(), list(s_.out));
    output_stats(stats);
  }

  static Dims one() { return {1, 1, 1, 1}; }
  Tensor scalar(Uid uid) {
    const Tensor tensor = input(uid, one(), one());
    tensor->set_data_type(fe::DataType_t::FLOAT);
    return tensor;
  }

  void forward_f8() {
    const auto attributes = forward_attributes<graph::SDPA_fp8_attributes>("sdpa_fp8");
    auto [out, stats, amax_s, amax_o] = made_->sdpa_fp8(
        input(kQ, q_dims(), list(s_.q)), input(kK, k_dims(), list(s_.k)),
        input(kV, v_dims(), list(s_.v)), scalar(kDescaleQ), scalar(kDescaleK), scalar(kDescaleV),
        scalar(kDescaleS), scalar(kScaleS), scalar(kScaleO), attributes);
    output(out, kOut, out_dims(), list(s_.out));
    out->set_data_type(type_of(p_.dtype_out));
    output(amax_s, kAmaxS, one(), one());
    output(amax_o, kAmaxO, one(), one());
    for (const Tensor& amax : {amax_s, amax_o}) amax->set_data_type(fe::DataType_t::FLOAT);
    output_stats(stats);
  }

  void backward() {
    graph::SDPA_backward_attributes attributes;
    attributes.set_name("sdpa_backward").set_attn_scale(static_cast<float>(p_.softmax_scale));
    set_band(p_, &attributes);
    const Tensor stats = input(kStats, stats_dims(), stats_strides());
    stats->set_data_type(fe::DataType_t::FLOAT);
    auto [d_q, d_k, d_v] =
        made_->sdpa_backward(input(kQ, q_dims(), list(s_.q)), input(kK, k_dims(), list(s_.k)),
                             input(kV, v_dims(), list(s_.v)), input(kOut, out_dims(), list(s_.out)),
                             input(kDOut, out_dims(), list(s_.d_out)), stats, attributes);
    output(d_q, kDQ, q_dims(), list(s_.d_q));
    output(d_k, kDK, k_dims(), list(s_.d_k));
    output(d_v, kDV, v_dims(), list(s_.d_v));
  }

  const AttentionParams& p_;
  const Strides& s_;
  std::shared_ptr<graph::Graph> made_;
};

// cuDNN's handles: costly to make, and one serves one thread at a time.
class Handles {
 public:
  struct Entry {
    int device = -1;
    cudnnHandle_t handle = nullptr;
  };

  Entry take() {
    Entry entry;
    if (cudaGetDevice(&entry.device) != cudaSuccess) return entry;
    {
      const std::lock_guard lock(mutex_);
      for (Entry& free : free_) {
        if (free.device != entry.device) continue;
        entry = free;
        free = free_.back();
        free_.pop_back();
        return entry;
      }
    }
    if (fe::detail::create_handle(&entry.handle) != CUDNN_STATUS_SUCCESS) entry.handle = nullptr;
    return entry;
  }
  void give_back(const Entry& entry) {
    if (entry.handle == nullptr) return;
    const std::lock_guard lock(mutex_);
    free_.push_back(entry);
  }

 private:
  std::mutex mutex_;
  std::vector<Entry> free_;
};

// What failed for want of memory or a handle may succeed later.
struct Shortage : std::runtime_error {
  using std::runtime_error::runtime_error;
};

bool is_shortage(fe::error_t& error) {  // whose getters are not const
  return error.get_code() == fe::error_code_t::HANDLE_ERROR ||
         error.get_code() == fe::error_code_t::CUDA_API_FAILED ||
         error.get_message().find("ALLOC_FAILED") != std::string::npos;
}

Status unavailable(const char* where, const std::string& words) {
  return failure(StatusCode::kUnavailable, where, "cuDNN: ", words);
}

Handles& handles() {
  static Handles* const instance = new Handles();  // calls may outlive main
  return *instance;
}

class BorrowedHandle {
 public:
  BorrowedHandle() : entry_(handles().take()) {}
  ~BorrowedHandle() { handles().give_back(entry_); }
  BorrowedHandle(const BorrowedHandle&) = delete;
  BorrowedHandle& operator=(const BorrowedHandle&) = delete;
  cudnnHandle_t get() const noexcept { return entry_.handle; }

 private:
  Handles::Entry entry_;
};

// The scales of kSdpaF8 that are no caller's, on the device, where cuDNN reads them.
class Scales {
 public:
  /// The current device's. Never freed: CUDA graphs that captured a call may outlive its plan.
  static const Scales& of_device() {
    struct Made {
      std::mutex mutex;
      std::unordered_map<int, std::unique_ptr<const Scales>> by_device;
    };
    static Made& made = *new Made;
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess) throw Shortage("no device for scales");
    const std::lock_guard lock(made.mutex);
    std::unique_ptr<const Scales>& scales = made.by_device[device];
    if (scales == nullptr) scales = std::make_unique<const Scales>();
    return *scales;
  }

  Scales() {
    constexpr float kValues[] = {1.0f, kProbsScale, 1.0f / kProbsScale};
    if (cudaMalloc(&data_, sizeof(kValues)) != cudaSuccess) data_ = nullptr;
    // A copy from pageable memory may end after cudaMemcpy() has: a stream that does not wait for
    // the default one must not read before it.
    const bool is_filled =
        data_ != nullptr &&
        cudaMemcpy(data_, kValues, sizeof(kValues), cudaMemcpyHostToDevice) == cudaSuccess &&
        cudaStreamSynchronize(cudaStreamLegacy) == cudaSuccess;
    if (is_filled) return;
    cudaFree(data_);
    static_cast<void>(cudaGetLastError());  // else the next launch on this thread finds it
    throw Shortage("no memory for scales");
  }
  Scales(const Scales&) = delete;
  Scales& operator=(const Scales&) = delete;

  void* one() const noexcept { return at(0); }
  void* probs() const noexcept { return at(1); }
  void* descale_probs() const noexcept { return at(2); }

 private:
  void* at(int index) const noexcept { return static_cast<float*>(data_) + index; }
  void* data_ = nullptr;
};

class BuiltGraph final : public Graph {
 public:
  BuiltGraph(std::shared_ptr<graph::Graph> built, Node node)
      : built_(std::move(built)),
        node_(node),
        scales_(node == Node::kSdpaF8 ? &Scales::of_device() : nullptr) {}

  Status run(const Pointers& p, void* workspace, void* stream) const override {
    try {
      const BorrowedHandle handle;
      if (handle.get() == nullptr ||
          fe::detail::set_stream(handle.get(), static_cast<cudaStream_t>(stream)) !=
              CUDNN_STATUS_SUCCESS) {
        return unavailable("execute", "no handle for the stream");
      }
      Pack pack = {{kQ, p.q}, {kK, p.k}, {kV, p.v}, {kOut, p.out}};
      if (p.stats != nullptr) pack[kStats] = p.stats;
      if (node_ == Node::kSdpaBackward) {
        pack.insert({{kDOut, p.d_out}, {kDQ, p.d_q}, {kDK, p.d_k}, {kDV, p.d_v}});
      }
      if (scales_ != nullptr) add_scales(p, &pack);
      fe::error_t error = built_->execute(handle.get(), pack, workspace);
      if (error.is_good()) return {};
      if (is_shortage(error)) return unavailable("execute", error.get_message());
      const bool refused = error.get_code() == fe::error_code_t::GRAPH_NOT_SUPPORTED;
      return failure(refused ? StatusCode::kRefusedAtPlan : StatusCode::kInternal, "execute",
                     "cuDNN: ", error.get_message());
    } catch (const std::exception& error) {
      return failure(StatusCode::kInternal, "execute", "cuDNN: ", error.what());
    }
  }

 private:
  using Pack = std::unordered_map<std::int64_t, void*>;
  void add_scales(const Pointers& p, Pack* pack) const {
    const auto or_one = [&](void* descale) {
      return descale != nullptr ? descale : scales_->one();
    };
    auto* const unwanted = static_cast<float*>(p.unwanted);
    pack->insert({{kDescaleQ, or_one(p.descale_q)},
                  {kDescaleK, or_one(p.descale_k)},
                  {kDescaleV, or_one(p.descale_v)},
                  {kScaleS, scales_->probs()},
                  {kDescaleS, scales_->descale_probs()},
                  {kScaleO, scales_->one()},
                  {kAmaxS, unwanted},
                  {kAmaxO, unwanted + 1}});
  }

  std::shared_ptr<graph::Graph> built_;
  Node node_;
  const Scales* const scales_;  // null: none are read
};

Status refused(const std::string& words) {
  return failure(StatusCode::kRefusedAtPlan, "plan", "cuDNN: ", words);
}

// Each step of building, until one fails. The frontend keeps tensors of its own at the head of the
// workspace, which deselecting an engine leaves out of account: the engine has what remains.
fe::error_t build(graph::Graph& made, cudnnHandle_t handle, std::int64_t workspace_bytes) {
  fe::error_t error = made.validate();
  if (error.is_good()) error = made.build_operation_graph(handle);
  if (error.is_good()) error = made.create_execution_plans({fe::HeurMode_t::A});
  if (error.is_bad()) return error;
  const std::int64_t own = made.get_autotune_workspace_size();  // no plan is built that would add
  made.deselect_workspace_greater_than(workspace_bytes - own);
  error = made.check_support();
  if (error.is_good()) error = made.build_plans();
  std::int64_t needed = 0;
  if (error.is_good()) error = made.get_workspace_size(needed);
  if (error.is_bad() || needed <= workspace_bytes) return error;
  return {fe::error_code_t::GRAPH_EXECUTION_PLAN_CREATION_FAILED,
          concat("a workspace of ", needed, " bytes, where ", workspace_bytes, " are planned")};
}

void set_dense(Layout layout, std::int64_t heads, std::int64_t rows, std::int64_t dim,
               std::int64_t (&strides)[4]) {
  const bool bshd = layout == Layout::kBshd;
  strides[0] = heads * rows * dim;
  strides[1] = bshd ? dim : rows * dim;
  strides[2] = bshd ? heads * dim : dim;
  strides[3] = 1;
}

}  // namespace

Strides dense_strides(const AttentionParams& p) noexcept {
  Strides s{};
  set_dense(p.layout_q, p.num_heads_q, p.seqlen_q, p.head_dim_qk, s.q);
  set_dense(p.layout_k, p.num_heads_kv, p.seqlen_kv, p.head_dim_qk, s.k);
  set_dense(p.layout_v, p.num_heads_kv, p.seqlen_kv, p.head_dim_v, s.v);
  set_dense(p.layout_out, p.num_heads_q, p.seqlen_q, p.head_dim_v, s.out);
  set_dense(p.layout_out, p.num_heads_q, p.seqlen_q, p.head_dim_v, s.d_out);
  set_dense(p.layout_q, p.num_heads_q, p.seqlen_q, p.head_dim_qk, s.d_q);
  set_dense(p.layout_k, p.num_heads_kv, p.seqlen_kv, p.head_dim_qk, s.d_k);
  set_dense(p.layout_v, p.num_heads_kv, p.seqlen_kv, p.head_dim_v, s.d_v);
  s.stats[0] = p.num_heads_q * p.seqlen_q;
  s.stats[1] = p.seqlen_q;
  s.stats[2] = 1;
  return s;
}

std::string validate_graph(const AttentionParams& params, Node node, const Strides& strides,
                           std::int32_t sm_version) {
  if (!load_library()) return "libcudnn.so.9 cannot be loaded";
  try {
    const auto made = GraphMaker(params, strides, sm_version).make(node);
    fe::error_t error = made->validate();
    return error.is_good() ? "" : error.get_message();
  } catch (const std::exception& error) {
    return error.what();
  }
}

Expected<std::shared_ptr<const Graph>> build_graph(const AttentionParams& params, Node node,
                                                   const Strides& strides,
                                                   std::int64_t workspace_bytes) {
  if (!load_library()) return refused("libcudnn.so.9 cannot be loaded");
  try {
    const BorrowedHandle handle;
    if (handle.get() == nullptr) return unavailable("plan", "no handle for the device");
    auto made = GraphMaker(params, strides, 0).make(node);
    fe::error_t error = build(*made, handle.get(), workspace_bytes);
    if (error.is_bad()) {
      return is_shortage(error) ? unavailable("plan", error.get_message())
                                : refused(error.get_message());
    }
    return std::shared_ptr<const Graph>(std::make_shared<const BuiltGraph>(std::move(made), node));
  } catch (const Shortage& error) {
    return unavailable("plan", error.what());
  } catch (const std::bad_alloc& error) {
    return unavailable("plan", error.what());
  } catch (const std::exception& error) {
    return refused(error.what());
  }
}

}  // namespace regard::cudnn
