#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "oracle/number.h"
#include "oracle/oracle.h"
#include "oracle/padded.h"
#include "oracle/rules.h"
#include "property.h"

// A tree of drafts scored in one call is each path from the root decoded alone; and a tree_mask is
// the attn_mask that hides the same keys, to the bit.

namespace regard {
namespace {

using conformance::Problem;
using test::unequal;

// The parent of each draft; -1: the keys before them alone.
constexpr std::int64_t kParents[] = {-1, 0, 0, 1, 1, 2, 5, -1, 7};
constexpr std::int64_t kDrafts = 9;

std::vector<std::int64_t> path_to(std::int64_t draft) {
  std::vector<std::int64_t> path;
  for (; draft >= 0; draft = kParents[draft]) path.insert(path.begin(), draft);
  return path;
}

class Tree : public test::Property {
 protected:
  /// A row of a dense tensor of rank 3 or 4 to another place.
  static void copy_row(const TensorView& from, std::int64_t b, std::int64_t h, std::int64_t i,
                       const TensorView& to, std::int64_t h_to, std::int64_t i_to) {
    const std::int64_t size = size_of(from.dtype);
    const std::int64_t columns = from.rank == 4 ? from.shape[3] : 1;
    std::memcpy(static_cast<char*>(to.data) + (h_to * to.strides[1] + i_to * to.strides[2]) * size,
                static_cast<const char*>(from.data) +
                    (b * from.strides[0] + h * from.strides[1] + i * from.strides[2]) * size,
                static_cast<std::size_t>(columns * size));
  }

  /// Rows `rows` of sequence b.
  TensorView gather(const TensorView& from, std::int64_t b, const std::vector<std::int64_t>& rows) {
    if (!from.present()) return {};
    const auto count = static_cast<std::int64_t>(rows.size());
    const TensorView to = from.rank == 4
                              ? tensors_.make(from.dtype, {1, from.shape[1], count, from.shape[3]})
                              : tensors_.make(from.dtype, {1, from.shape[1], count});
    for (std::int64_t h = 0; h < from.shape[1]; ++h) {
      for (std::int64_t n = 0; n < count; ++n) {
        copy_row(from, b, h, rows[static_cast<std::size_t>(n)], to, h, n);
      }
    }
    return to;
  }

  /// The last query of the path alone, over the keys before the drafts and those of the path.
  AttentionRequest path_alone(const AttentionRequest& whole, const AttentionRequest& twin,
                              std::int64_t b, std::int64_t draft) {
    const auto length = static_cast<std::int64_t>(oracle::element(twin.seqlens_kv, b));
    std::vector<std::int64_t> keys;
    for (std::int64_t j = 0; j < length - kDrafts; ++j) keys.push_back(j);
    for (const std::int64_t on_path : path_to(draft)) keys.push_back(length - kDrafts + on_path);
    AttentionRequest alone = whole;
    alone.tree_mask = TensorView{};
    alone.q = gather(twin.q, b, {draft});
    alone.k = gather(twin.k, b, keys);
    alone.v = gather(twin.v, b, keys);
    alone.scales_k = gather(twin.scales_k, b, keys);
    alone.scales_v = gather(twin.scales_v, b, keys);
    alone.out = test::slice(test::slice(whole.out, 0, b, 1), 2, draft, 1);
    alone.lse = test::slice(test::slice(whole.lse, 0, b, 1), 2, draft, 1);
    alone.seqlens_kv = TensorView{};
    return alone;
  }
};

// The root of the tree lies behind `length` keys of each sequence, each draft one step deeper than
// its parent.
void plant_tree(const AttentionRequest& r) {
  for (std::int64_t i = 0; i < kDrafts; ++i) {
    const std::vector<std::int64_t> path = path_to(i);
    auto* const row = static_cast<unsigned char*>(r.tree_mask.data) + i * r.tree_mask.strides[1];
    std::memset(row, 0, kDrafts);
    for (const std::int64_t seen : path) row[seen] = 1;
    for (std::int64_t b = 0; b < r.q.shape[0] && r.positions.present(); ++b) {
      const auto length = static_cast<std::int64_t>(oracle::element(r.seqlens_kv, b));
      static_cast<std::int32_t*>(r.positions.data)[b * r.positions.strides[0] + i] =
          static_cast<std::int32_t>(length + std::ssize(path) - 1);
    }
  }
  for (std::int64_t b = 1; b < r.tree_mask.shape[0]; ++b) {
    std::memcpy(static_cast<unsigned char*>(r.tree_mask.data) + b * r.tree_mask.strides[0],
                r.tree_mask.data, static_cast<std::size_t>(kDrafts * kDrafts));
  }
}

TEST_P(Tree, IsEachPathAlone) {
  for (const char* text :
       {"b2 hq4 hkv2 sq9 skv640 d64 f32 append=9 tree=9 lens_kv=631,90 seed=1",
        "b2 hq4 hkv2 sq9 skv640 d64 bf16 paged page_size=16 append=9 tree=9 lens_kv=631,0 "
        "rotary=64 positions seed=2",
        "b2 hq8 hkv2 sq9 skv320 d40 f32 kv=i8 scales=token paged page_size=5 append=9 tree=9 "
        "lens_kv=300,77 rotary=32 positions rotary_interleaved seed=3",
        "b2 hq2 sq9 skv96 d24 dv16 f16 cache_batch_idx append=9 tree=9 lens_kv=80,5 seed=4"}) {
    const Problem problem = problem_of(std::string(text) + " lse");
    const AttentionGradRequest& r = problem.request();
    plant_tree(r);
    const oracle::Padded twin = oracle::Padded::make(r).value();
    run(r);
    const AttentionRequest dense = test::without_cache(r, twin);
    for (std::int64_t b = 0; b < r.q.shape[0]; ++b) {
      for (std::int64_t draft = 0; draft < kDrafts; ++draft) {
        const AttentionRequest alone = path_alone(dense, twin.request(), b, draft);
        expect_within_tolerance(
            alone, oracle::compute(alone).value(),
            std::string(text) + ": draft " + std::to_string(draft) + " of " + std::to_string(b));
      }
    }
  }
}

TEST_P(Tree, IsTheMaskThatHidesTheSameKeys) {
  for (const char* text :
       {"b3 hq4 hkv2 sq7 skv1600 d64 bf16 paged causal diag=br lens_kv=1593,77,3 append=7 tree",
        "b2 hq4 hkv2 sq1 skv640 d128 f32 tree=5 lens_kv=640,3",
        "b2 hq2 sq130 skv300 d40 f32 tree=150 window=100,20 diag=br lens_kv=300,120 poison",
        "b2 hq2 sq16 skv800 d33 f16 tree=16 alibi sinks softcap=5 diag=br lens=both",
        "b2 hq2 sq33 skv400 d8 dv24 f32 tree=33 bias mask segments dropout=0.25 diag=tl poison"}) {
    for (const int seed : {1, 2}) {
      const std::string what = std::string(text) + " lse seed=" + std::to_string(seed);
      const Problem problem = problem_of(what);
      const AttentionGradRequest& r = problem.request();
      const oracle::Padded twin = oracle::Padded::make(r).value();
      run(r);
      AttentionRequest masked = test::without_cache(r, twin);
      masked.tree_mask = TensorView{};
      const std::int64_t batch = masked.q.shape[0], queries = masked.q.shape[2],
                         keys = masked.k.shape[2], drafts = r.tree_mask.shape[2];
      const oracle::Rules rules(masked, oracle::Fault::kNone);
      const std::int64_t heads = r.attn_mask.present() ? r.attn_mask.shape[1] : 1;
      masked.attn_mask = tensors_.make(Dtype::kBool, {batch, heads, queries, keys});
      auto* to = static_cast<unsigned char*>(masked.attn_mask.data);
      for (std::int64_t n = 0; n < batch * heads * queries * keys; ++n) {
        const std::int64_t j = n % keys, i = n / keys % queries, h = n / keys / queries % heads,
                           b = n / keys / queries / heads;
        const std::int64_t column = j - (rules.len_kv(b) - drafts);
        const bool given =
            !r.attn_mask.present() || oracle::element(r.attn_mask, b, h, i, j) != 0.0;
        const bool in_tree =
            column < 0 || column >= drafts || oracle::element(r.tree_mask, b, i, column) != 0.0;
        to[n] = given && in_tree ? 1 : 0;
      }
      masked = run_anew(masked);
      EXPECT_EQ(unequal(r.out, masked.out), "") << what;
      EXPECT_EQ(unequal(r.lse, masked.lse), "") << what;
    }
  }
}

REGARD_INSTANTIATE_PROPERTIES(Tree);

}  // namespace
}  // namespace regard
