#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cpu/backward/args.h"
#include "cpu/forward/tiled.h"
#include "regard/backend.h"

namespace regard::cpu {

/// How tiled backends differ; the kernels are the same.
struct TiledTraits {
  const char* name;             // in the names of its kernels
  std::int64_t max_row_blocks;  // of a task: what one read of K and V serves
  bool copies;                  // f32 values too, where that pays (TiledArgs)
  bool one_pass;                // backward
  bool shares_splits;           // of decode rows over many keys among workers, in more workspace
  /// Keys of a tile, a multiple of kDecodeTileKv: a function of head dims alone, so that no sum's
  /// order depends on anything else.
  std::int64_t (*tile_kv)(std::int64_t head_dim_qk, std::int64_t head_dim_v);
};

/// The kernel that runs calls of these types on a machine of `isa`.
const TiledKernel& kernel_of(const AttentionParams& params, Isa isa) noexcept;

/// Another way to run the forward, with the same bits and no more workspace.
struct TiledVariant {
  const char* name = "";
  std::int64_t max_row_blocks = 0;  // 0: the default, as many as the caches hold
  bool one_head = false;            // a task of decode rows reads one head at a time
  bool shares_splits = true;        // of decode rows among workers, where the backend does
};

/// Tiled forward with online softmax (tiled_forward.inl), and the backward of backward/args.h.
class TiledBackend final : public Backend {
 public:
  TiledBackend(BackendInfo info, const TiledTraits& traits);

  const BackendInfo& info() const override { return info_; }
  std::int64_t workspace_bytes(const AttentionKey& key, const Env& env) const override;
  Expected<KernelPlan> plan(const AttentionKey& key, const Env& env) const override;
  std::vector<std::string> variants(const AttentionKey& key, const Env& env) const override;
  Expected<KernelPlan> plan_variant(const AttentionKey& key, const Env& env,
                                    std::string_view variant) const override;
  Status execute(const KernelPlan& plan, const AttentionParams& params, const Buffers& buffers,
                 const Launch& launch) const override;
  std::int64_t backward_workspace_bytes(const AttentionKey& key, const Env& env) const override;
  std::int64_t backward_workspace_within(const AttentionKey& key, const Env& env,
                                         std::int64_t max_bytes) const override;
  Expected<KernelPlan> plan_backward(const AttentionKey& key, const Env& env) const override;
  Status execute_backward(const KernelPlan& plan, const AttentionParams& params,
                          const Buffers& buffers, const GradBuffers& gradients,
                          const Launch& launch) const override;

 private:
  struct Shape;
  struct TileCopies;
  struct BlockLimits {
    std::int64_t row_blocks;  // of a task, at most
    std::int32_t workers;
  };
  const BackwardKernel& backward_kernel(const AttentionParams& params, Isa isa) const noexcept;
  Shape shape_of(const AttentionParams& params, Isa isa, std::int32_t workers,
                 const TiledVariant& variant) const noexcept;
  std::int64_t tile_kv(const AttentionParams& params, const TiledKernel& kernel) const noexcept;
  std::int64_t max_row_blocks(const AttentionParams& params, const Env& env,
                              const TiledVariant& variant) const noexcept;
  std::int32_t workers(const AttentionKey& key, const Env& env) const noexcept;
  static std::int64_t task_rows_of(const AttentionParams& params, const Shape& shape,
                                   const BlockLimits& limits) noexcept;
  static std::int64_t block_rows(const AttentionParams& params, const Shape& shape,
                                 const BlockLimits& limits) noexcept;
  static TileCopies decode_copies(const AttentionParams& params, const TiledKernel& kernel,
                                  std::int64_t tile_rows) noexcept;
  TileCopies tile_copies(const AttentionParams& params, const Shape& shape,
                         const TiledArgs& args) const noexcept;
  bool ends_at_once(const AttentionParams& params, const Shape& shape,
                    const TiledArgs& args) const noexcept;
  static std::int64_t set_narrow_window(const AttentionParams& params, const Shape& shape,
                                        TiledArgs* args) noexcept;
  std::int64_t lay_out(const AttentionParams& params, const Shape& shape,
                       TiledArgs* args) const noexcept;

  std::int64_t few_rows_bytes(AttentionParams params, Isa isa) const noexcept;
  std::int64_t workspace_of(const AttentionKey& key, const Env& env,
                            const TiledVariant& variant) const noexcept;
  KernelPlan plan_of(const AttentionKey& key, const Env& env, const TiledVariant& variant) const;
  /// Whether the variant runs the key in another way than the default.
  bool differs(const TiledVariant& variant, const AttentionKey& key, const Env& env) const noexcept;

  BackendInfo info_;
  TiledTraits traits_;
};

}  // namespace regard::cpu
