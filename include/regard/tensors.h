#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "regard/export.h"
#include "regard/features.h"
#include "regard/params.h"
#include "regard/regard.h"
#include "regard/request.h"

// The tensors of a call as one table. Code that checks, reads, lists or documents tensors iterates
// it. A new tensor is a field of Buffers (and of regard_request in C) and a row of kTensors.

namespace regard {

/// What a call does with a tensor.
enum class TensorRole : std::uint8_t { kNone = 0, kIn, kOut, kInOut };

REGARD_EXPORT const char* to_string(TensorRole role) noexcept;  // "-", "in", "out", "in-out"

constexpr bool is_written(TensorRole role) noexcept {
  return role == TensorRole::kOut || role == TensorRole::kInOut;
}

/// The extents that shapes name. q, k, v and out define the first seven; cu_seqlens_q defines B and
/// page_table Skv in their place. Any other extent is that of the first tensor in the table that
/// names it.
enum class Extent : std::uint8_t {
  kB = 0,
  kHq,
  kHkv,
  kSq,
  kSkv,
  kDqk,
  kDv,
  kTotalQ,         // rows of all packed sequences
  kTotalKv,        //
  kPages,          // of a sequence, at most
  kSnew,           // rows that are appended
  kPositions,      // of the table of rotary angles
  kRotaryHalf,     // rotary_dim / 2
  kEntries,        // of k and v: the batch, pages, or entries of a cache
  kRows,           // of an entry of k
  kScaleRowsQ,     // of scales_q: rows of q, or blocks of them
  kScaleColumnsQ,  // blocks of a row of q
  kScaleRowsK,     // likewise
  kScaleColumnsK,  // of u4 2 for each group of a row: its scale and its minimum
  kScaleRowsV,     //
  kScaleColumnsV,  //
  kBlocksQ,        // of block_mask
  kBlocksKv,       //
  kCount
};
inline constexpr int kExtentCount = static_cast<int>(Extent::kCount);
inline constexpr const char* kExtentNames[kExtentCount] = {
    "B",        "Hq",       "Hkv",       "Sq",     "Skv",       "Dqk",          "Dv",
    "total_q",  "total_kv", "pages",     "Snew",   "positions", "rotary_dim/2", "entries",
    "rows",     "rows_q",   "columns_q", "rows_k", "columns_k", "rows_v",       "columns_v",
    "blocks_q", "blocks_kv"};

/// A shape in letters: "[B,Hq,Sq]"; with a number, "[B+1]" or "[B,Hq,Sq,2]"; extents that may also
/// be 1, "[1|B,1|Hq]"; one of two shapes, which differ in rank, "[1] or [B,Hkv]".
class ShapeRule {
 public:
  /// The extent plus a number; the number alone where `extent` is kCount.
  struct Dim {
    Extent extent = Extent::kCount;
    std::int8_t plus = 0;
    bool may_be_one = false;
  };
  struct Alternative {
    std::string_view text;
    std::int32_t rank = 0;
    Dim dims[kMaxRank];
  };

  constexpr ShapeRule() noexcept = default;  // any shape
  /// Evaluated at compile time; a text that is no shape does not compile.
  constexpr ShapeRule(const char* text) : text_(text) {
    std::string_view rest = text;
    while (count_ < 2) {
      const std::size_t end = rest.find(" or ");
      alternatives_[count_++] = parse(rest.substr(0, end));
      if (end == std::string_view::npos) return;
      rest.remove_prefix(end + 4);
    }
    throw "a shape has at most two alternatives";
  }

  constexpr bool any() const noexcept { return count_ == 0; }
  constexpr const char* text() const noexcept { return text_; }
  constexpr std::span<const Alternative> alternatives() const noexcept {
    return {alternatives_, count_};
  }

 private:
  static constexpr Dim parse_dim(std::string_view text) {
    Dim dim;
    if (text.starts_with("1|")) {
      dim.may_be_one = true;
      text.remove_prefix(2);
    }
    if (const std::size_t plus = text.find('+'); plus != std::string_view::npos) {
      dim.plus = digit(text.substr(plus + 1));
      text = text.substr(0, plus);
    }
    for (int i = 0; i < kExtentCount; ++i) {
      if (text == kExtentNames[i]) dim.extent = static_cast<Extent>(i);
    }
    if (dim.extent == Extent::kCount) dim.plus = digit(text);
    return dim;
  }
  static constexpr std::int8_t digit(std::string_view text) {
    if (text.size() != 1 || text[0] < '0' || text[0] > '9') throw "no extent has this name";
    return static_cast<std::int8_t>(text[0] - '0');
  }
  static constexpr Alternative parse(std::string_view text) {
    if (text.size() < 3 || text.front() != '[' || text.back() != ']') throw "expected [...]";
    Alternative made;
    made.text = text;
    for (std::size_t at = 1; at < text.size();) {
      const std::size_t end = text.find_first_of(",]", at);
      if (made.rank == kMaxRank) throw "more dimensions than a TensorView has";
      made.dims[made.rank++] = parse_dim(text.substr(at, end - at));
      at = end + 1;
    }
    return made;
  }

  const char* text_ = "";
  std::size_t count_ = 0;
  Alternative alternatives_[2];
};

enum class DtypeRule : std::uint8_t {
  kAny = 0,     // backends claim combinations
  kLike,        // the one of the tensor that it is like
  kStatistics,  // f32; f64 where q is f64
  kMask,        // bool or u8
  kBias,        // f32, f64 or q's, not of 8 bits
  kF32,
  kI32,
  kI64,
  kIndex,  // i32 or i64
  kAngle,  // f32, or q's, not of 8 bits
  kU8,
  kCaptured,     // f32, f64, bf16 or f16; where functions read integers i32, i64, bool or u8
  kNewRow,       // of the tensor that it is like; q's where that has scales
  kOutGradient,  // out's; where q has 8-bit floats any of 8, 16 or 32 bits
  kGradient      // of the tensor that it is like; likewise, one for d_q, d_k and d_v
};

REGARD_EXPORT const char* to_string(DtypeRule rule) noexcept;  // "f32 (f64 for f64)"

/// What execute checks in the data of a tensor on a CPU, and check_device_data on a device.
enum class DataRule : std::uint8_t {
  kNone = 0,
  kLength,        // each from 0 to `data_limit`, and to the rows of its packed sequence
  kLeftpad,       // from 0 to the sequence's length
  kStarts,        // ascending from 0 to `data_limit`, no two further apart than the longest length
  kScale,         // finite and at least 0
  kRowScale,      // finite and more than 0, of rows that a sequence has; minima finite
  kQueryScale,    // finite and more than 0, of rows that a sequence has
  kChannelScale,  // finite and more than 0
  kNewRow,        // finite, where rows are quantised
  kPage,          // a page of k and v; -1 where no row sees a key of it
  kEntry,         // of the batch of k and v
  kAngles,        // rows for every position of a call
  kAngle,         // a row of the tables of angles
  kBlocks         // 0, 1 or 2
};

/// A tensor of a call: everything but its meaning, which docs/semantics.md states.
struct TensorSpec {
  const char* name = nullptr;
  // The field that holds it: one of the first three, and that of the C ABI.
  TensorView Buffers::*buffer = nullptr;
  TensorView GradBuffers::*gradient = nullptr;
  TensorView SavedContext::*saved = nullptr;
  const regard_tensor* regard_request::*c_request = nullptr;
  const regard_tensor* regard_gradients::*c_gradient = nullptr;

  TensorRole forward = TensorRole::kNone;
  TensorRole backward = TensorRole::kNone;
  FeatureSet written_with{};  // with one of these a forward writes its input, too
  bool required = false;
  bool last_stride_is_1 = false;
  DataRule data = DataRule::kNone;
  Extent data_limit = Extent::kCount;

  ShapeRule shape{};
  ShapeRule packed_shape{};  // where it differs with cu_seqlens
  DtypeRule dtype = DtypeRule::kAny;
  TensorView Buffers::*like = nullptr;  // has its dtype and, without a shape of its own, its shape
  TensorView Buffers::*beside = nullptr;  // must be given with it
  FeatureSet features{};                  // of a request that has it
  FeatureSet second_shape_features{};     // and where it has the second shape of two

  // Where params hold what was given.
  const TensorLayout* layout = nullptr;
  Dtype AttentionParams::*dtype_in_params = nullptr;
  BroadcastDims AttentionParams::*full_dims = nullptr;

  /// The role in a forward that has these features.
  constexpr TensorRole forward_with(FeatureSet given) const noexcept {
    return (given.bits() & written_with.bits()) != 0 ? TensorRole::kInOut : forward;
  }
  /// The view in a backward's own struct; null of a tensor that it does not hold.
  const TensorView* in(const GradBuffers& gradients) const noexcept {
    if (saved != nullptr) return &(gradients.saved.*saved);
    return gradient != nullptr ? &(gradients.*gradient) : nullptr;
  }
  TensorView* in(GradBuffers* gradients) const noexcept {
    return const_cast<TensorView*>(in(static_cast<const GradBuffers&>(*gradients)));
  }
};

#define REGARD_IN_CALL(field) \
  .name = #field, .buffer = &Buffers::field, .c_request = &regard_request::field
#define REGARD_IN_BACKWARD(field) \
  .name = #field, .gradient = &GradBuffers::field, .c_gradient = &regard_gradients::field

/// Every tensor of a call: q, k, v and out, the others of a forward, then those of a backward.
inline constexpr TensorSpec kTensors[] = {
    {REGARD_IN_CALL(q), .forward = TensorRole::kIn, .backward = TensorRole::kIn, .required = true,
     .last_stride_is_1 = true, .shape = "[B,Hq,Sq,Dqk]", .packed_shape = "[1,Hq,total_q,Dqk]",
     .layout = &kTensorLayouts[0]},
    {REGARD_IN_CALL(k), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .written_with = {Feature::kAppendKv}, .required = true, .last_stride_is_1 = true,
     .shape = "[B,Hkv,Skv,Dqk]", .packed_shape = "[1,Hkv,total_kv,Dqk]",
     .layout = &kTensorLayouts[1]},
    {REGARD_IN_CALL(v), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .written_with = {Feature::kAppendKv}, .required = true, .last_stride_is_1 = true,
     .shape = "[B,Hkv,Skv,Dv]", .packed_shape = "[1,Hkv,total_kv,Dv]",
     .layout = &kTensorLayouts[2]},
    {REGARD_IN_CALL(out), .forward = TensorRole::kOut, .backward = TensorRole::kIn,
     .required = true, .last_stride_is_1 = true, .shape = "[B,Hq,Sq,Dv]",
     .packed_shape = "[1,Hq,total_q,Dv]", .layout = &kTensorLayouts[3]},
    {REGARD_IN_CALL(lse), .forward = TensorRole::kOut, .shape = "[B,Hq,Sq]",
     .packed_shape = "[Hq,total_q]", .dtype = DtypeRule::kStatistics, .features = {Feature::kLse}},
    {REGARD_IN_CALL(saved_stats), .forward = TensorRole::kOut, .shape = "[B,Hq,Sq,2]",
     .packed_shape = "[1,Hq,total_q,2]", .dtype = DtypeRule::kStatistics,
     .features = {Feature::kSavedStats}},
    {REGARD_IN_CALL(scores_out), .forward = TensorRole::kOut, .shape = "[B,Hq,Sq,Skv]",
     .dtype = DtypeRule::kStatistics, .features = {Feature::kScoresOut}},
    {REGARD_IN_CALL(out_amax), .forward = TensorRole::kOut, .shape = "[1]",
     .dtype = DtypeRule::kF32, .features = {Feature::kOutAmax}},
    {REGARD_IN_CALL(attn_mask), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .shape = "[1|B,1|Hq,1|Sq,1|Skv]", .dtype = DtypeRule::kMask, .features = {Feature::kAttnMask},
     .full_dims = &AttentionParams::mask_dims},
    {REGARD_IN_CALL(attn_bias), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .shape = "[1|B,1|Hq,1|Sq,1|Skv]", .dtype = DtypeRule::kBias, .features = {Feature::kAttnBias},
     .dtype_in_params = &AttentionParams::dtype_bias, .full_dims = &AttentionParams::bias_dims},
    {REGARD_IN_CALL(alibi_slopes), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .shape = "[Hq] or [B,Hq]", .dtype = DtypeRule::kF32, .features = {Feature::kAlibi}},
    {REGARD_IN_CALL(sinks), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .shape = "[Hq]", .dtype = DtypeRule::kF32, .features = {Feature::kSinks}},
    {REGARD_IN_CALL(segment_ids_q), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .shape = "[B,Sq]", .packed_shape = "[total_q]", .dtype = DtypeRule::kI32,
     .beside = &Buffers::segment_ids_kv, .features = {Feature::kSegmentIds}},
    {REGARD_IN_CALL(segment_ids_kv), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .shape = "[B,Skv]", .packed_shape = "[total_kv]", .dtype = DtypeRule::kI32,
     .beside = &Buffers::segment_ids_q, .features = {Feature::kSegmentIds}},
    {REGARD_IN_CALL(seqlens_q), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .data = DataRule::kLength, .data_limit = Extent::kSq, .shape = "[B]", .dtype = DtypeRule::kI32,
     .features = {Feature::kSeqlensQ}},
    {REGARD_IN_CALL(seqlens_kv), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .data = DataRule::kLength, .data_limit = Extent::kSkv, .shape = "[B]",
     .dtype = DtypeRule::kI32, .features = {Feature::kSeqlensKv}},
    {REGARD_IN_CALL(cache_leftpad), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .data = DataRule::kLeftpad, .shape = "[B]", .dtype = DtypeRule::kI32,
     .beside = &Buffers::seqlens_kv, .features = {Feature::kCacheLeftpad}},
    {REGARD_IN_CALL(diagonal_offsets), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .shape = "[B]", .dtype = DtypeRule::kI64, .features = {Feature::kDiagonalPerSequence}},
    {REGARD_IN_CALL(descale_q), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .data = DataRule::kScale, .shape = "[1] or [B,Hkv]", .dtype = DtypeRule::kF32,
     .features = {Feature::kDescales}, .second_shape_features = {Feature::kDescalesPerHead}},
    {REGARD_IN_CALL(descale_k), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .data = DataRule::kScale, .shape = "[1] or [B,Hkv]", .dtype = DtypeRule::kF32,
     .features = {Feature::kDescales}, .second_shape_features = {Feature::kDescalesPerHead}},
    {REGARD_IN_CALL(descale_v), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .data = DataRule::kScale, .shape = "[1] or [B,Hkv]", .dtype = DtypeRule::kF32,
     .features = {Feature::kDescales}, .second_shape_features = {Feature::kDescalesPerHead}},
    {REGARD_IN_CALL(cu_seqlens_q), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .last_stride_is_1 = true, .data = DataRule::kStarts, .data_limit = Extent::kTotalQ,
     .shape = "[B+1]", .dtype = DtypeRule::kIndex, .features = {Feature::kPacked}},
    {REGARD_IN_CALL(cu_seqlens_kv), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .last_stride_is_1 = true, .data = DataRule::kStarts, .data_limit = Extent::kTotalKv,
     .shape = "[B+1]", .dtype = DtypeRule::kIndex, .beside = &Buffers::cu_seqlens_q,
     .features = {Feature::kPacked}},
    {REGARD_IN_CALL(page_table), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .data = DataRule::kPage, .shape = "[B,pages]", .dtype = DtypeRule::kI32,
     .beside = &Buffers::seqlens_kv, .features = {Feature::kPaged}},
    {REGARD_IN_CALL(scales_k), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .written_with = {Feature::kAppendKv}, .data = DataRule::kRowScale,
     .shape = "[entries,Hkv,1|rows] or [entries,Hkv,rows_k,columns_k]", .dtype = DtypeRule::kF32,
     .features = {Feature::kScales}},
    {REGARD_IN_CALL(scales_v), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .written_with = {Feature::kAppendKv}, .data = DataRule::kRowScale,
     .shape = "[entries,Hkv,1|rows] or [entries,Hkv,rows_v,columns_v]", .dtype = DtypeRule::kF32,
     .features = {Feature::kScales}},
    {REGARD_IN_CALL(scales_q), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .data = DataRule::kQueryScale, .shape = "[B,Hq,Sq] or [B,Hq,rows_q,columns_q]",
     .packed_shape = "[1,Hq,total_q] or [1,Hq,rows_q,columns_q]", .dtype = DtypeRule::kF32,
     .features = {Feature::kScalesQ}},
    {REGARD_IN_CALL(channel_scales_k), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .data = DataRule::kChannelScale, .shape = "[Hkv,Dqk]", .dtype = DtypeRule::kF32,
     .features = {Feature::kChannelScales}},
    {REGARD_IN_CALL(block_mask), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .data = DataRule::kBlocks, .shape = "[1|B,1|Hq,blocks_q,blocks_kv]", .dtype = DtypeRule::kU8,
     .features = {Feature::kBlockMask}},
    {REGARD_IN_CALL(captured0), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .dtype = DtypeRule::kCaptured, .features = {Feature::kCaptured}},
    {REGARD_IN_CALL(captured1), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .dtype = DtypeRule::kCaptured, .features = {Feature::kCaptured}},
    {REGARD_IN_CALL(captured2), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .dtype = DtypeRule::kCaptured, .features = {Feature::kCaptured}},
    {REGARD_IN_CALL(captured3), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .dtype = DtypeRule::kCaptured, .features = {Feature::kCaptured}},
    {REGARD_IN_CALL(captured4), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .dtype = DtypeRule::kCaptured, .features = {Feature::kCaptured}},
    {REGARD_IN_CALL(captured5), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .dtype = DtypeRule::kCaptured, .features = {Feature::kCaptured}},
    {REGARD_IN_CALL(captured6), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .dtype = DtypeRule::kCaptured, .features = {Feature::kCaptured}},
    {REGARD_IN_CALL(captured7), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .dtype = DtypeRule::kCaptured, .features = {Feature::kCaptured}},
    {REGARD_IN_CALL(k_new), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .last_stride_is_1 = true, .data = DataRule::kNewRow, .shape = "[B,Hkv,Snew,Dqk]",
     .dtype = DtypeRule::kNewRow, .like = &Buffers::k, .beside = &Buffers::v_new,
     .features = {Feature::kAppendKv}},
    {REGARD_IN_CALL(v_new), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .last_stride_is_1 = true, .data = DataRule::kNewRow, .shape = "[B,Hkv,Snew,Dv]",
     .dtype = DtypeRule::kNewRow, .like = &Buffers::v, .beside = &Buffers::k_new,
     .features = {Feature::kAppendKv}},
    {REGARD_IN_CALL(tree_mask), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .shape = "[1|B,Sq,Snew]", .dtype = DtypeRule::kMask, .features = {Feature::kTreeMask}},
    {REGARD_IN_CALL(rotary_cos), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .data = DataRule::kAngles, .shape = "[positions,rotary_dim/2]", .dtype = DtypeRule::kAngle,
     .beside = &Buffers::rotary_sin, .features = {Feature::kRotary}},
    {REGARD_IN_CALL(rotary_sin), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .shape = "[positions,rotary_dim/2]", .dtype = DtypeRule::kLike, .like = &Buffers::rotary_cos,
     .beside = &Buffers::rotary_cos, .features = {Feature::kRotary}},
    {REGARD_IN_CALL(positions), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .data = DataRule::kAngle, .shape = "[B,Sq]", .packed_shape = "[total_q]",
     .dtype = DtypeRule::kI32, .beside = &Buffers::rotary_cos, .features = {Feature::kPositions}},
    {REGARD_IN_CALL(cache_batch_idx), .forward = TensorRole::kIn, .backward = TensorRole::kIn,
     .data = DataRule::kEntry, .shape = "[B]", .dtype = DtypeRule::kI32,
     .features = {Feature::kCacheBatchIdx}},
    {REGARD_IN_BACKWARD(d_out), .backward = TensorRole::kIn, .required = true,
     .last_stride_is_1 = true, .dtype = DtypeRule::kOutGradient, .like = &Buffers::out},
    {REGARD_IN_BACKWARD(descale_d_out), .backward = TensorRole::kIn, .data = DataRule::kScale,
     .shape = "[1] or [B,Hkv]", .dtype = DtypeRule::kF32},
    {REGARD_IN_BACKWARD(scales_d_out), .backward = TensorRole::kIn, .data = DataRule::kQueryScale,
     .shape = "[B,Hq,Sq] or [B,Hq,rows_q,columns_v]",
     .packed_shape = "[1,Hq,total_q] or [1,Hq,rows_q,columns_v]", .dtype = DtypeRule::kF32,
     .beside = &Buffers::scales_q},
    {REGARD_IN_BACKWARD(gradient_scales), .backward = TensorRole::kIn, .data = DataRule::kScale,
     .shape = "[3]", .dtype = DtypeRule::kF32},
    {.name = "saved.stats",  // of rank 3 it is an lse, of rank 4 saved_stats: SavedContext::kind
     .saved = &SavedContext::stats,
     .c_gradient = &regard_gradients::saved,
     .backward = TensorRole::kIn,
     .required = true,
     .shape = "[B,Hq,Sq] or [B,Hq,Sq,2]",
     .packed_shape = "[Hq,total_q] or [1,Hq,total_q,2]",
     .dtype = DtypeRule::kStatistics},
    {REGARD_IN_BACKWARD(delta), .backward = TensorRole::kIn, .shape = "[B,Hq,Sq]",
     .packed_shape = "[Hq,total_q]", .dtype = DtypeRule::kStatistics,
     .features = {Feature::kDelta}},
    {REGARD_IN_BACKWARD(d_lse), .backward = TensorRole::kIn, .shape = "[B,Hq,Sq]",
     .packed_shape = "[Hq,total_q]", .dtype = DtypeRule::kStatistics, .features = {Feature::kDLse}},
    {REGARD_IN_BACKWARD(d_q), .backward = TensorRole::kOut, .last_stride_is_1 = true,
     .dtype = DtypeRule::kGradient, .like = &Buffers::q},
    {REGARD_IN_BACKWARD(d_k), .backward = TensorRole::kOut, .last_stride_is_1 = true,
     .dtype = DtypeRule::kGradient, .like = &Buffers::k},
    {REGARD_IN_BACKWARD(d_v), .backward = TensorRole::kOut, .last_stride_is_1 = true,
     .dtype = DtypeRule::kGradient, .like = &Buffers::v},
    {REGARD_IN_BACKWARD(gradient_amax), .backward = TensorRole::kOut, .shape = "[3]",
     .dtype = DtypeRule::kF32},
    {REGARD_IN_BACKWARD(d_bias), .backward = TensorRole::kOut, .dtype = DtypeRule::kLike,
     .like = &Buffers::attn_bias},
    {REGARD_IN_BACKWARD(d_sinks), .backward = TensorRole::kOut, .dtype = DtypeRule::kLike,
     .like = &Buffers::sinks},
    {REGARD_IN_BACKWARD(d_captured0), .backward = TensorRole::kOut, .dtype = DtypeRule::kLike,
     .like = &Buffers::captured0},
    {REGARD_IN_BACKWARD(d_captured1), .backward = TensorRole::kOut, .dtype = DtypeRule::kLike,
     .like = &Buffers::captured1},
    {REGARD_IN_BACKWARD(d_captured2), .backward = TensorRole::kOut, .dtype = DtypeRule::kLike,
     .like = &Buffers::captured2},
    {REGARD_IN_BACKWARD(d_captured3), .backward = TensorRole::kOut, .dtype = DtypeRule::kLike,
     .like = &Buffers::captured3},
    {REGARD_IN_BACKWARD(d_captured4), .backward = TensorRole::kOut, .dtype = DtypeRule::kLike,
     .like = &Buffers::captured4},
    {REGARD_IN_BACKWARD(d_captured5), .backward = TensorRole::kOut, .dtype = DtypeRule::kLike,
     .like = &Buffers::captured5},
    {REGARD_IN_BACKWARD(d_captured6), .backward = TensorRole::kOut, .dtype = DtypeRule::kLike,
     .like = &Buffers::captured6},
    {REGARD_IN_BACKWARD(d_captured7), .backward = TensorRole::kOut, .dtype = DtypeRule::kLike,
     .like = &Buffers::captured7},
};

#undef REGARD_IN_CALL
#undef REGARD_IN_BACKWARD

using TensorSpecs = std::span<const TensorSpec>;
inline constexpr std::size_t kMainTensors = 4;  // q, k, v and out: the first rows
inline constexpr std::size_t kMaxTensors = 72;  // rows that checks have room for

/// The row of a tensor of Buffers, which must have one.
constexpr const TensorSpec& tensor_at(TensorView Buffers::*buffer,
                                      TensorSpecs specs = kTensors) noexcept {
  std::size_t i = 0;
  while (specs[i].buffer != buffer) ++i;
  return specs[i];
}

/// The table as Markdown, as docs/semantics.md has it.
REGARD_EXPORT std::string tensor_table(TensorSpecs specs = kTensors);

}  // namespace regard
