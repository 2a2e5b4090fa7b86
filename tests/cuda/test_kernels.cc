#include <gtest/gtest.h>

#include <cctype>
#include <cmath>
#include <string>
#include <vector>

#include "conformance/generator.h"
#include "conformance/run.h"
#include "tests/cuda/host_backends.h"
#include "tests/support/fixed_cases.h"
#include "tests/support/moved_maximum.h"

// The CUDA kernels' own source on the host, held against the oracle by the same cases and tolerance
// as the CPU's kernels, between guard pages.

namespace regard {
namespace {

using conformance::Guard;
using conformance::Outcome;
using conformance::Report;

const std::vector<cuda_test::HostBackend>& backends() {
  static const std::vector<cuda_test::HostBackend> made = cuda_test::make_host_backends();
  return made;
}

bool is_code(Dtype dtype) {
  return dtype == Dtype::kI8 || dtype == Dtype::kF8E4M3 || dtype == Dtype::kF8E5M2;
}

/// What FLASH lacks of the cases here: odd head dims, unaligned rows, keys that are neither of q's
/// type nor both of 8 bits or u4, descales and scores, and gradients of outputs of another type.
bool flash_has(const AttentionParams& p) {
  const bool has_groups = p.dtype_k == Dtype::kU4 && p.dtype_v == Dtype::kU4;
  const bool has_codes = has_groups || (is_code(p.dtype_k) && is_code(p.dtype_v));
  const auto is_served = [&](std::int64_t dims) {
    return dims % (has_groups ? 32 : has_codes ? 16 : 8) == 0 && dims <= 256;
  };
  const bool has_dtypes = has_codes || (p.dtype_k == p.dtype_q && p.dtype_v == p.dtype_q);
  return is_served(p.head_dim_qk) && is_served(p.head_dim_v) && p.align_q_log2 >= 4 && has_dtypes &&
         (!p.features.has(Feature::kNeedsGrad) || p.dtype_out == p.dtype_q) &&
         !p.features.has(Feature::kDescales) && !p.features.has(Feature::kDescalesPerHead) &&
         !p.features.has(Feature::kScoresOut);
}

/// Whether MATH alone claims it.
bool has_math_alone(const AttentionParams& p) {
  return p.dtype_q == Dtype::kF64 || p.features.has(Feature::kScoresOut);
}

struct BackendRun {
  const cuda_test::HostBackend* backend;
  Report report;
};

bool is_half(Dtype dtype) { return dtype == Dtype::kBf16 || dtype == Dtype::kF16; }

/// What ThreadSanitizer is to see in turn; without it one run will do.
#if defined(__SANITIZE_THREAD__)
constexpr cuda_test::Races kRaces[] = {cuda_test::Races::kOfThreads, cuda_test::Races::kOfBlocks};
#else
constexpr cuda_test::Races kRaces[] = {cuda_test::Races::kOfThreads};
#endif

/// The case on every backend, one truth for all; the order of blocks and threads changes from case
/// to case. Tensor cores serve 16-bit types alone.
std::vector<BackendRun> run_all(const Case& c, bool flash_alone = false) {
  static int round = 0;
  cuda_test::schedule().order = static_cast<cuda_test::Order>(round % 3);
  const Guard guard = ++round % 2 == 0 ? Guard::kUpperPage : Guard::kLowerPage;
  conformance::RunOptions options;
  options.twice = false;  // Schedules.ChangeNoBits runs twice, in other orders
  options.guard = guard;
  Expected<conformance::PreparedCase> prepared = conformance::prepare(c, guard);
  EXPECT_TRUE(prepared.ok()) << prepared.status().to_string();
  std::vector<BackendRun> runs;
  for (const cuda_test::HostBackend& backend : backends()) {
    if (backend.is_flash ? !is_half(c.params.dtype_q) : flash_alone) continue;
    for (const cuda_test::Races races : kRaces) {
      cuda_test::schedule().races = races;
      const cuda_test::Counts before = cuda_test::schedule().counts;
      const Report report = run_prepared(*backend.context, &*prepared, backend.ref, options);
      EXPECT_TRUE(report.ok()) << report.text;
      if (races == kRaces[0]) runs.push_back({&backend, report});
      const AttentionParams& p = c.params;
      if (report.outcome != Outcome::kPassed || p.batch * p.num_heads_q * p.seqlen_q == 0) continue;
      const cuda_test::Counts& after = cuda_test::schedule().counts;
      EXPECT_GT(after.blocks, before.blocks) << "no kernel ran";
      EXPECT_EQ(after.tensor_blocks > before.tensor_blocks, backend.is_flash);
    }
  }
  return runs;
}

class CudaCases : public testing::TestWithParam<const char*> {};

TEST_P(CudaCases, PassInTheirTypes) {
  constexpr const char* kTypes[] = {"f32",          "bf16",   "f16",           "f64",
                                    "bf16 out=f32", "f8e4m3", "f8e5m2 out=f32"};
  for (const std::string& dtype : test::types_of(GetParam(), kTypes)) {
    const Case c = parse_case(std::string(GetParam()) + " " + dtype).value();
    const bool math_only = has_math_alone(c.params);
    for (const BackendRun& run : run_all(c)) {
      const bool claimed = run.backend == &backends().front() ||
                           (run.backend->is_flash ? flash_has(c.params) : !math_only);
      EXPECT_EQ(run.report.outcome, claimed ? Outcome::kPassed : Outcome::kRefused)
          << to_string(c) << ": " << run.report.text;
    }
  }
}

std::string name_of(const testing::TestParamInfo<const char*>& info) {
  std::string name = std::to_string(info.index) + "_";
  for (const char* c = info.param; *c != 0; ++c) {
    name += std::isalnum(static_cast<unsigned char>(*c)) != 0 ? *c : '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, CudaCases,
                         testing::ValuesIn(test::forward_cases().begin(),
                                           test::forward_cases().end()),
                         name_of);

// What is peculiar to these kernels: ranges of columns, tiles of 64, groups packed into rows.
const char* const kOwnCases[] = {
    "b1 hq1 sq64 skv64 d64 f32 lse",
    "b1 hq2 hkv1 sq64 skv128 d128 bf16 causal diag=br lse",
    "b1 hq3 hkv1 sq43 skv65 d40 f16 causal diag=br lse",
    "b1 hq2 sq65 skv129 d80 f32 window=64,0 diag=br lse",
    "b1 hq1 sq65 skv65 d256 bf16 lse",
    "b1 hq2 hkv1 sq17 skv70 d192 dv128 f16 causal diag=br lse",
    "b1 hq5 hkv1 sq13 skv257 d16 f32 dropout=0.3 bias=1,H,Sq,1 mask=1,1,1,Skv lse",
    "b1 hq1 sq40 skv70 d128 dv64 f32 softcap=3 bias=1,1,Sq,Skv saved grad",
    "b1 hq4 hkv2 sq33 skv130 d64 dv128 bf16 softcap=3 dropout=0.2 saved grad",
    "b1 hq2 hkv1 sq65 skv65 d80 f16 causal diag=tl bias=1,1,1,Skv saved grad",
    "b1 hq2 sq65 skv129 d40 f32 window=20,3 diag=br bias=1,H,1,1 softcap=4 sinks saved grad",
    "b2 hq2 hkv1 sq20 skv65 d256 f32 lens bias=1,1,Sq,Skv saved grad poison",
    "b1 hq2 sq9 skv33 d192 dv128 bf16 causal diag=br lse grad",
    "b2 hq3 sq63 skv65 d63 f64 bias softcap=2 dropout=0.5 saved grad",
    "b2 hq4 hkv2 sq33 skv130 d64 f8e4m3 causal diag=br descales=head lse poison",
    // And of tensor cores: blocks of 128 rows, units of 32, steps of 128 head dims.
    "b1 hq2 hkv1 sq130 skv300 d64 bf16 causal diag=br lse grad",
    "b1 hq6 hkv2 sq65 skv161 d128 bf16 window=70,9 diag=br mask=1,H,Sq,Skv saved grad poison",
    "b1 hq1 sq129 skv257 d33 dv127 bf16 bias=1,H,1,Skv dropout=0.3 saved grad",
    "b2 hq2 hkv1 sq40 skv97 d300 dv200 f16 causal diag=tl lens descales=head lse poison",
    "b1 hq2 hkv1 sq70 skv129 d256 bf16 diag=br mask=1,1,Sq,Skv sinks alibi lse poison",
    "b1 hq2 sq33 skv65 d40 dv128 f8e5m2 out=f8e5m2 dropout=0.2 scale=-0.3 descales mask lse poison",
    // And of few rows, 32 at most: keys in parts of some 512, some of which nobody sees.
    "b2 hq8 hkv2 sq8 skv1100 d64 bf16 causal diag=br sinks lse poison",
    "b3 hq2 hkv1 sq1 skv1600 d128 f16 lens_kv=1600,700,0 causal diag=br alibi lse poison",
    "b2 hq3 hkv1 sq5 skv1301 d33 dv150 f32 mask bias softcap=3 dropout=0.3 saved grad poison",
    // And of FLASH: every padded head dim, plain, with edits and in splits; tiles of 32 and 64
    // keys.
    "b1 hq2 hkv1 sq130 skv200 d64 f16 causal diag=br lse",
    "b1 hq6 hkv2 sq50 skv161 d96 bf16 window=70,9 diag=br lse poison",
    "b2 hq1 sq129 skv257 d128 dv120 bf16 lens causal diag=br lse poison",
    "b1 hq3 hkv1 sq47 skv100 d192 dv128 f16 lse",
    "b1 hq1 sq140 skv97 d256 bf16 causal diag=tl out=f32 lse",
    "b1 hq2 sq33 skv70 d96 f16 mask=1,1,Sq,Skv bias=1,H,1,Skv lse poison",
    "b1 hq2 hkv1 sq70 skv129 d128 f16 dropout=0.2 diag=br alibi sinks scale=-0.3 lse",
    "b1 hq1 sq40 skv70 d192 bf16 softcap=3 diag=br lse poison",
    "b2 hq4 hkv1 sq5 skv1300 d96 f16 lens causal diag=br lse poison",
    "b1 hq16 hkv2 sq1 skv1030 d192 bf16 window=600,0 diag=br sinks lse poison",
    "b1 hq8 hkv1 sq4 skv700 d256 f16 bias=1,1,Sq,Skv dropout=0.1 lse poison",
    "b1 hq16 hkv1 sq2 skv2000 d72 bf16 window=300,2 diag=br bias=1,1,Sq,Skv saved grad poison",
    "b2 hq4 hkv4 sq3 skv900 d192 dv128 f16 lens mask=1,1,1,Skv scale=-0.3 lse poison",
    "b1 hq2 hkv1 sq16 skv700 d40 f8e4m3 out=f8e4m3 descales=head mask lse poison",
    // And of FLASH's backward: every padded head dim, plain and with edits, units that are full,
    // cut short and passed over, groups, padding, and what stands behind masks.
    "b1 hq2 hkv1 sq70 skv200 d64 bf16 saved grad",
    "b1 hq2 hkv1 sq130 skv161 d64 f16 causal diag=br saved grad poison",
    "b2 hq3 hkv1 sq50 skv137 d96 bf16 lens causal diag=br lse grad poison",
    "b1 hq2 hkv1 sq129 skv257 d128 f16 window=70,9 diag=br lse grad poison",
    "b1 hq1 sq65 skv200 d128 dv120 bf16 causal diag=tl saved grad",
    "b2 hq2 hkv1 sq33 skv97 d192 dv128 f16 lens diag=br causal saved grad poison",
    "b1 hq2 sq70 skv100 d256 bf16 causal diag=br lse grad",
    "b1 hq3 hkv1 sq47 skv130 d64 f16 mask=1,H,Sq,Skv bias=1,1,1,Skv dropout=0.2 saved grad poison",
    "b2 hq4 hkv2 sq33 skv70 d96 bf16 softcap=3 sinks diag=br alibi lens saved grad poison",
    "b1 hq2 hkv1 sq65 skv129 d128 bf16 segments dropout=0.3 scale=-0.3 lse grad",
    "b2 hq2 hkv1 sq40 skv97 d192 f16 bias softcap=2 window=30,5 diag=br saved grad poison",
    "b1 hq2 sq33 skv129 d256 f16 dropout=0.2 causal diag=br sinks lse grad poison",
    // And packed: plain, edited and in splits; sequences of none and of few rows, padding among
    // them, and rows behind the last.
    "b4 hq4 hkv2 sq140 skv200 d64 bf16 packed total_q=300 total_kv=500 lse poison",
    "b6 hq2 sq65 d128 f16 packed rows_q=65,0,1,64,33,2 rows_kv=65,3,0,64,20,65 causal diag=br lse "
    "poison",
    "b3 hq4 hkv2 sq70 skv90 d96 bf16 packed lens window=9,9 diag=br lse poison",
    "b4 hq3 hkv1 sq33 skv150 d192 dv128 f16 packed mask bias segments softcap=5 sinks lse poison",
    "b2 hq2 sq40 skv70 d256 bf16 packed total_q=80 dropout=0.2 diag=br alibi lse poison",
    "b5 hq8 hkv2 sq4 skv1300 d128 bf16 packed rows_q=4,0,1,3,2 causal diag=br lse poison",
    "b3 hq2 sq30 skv50 d33 dv17 f32 packed bias softcap=2 saved grad poison",
    "b4 hq4 hkv2 sq140 skv200 d64 f16 packed total_q=300 total_kv=500 saved grad poison",
    "b5 hq2 sq65 d128 bf16 packed rows_q=65,0,1,64,33 rows_kv=65,3,0,64,20 causal diag=br lse grad "
    "poison",
    "b3 hq4 hkv2 sq40 skv70 d96 f16 packed lens mask bias segments softcap=5 sinks saved grad "
    "poison",
    "b2 hq2 sq33 skv97 d256 bf16 packed dropout=0.2 window=30,5 diag=br saved grad poison",
    // And keys in pages, smaller and larger than a tile, in entries of a cache, and behind rows
    // that are none.
    "b3 hq4 hkv2 sq1 skv1600 d64 bf16 paged page_size=16 causal diag=br lens_kv=1600,77,0 lse "
    "poison",
    "b2 hq4 hkv2 sq130 skv400 d128 f16 paged page_size=80 causal diag=br lens_kv=400,90 lse poison",
    "b2 hq2 sq50 skv200 d96 bf16 paged page_size=5 mask bias segments sinks lens_kv=200,90 "
    "cache_leftpad lse poison",
    "b2 hq2 sq9 skv128 d192 dv128 f16 paged page_size=1 window=40,0 diag=br lse poison",
    "b2 hq8 hkv1 sq2 skv1024 d256 bf16 paged page_size=64 softcap=3 cache_leftpad lse poison",
    "b4 hq4 hkv2 sq40 skv640 d64 f16 paged page_size=16 causal diag=br lens_kv=640,33,0,64 packed "
    "rows_q=40,1,0,7 total_q=50 lse poison",
    "b3 hq4 hkv2 sq70 skv200 d128 bf16 cache_batch_idx lens=kv causal diag=br lse poison",
    "b2 hq4 hkv2 sq66 skv80 d64 f16 window=20,0 diag=br alibi lens_kv=79,60 cache_leftpad lse "
    "poison",
    // And trees of drafts: in splits, beside full tiles, from a key before key 0 on, beside every
    // other edit, packed and in pages.
    "b2 hq4 hkv2 sq7 skv1100 d64 bf16 tree=7 causal diag=br lens_kv=1100,500 lse poison",
    "b2 hq3 hkv1 sq130 skv200 d96 f16 tree=70 lens_kv=200,60 lse poison",
    "b1 hq2 sq40 skv70 d128 bf16 tree=33 mask=1,1,Sq,Skv bias=1,1,Sq,Skv softcap=3 dropout=0.2 lse "
    "poison",
    "b2 hq2 hkv1 sq70 skv130 d72 f32 tree=66 window=90,0 diag=br sinks scale=-0.3 saved poison",
    "b2 hq2 sq9 skv33 d17 f64 tree=9 causal diag=br lens_kv=33,4 scores=scaled lse poison",
    "b3 hq4 hkv2 sq20 skv304 d192 bf16 paged page_size=16 packed rows_q=20,0,3 tree=30 "
    "lens_kv=300,10,77 lse poison",
    // And rows that are appended, with rotary embedding: to the batch, pages and entries, before
    // and behind a boundary of pages, beside rows that are no keys, and queries alone.
    "b2 hq4 hkv2 sq5 skv1200 d64 bf16 append=5 lens_kv=1195,3 causal diag=br lse poison",
    "b3 hq4 hkv2 sq1 skv1600 d128 f16 paged page_size=16 append=1 lens_kv=1599,15,0 rotary=128 "
    "causal diag=br lse poison",
    "b2 hq4 hkv2 sq33 skv294 d96 bf16 paged page_size=7 append=33 lens_kv=250,2 rotary=64 "
    "rotary_interleaved cache_leftpad lse poison",
    "b3 hq2 sq9 skv200 d192 dv128 f16 cache_batch_idx append=9 lens_kv=191,60,0 rotary=96 "
    "positions "
    "window=50,0 diag=br tree=9 lse poison",
    "b3 hq4 hkv1 sq40 skv320 d64 bf16 paged page_size=16 append=20 lens_kv=300,0,64 packed "
    "rows_q=40,1,0 total_q=50 rotary=64 causal diag=br lse poison",
    "b2 hq2 hkv1 sq65 skv130 d40 f16 rotary=16 positions rotary_interleaved lens causal diag=br "
    "lse "
    "poison",
    "b3 hq2 sq33 skv70 d256 bf16 packed total_q=80 rotary=256 positions lse poison",
    // And of MATH: f64, whose rows are appended as they are, and scores of keys in pages.
    "b3 hq4 hkv2 sq7 skv240 d33 dv70 f64 paged page_size=24 lens_kv=200,0,77 append=7 causal "
    "diag=br "
    "cache_leftpad lse poison",
    "b2 hq2 sq66 skv130 d40 f64 cache_batch_idx lens_kv=130,20 tree=9 softcap=3 lse poison",
    "b2 hq4 hkv2 sq5 skv160 d64 bf16 paged page_size=16 lens_kv=150,20 append=5 rotary=64 causal "
    "diag=br scores=probs lse poison",
    "b2 hq4 hkv2 sq9 skv70 d40 f32 kv=i8 scales=token channel_scales cache_leftpad lens_kv=70,20 "
    "scores=scaled lse poison",
    // And of EFFICIENT: other types, any head dim, ranges of columns, splits.
    "b3 hq4 hkv2 sq9 skv240 d33 dv150 f32 paged page_size=24 lens_kv=200,0,77 append=9 rotary=32 "
    "positions causal diag=br cache_leftpad lse poison",
    "b2 hq4 hkv2 sq2 skv1600 d63 f32 cache_batch_idx lens_kv=1500,600 append=2 tree=2 rotary=10 "
    "rotary_interleaved lse poison",
    "b2 hq2 hkv1 sq5 skv1200 d40 f8e4m3 paged page_size=100 lens_kv=1195,60 append=5 rotary=40 "
    "causal diag=br descales=head lse poison",
    "b2 hq2 sq70 skv130 d40 f8e5m2 out=f32 cache_leftpad lens_kv=130,20 tree=66 dropout=0.2 "
    "descales lse poison",
    // And quantised keys: read and appended, of every type, with scales of rows, pages, entries and
    // columns, in splits, packed, and the Hadamard matrix, without them and with.
    "b3 hq4 hkv2 sq1 skv1600 d128 bf16 kv=i8 scales=token paged page_size=16 append=1 "
    "lens_kv=1599,15,0 rotary=128 causal diag=br lse poison",
    "b2 hq4 hkv2 sq33 skv294 d96 f16 kv=f8e4m3 scales=all channel_scales paged page_size=7 "
    "append=33 lens_kv=250,2 rotary=64 rotary_interleaved cache_leftpad lse poison",
    "b3 hq2 sq9 skv200 d40 dv150 f32 kv=f8e5m2 v=i8 scales=token channel_scales cache_batch_idx "
    "append=9 lens_kv=191,60,0 rotary=32 window=50,0 diag=br lse poison",
    "b2 hq4 hkv2 sq3 skv70 d64 bf16 kv=u4 append=3 lens_kv=67,3 rotary=32 hadamard lse poison",
    "b2 hq2 hkv1 sq5 skv1200 d34 dv42 f16 kv=u4 channel_scales paged page_size=100 append=5 "
    "lens_kv=1195,60 descales=head lse poison",
    "b2 hq4 hkv2 sq5 skv70 d34 dv42 f32 kv=u4 layout=strided causal diag=br lse",
    "b2 hq4 hkv2 sq40 skv130 d64 bf16 v=u4 append=20 lens_kv=110,20 dropout=0.2 mask lse poison",
    "b3 hq4 hkv2 sq20 skv90 d63 f16 kv=i8 scales=all channel_scales packed total_q=50 lse poison",
    "b2 hq2 hkv1 sq2 skv700 d80 f8e4m3 out=bf16 scales=token append=2 lens_kv=698,2 lse poison",
    "b2 hq2 hkv1 sq65 skv70 d40 f32 kv=bf16 v=f8e4m3 alibi diag=br descales lse poison",
    "b2 hq4 hkv2 sq9 skv70 d40 f32 kv=i8 v=f32 channel_scales lse poison",
    "b2 hq4 hkv2 sq33 skv144 d128 bf16 paged page_size=16 append=33 lens_kv=90,2 hadamard causal "
    "diag=br lse poison",
    "b3 hq2 sq40 skv70 d64 f16 packed total_q=80 rotary=64 positions hadamard lse poison",
    "b1 hq2 hkv1 sq3 skv20 d512 dv40 f32 kv=i8 scales=token append=3 lens_kv=17 hadamard lse",
    // And codes of FLASH: every padded head dim, both types, prompts and splits, scales of rows,
    // pages and none, every edit, and scales that f16 has no numbers for.
    "b2 hq4 hkv2 sq130 skv200 d64 bf16 kv=i8 scales=token causal diag=br lens_kv=200,70 lse poison",
    "b2 hq4 hkv2 sq40 skv256 d96 f16 kv=f8e4m3 scales=token paged page_size=16 append=40 "
    "lens_kv=200,7 rotary=96 causal diag=br lse poison",
    "b2 hq2 hkv1 sq33 skv97 d80 f16 kv=f8e5m2 v=i8 scales=token cache_batch_idx window=40,3 "
    "diag=br "
    "sinks alibi lse poison",
    "b1 hq2 hkv1 sq70 skv129 d128 f16 kv=i8 scales=all paged page_size=3 mask=1,1,Sq,Skv "
    "bias=1,H,1,Skv softcap=3 dropout=0.2 lse poison",
    "b2 hq2 hkv1 sq20 skv70 d192 dv128 f16 kv=i8 v=f8e4m3 scales=token tree=20 lens_kv=70,30 "
    "cache_leftpad lse poison",
    "b1 hq2 sq33 skv70 d256 bf16 kv=i8 scales=token causal diag=tl out=f32 lse poison",
    "b2 hq8 hkv2 sq2 skv1200 d64 f16 kv=i8 scales=token append=2 lens_kv=1198,600 causal diag=br "
    "hadamard lse poison",
    "b2 hq4 hkv1 sq4 skv1300 d96 bf16 kv=f8e5m2 lens_kv=1300,900 window=700,0 diag=br sinks lse "
    "poison",
    "b3 hq4 hkv2 sq1 skv1600 d128 f16 kv=f8e4m3 scales=token paged page_size=16 append=1 "
    "lens_kv=1599,15,0 causal diag=br lse poison",
    "b1 hq8 hkv1 sq4 skv700 d192 f16 kv=i8 scales=all bias=1,1,Sq,Skv dropout=0.1 lse poison",
    "b1 hq8 hkv1 sq2 skv1024 d256 bf16 kv=f8e4m3 v=i8 scales=token paged page_size=64 softcap=3 "
    "cache_leftpad lse poison",
    "b3 hq4 hkv2 sq40 skv96 d64 bf16 kv=i8 scales=token paged page_size=8 packed rows_q=40,0,7 "
    "lens_kv=90,5,30 append=2 lse poison",
    // And of u4, whose groups have scales and minima.
    "b2 hq4 hkv2 sq130 skv200 d64 bf16 kv=u4 causal diag=br lens_kv=200,70 lse poison",
    "b2 hq4 hkv2 sq40 skv256 d96 f16 kv=u4 paged page_size=16 append=40 lens_kv=200,7 rotary=96 "
    "causal diag=br lse poison",
    "b2 hq2 hkv1 sq33 skv97 d160 f16 kv=u4 cache_batch_idx window=40,3 diag=br sinks alibi lse "
    "poison",
    "b1 hq2 hkv1 sq70 skv129 d128 f16 kv=u4 paged page_size=3 mask=1,1,Sq,Skv bias=1,H,1,Skv "
    "softcap=3 dropout=0.2 lse poison",
    "b2 hq2 hkv1 sq20 skv70 d192 dv128 bf16 kv=u4 tree=20 lens_kv=70,30 cache_leftpad lse poison",
    "b1 hq2 sq33 skv70 d32 dv224 bf16 kv=u4 causal diag=tl out=f32 lse poison",
    "b2 hq8 hkv2 sq2 skv1200 d64 f16 kv=u4 append=2 lens_kv=1198,600 causal diag=br hadamard lse "
    "poison",
    "b3 hq4 hkv2 sq1 skv1600 d128 bf16 kv=u4 paged page_size=16 append=1 lens_kv=1599,15,0 causal "
    "diag=br lse poison",
    "b1 hq8 hkv1 sq4 skv700 d192 f16 kv=u4 bias=1,1,Sq,Skv dropout=0.1 lse poison",
    "b1 hq8 hkv1 sq2 skv1024 d256 bf16 kv=u4 paged page_size=64 softcap=3 cache_leftpad lse poison",
    "b2 hq2 hkv1 sq33 skv70 d256 f16 kv=u4 causal diag=br lens_kv=70,40 dropout=0.1 lse poison",
    "b2 hq2 hkv1 sq33 skv70 d256 f16 kv=i8 scales=token causal diag=br lens_kv=70,40 dropout=0.1 "
    "lse "
    "poison",
    "b1 hq8 hkv1 sq4 skv700 dv208 d256 f16 kv=f8e4m3 v=i8 scales=token bias=1,1,Sq,Skv lse poison",
    "b3 hq4 hkv2 sq40 skv96 d96 bf16 kv=u4 paged page_size=8 packed rows_q=40,0,7 lens_kv=90,5,30 "
    "append=2 lse poison",
    // And of keys whose columns have scales.
    "b2 hq4 hkv2 sq130 skv200 d64 bf16 kv=i8 v=f8e4m3 scales=token channel_scales causal diag=br "
    "lens_kv=200,70 lse poison",
    "b2 hq2 hkv1 sq33 skv97 d80 f16 kv=f8e5m2 v=i8 scales=token channel_scales window=40,3 diag=br "
    "sinks alibi lse poison",
    "b2 hq8 hkv2 sq2 skv1200 d192 f16 kv=i8 scales=all channel_scales append=2 lens_kv=1198,600 "
    "causal diag=br lse poison",
    "b1 hq8 hkv1 sq2 skv1024 d256 bf16 kv=i8 scales=token channel_scales paged page_size=64 "
    "softcap=3 lse poison",
    "b2 hq4 hkv2 sq40 skv100 d96 f16 kv=u4 channel_scales append=40 lens_kv=60,7 causal diag=br "
    "lse poison",
    "b1 hq8 hkv2 sq3 skv704 d128 bf16 kv=u4 channel_scales paged page_size=16 hadamard lse poison",
};
INSTANTIATE_TEST_SUITE_P(Own, CudaCases, testing::Values("b1 hq1 sq63 skv1 d40"), name_of);

class CudaOwnCases : public testing::TestWithParam<const char*> {};
TEST_P(CudaOwnCases, Pass) {
  const Case c = parse_case(GetParam()).value();
  for (const BackendRun& run : run_all(c)) {
    const bool is_math = run.backend == &backends().front();
    if (!is_math && has_math_alone(c.params)) continue;
    const bool claimed = !run.backend->is_flash || flash_has(c.params);
    EXPECT_EQ(run.report.outcome, claimed ? Outcome::kPassed : Outcome::kRefused)
        << run.report.text;
  }
}
INSTANTIATE_TEST_SUITE_P(All, CudaOwnCases, testing::ValuesIn(kOwnCases), name_of);

/// Those of grad_cases() with at most 100,000 scores: larger ones are of more blocks than a CPU's
/// pass keeps, not than CUDA's, which have 128 rows at most.
std::vector<const char*> small_grad_cases() {
  std::vector<const char*> found;
  for (const char* text : test::grad_cases()) {
    const AttentionParams p = parse_case(text).value().params;
    if (p.batch * p.num_heads_q * p.seqlen_q * p.seqlen_kv <= 100'000) found.push_back(text);
  }
  return found;
}
INSTANTIATE_TEST_SUITE_P(Gradients, CudaOwnCases, testing::ValuesIn(small_grad_cases()), name_of);

INSTANTIATE_TEST_SUITE_P(Rounding, CudaOwnCases,
                         testing::ValuesIn(test::rounding_cases().begin(),
                                           test::rounding_cases().end()),
                         name_of);

/// Whatever type a case states, tensor cores compute its gradients in bf16 and f16.
class CudaTensorGradients : public testing::TestWithParam<const char*> {};
TEST_P(CudaTensorGradients, Pass) {
  Case c = parse_case(GetParam()).value();
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF16}) {
    c.params.dtype_q = c.params.dtype_k = c.params.dtype_v = c.params.dtype_out = dtype;
    for (const BackendRun& run : run_all(c, /*flash_alone=*/true)) {
      const bool claimed = flash_has(c.params);
      EXPECT_EQ(run.report.outcome, claimed ? Outcome::kPassed : Outcome::kRefused)
          << to_string(c) << ": " << run.report.text;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, CudaTensorGradients, testing::ValuesIn(small_grad_cases()), name_of);

/// No CUDA backend claims functions, nor gradients of 8-bit floats or with descales: with them, too
/// many cases would be refused.
Case as_cuda_claims(Case c) {
  AttentionParams& p = c.params;
  p.score_function = p.mask_function = {};
  p.features = p.features.without(
      {Feature::kScoreFunction, Feature::kMaskFunction, Feature::kScoreCallback});
  if (p.features.has(Feature::kNeedsGrad)) {
    p.features = p.features.without({Feature::kDescales, Feature::kDescalesPerHead});
    if (is_f8(p.dtype_q)) p.dtype_q = p.dtype_k = p.dtype_v = p.dtype_out = Dtype::kF16;
  }
  canonicalize(c);
  return c;
}

TEST(CudaRandomCases, Pass) {
  double worst = 0.0;
  int passed = 0;
#if defined(__SANITIZE_THREAD__)
  constexpr std::uint64_t kCases = 16;  // of some three seconds
#else
  constexpr std::uint64_t kCases = 160;
#endif
  for (std::uint64_t n = 0; n < kCases; ++n) {
    const Case c = as_cuda_claims(n % 2 == 0 ? conformance::random_case(77, n)
                                             : conformance::random_grad_case(77, n));
    for (const BackendRun& run : run_all(c)) {
      passed += run.report.outcome == Outcome::kPassed ? 1 : 0;
      worst =
          std::max(worst, std::max(run.report.comparison.out_margin, run.report.gradients.margin));
    }
    if (HasFailure()) return;
  }
  RecordProperty("worst_margin", std::to_string(worst));
  EXPECT_GT(passed, static_cast<int>(kCases * 3 / 4));  // others are refused
}

TEST(CudaBackward, AMovedMaximumMovesGradientsByAsMuch) {
  for (const cuda_test::HostBackend& backend : backends()) {
    SCOPED_TRACE(to_string(backend.ref));
    test::expect_moved_maximum_moves_as_much(*backend.context, backend.ref);
  }
}

}  // namespace
}  // namespace regard
