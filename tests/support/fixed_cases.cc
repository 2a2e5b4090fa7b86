#include "tests/support/fixed_cases.h"

#include <cstdlib>
#include <numeric>

namespace regard::test {
namespace {

const char* const kForwardCases[] = {
    // Sizes round lanes, row blocks and tiles.
    "b1 hq1 sq1 skv1 d1",
    "b1 hq2 sq3 skv63 d3 lse",
    "b2 hq3 sq63 skv65 d63 lse",
    "b1 hq2 sq65 skv127 d65 lse",
    "b1 hq1 sq127 skv257 d127 lse",
    "b1 hq1 sq257 skv63 d257",
    "b2 hq2 sq65 skv64 d64 dv257 lse",
    "b3 hq6 hkv2 sq17 skv65 d576 dv512",
    "b1 hq8 hkv1 sq1 skv1025 d128 lse",
    "b1 hq1 sq33 skv1023 d8 lse",
    "b9 hq1 sq1 skv1 d16 lse",
    // Layouts.
    "b2 hq4 hkv2 sq65 skv65 d32 layout=bshd lse seed=3",
    "b2 hq4 hkv2 sq65 skv63 d33 layout=strided",
    "b2 hq4 sq63 skv63 d32 layout_q=bshd layout_k=strided layout_out=bshd seed=5",
    "b2 hq4 hkv4 sq65 skv65 d16 layout=bshd causal seed=9",
    "b2 hq2 sq33 skv65 d32 align_q=2 align_k=2 align_v=2 align_out=2 seed=4",
    // Diagonals and windows.
    "b2 hq2 sq65 skv65 d16 causal lse",
    "b2 hq2 sq65 skv127 d16 causal diag=br lse poison",
    "b2 hq2 sq127 skv65 d16 causal diag=br lse poison",
    "b2 hq2 sq127 skv65 d16 causal diag=tl lse poison",
    "b2 hq2 sq63 skv65 d16 causal diag=-17 lse",
    "b2 hq2 sq63 skv65 d16 causal diag=9223372036854775807 lse",
    "b2 hq2 sq63 skv65 d16 causal diag=-9223372036854775808 lse",
    "b4 hq2 sq63 skv65 d16 causal diag=seq lse poison seed=6",
    "b1 hq1 sq9 skv30 d8 window=9223372036854775807,-1 diag=9223372036854775807 lse poison",
    "b1 hq1 sq9 skv30 d8 window=-1,9223372036854775807 diag=-9223372036854775808 lse poison",
    "b2 hq2 sq127 skv127 d16 window=0,0 lse poison",
    "b1 hq2 sq127 skv257 d8 window=64,0 diag=br lse",
    "b1 hq2 sq127 skv257 d8 window=-1,3 diag=br lse",
    "b1 hq2 sq257 skv127 d8 window=63,65 diag=tl",
    "b6 hq2 sq65 skv127 d8 lens causal window=31,0 diag=br lse poison seed=8",
    // Masks and biases, every broadcast of interest.
    "b2 hq2 sq65 skv127 d16 mask lse poison seed=1",
    "b2 hq2 sq65 skv127 d16 mask=1,1,1,Skv lse poison",
    "b2 hq3 sq33 skv65 d16 mask=B,1,Sq,1 lse seed=2",
    "b2 hq3 sq33 skv65 d16 mask=1,H,1,1 lse seed=3",
    "b2 hq2 sq65 skv127 d16 bias lse poison seed=1",
    "b2 hq2 sq65 skv65 d16 bias=1,H,Sq,Skv causal lse",
    "b2 hq2 sq33 skv65 d16 bias=B,1,1,Skv bias_dtype=f64 lse seed=4",
    "b2 hq2 sq33 skv65 d16 bias=1,1,Sq,1 data=finfo_min lse seed=5",
    "b2 hq2 sq33 skv65 d16 bias data=finfo_min lse poison seed=6",
    "b2 hq2 sq33 skv65 d16 bias bias_dtype=f64 data=finfo_min lse seed=7",
    "b2 hq2 sq33 skv65 d16 mask=1,H,1,Skv bias=B,1,Sq,1 softcap=5 alibi sinks causal diag=br lse",
    // Numbers below the smallest normal one, which nothing flushes to 0.
    "b2 hq2 sq33 skv130 d40 data=denormal lse seed=7",
    "b1 hq4 hkv2 sq2 skv700 d64 data=denormal lse seed=8",
    // Other edits.
    "b2 hq4 hkv2 sq65 skv65 d16 alibi causal lse",
    "b2 hq8 sq33 skv65 d16 alibi diag=br lse",
    "b2 hq2 sq33 skv65 d16 softcap=1 lse data=large",
    "b2 hq4 sq33 skv65 d16 sinks lse seed=3",
    "b2 hq4 sq33 skv65 d16 sinks mask lse data=large seed=4",
    "b2 hq2 sq33 skv65 d16 scale=0 lse",
    "b2 hq2 sq33 skv65 d16 scale=-0.5 lse",
    "b2 hq4 hkv2 sq33 skv65 d16 descales=head causal diag=br lse poison seed=3",
    "b1 hq2 sq3 skv65 d33 descales mask scale=-0.5 lse seed=4",
    // Lengths and segments.
    "b6 hq2 sq65 skv127 d16 lens lse poison seed=1",
    "b6 hq2 sq65 skv127 d16 lens=q sinks lse seed=2",
    "b3 hq2 sq65 skv127 d16 lens_kv=127,0,1 lse poison",
    "b3 hq2 sq65 skv65 d16 lens_q=0,65,1 lse",
    "b3 hq2 sq65 skv127 d16 segments lse poison seed=3",
    "b6 hq4 hkv2 sq65 skv65 d16 segments lens causal diag=tl lse poison seed=4",
    // Dropout.
    "b2 hq2 sq33 skv127 d16 dropout=0.25 lse",
    "b2 hq2 sq33 skv127 d16 dropout=0.25 dropout_origin=5,16,3,7 lse",
    "b2 hq4 hkv2 sq65 skv65 d16 dropout=0.5 causal lse",
    "b2 hq2 sq33 skv65 d16 dropout=0.9 causal diag=7 mask bias lse poison",
    // Data.
    "b2 hq2 sq33 skv127 d64 data=large lse",
    "b2 hq6 sq33 skv127 d64 data=outlier lse",
    "b2 hq2 sq33 skv127 d64 data=constant lse",
    // Scales and caps beyond f32's range.
    "b1 hq2 hkv1 sq9 skv130 d8 scale=1e-46 lse",
    "b1 hq2 hkv1 sq9 skv130 d8 scale=-1e-46 causal diag=br lse",
    "b1 hq2 hkv1 sq9 skv130 d8 softcap=1e39 lse",
    "b1 hq2 hkv1 sq9 skv130 d8 softcap=1e-46 scale=0 lse",
    // Empty sizes.
    "b0 hq2 sq3 skv5 d16 lse",
    "b2 hq0 hkv0 sq3 skv5 d16 lse",
    "b2 hq2 sq0 skv5 d16 lse causal diag=br",
    "b2 hq2 sq5 skv0 d16 lse",
    "b2 hq2 sq5 skv0 d16 lse sinks mask bias dropout=0.5",
    "b2 hq2 sq0 skv0 d16 lens segments lse",
    // MATH's debugging output.
    "b2 hq4 hkv2 sq33 skv65 d16 scores=scaled causal diag=br poison",
    "b2 hq2 sq33 skv65 d16 scores=edited softcap=5 bias mask alibi diag=tl poison",
    "b2 hq2 sq33 skv65 d16 scores=probs sinks lens dropout=0.5 poison",
};

const char* const kGradCases[] = {
    "b1 hq1 sq1 skv1 d1 f32 saved grad seed=1",
    "b2 hq3 sq63 skv65 d63 f32 saved grad seed=2",
    "b2 hq4 hkv2 sq65 skv130 d33 dv17 bf16 layout=bshd causal diag=br saved grad poison seed=3",
    "b1 hq2 sq64 skv64 d128 f16 causal lse grad seed=4",
    // More rows and keys than a block of the pass that keeps its sums.
    "b1 hq1 sq800 skv450 d16 f32 causal diag=br saved grad seed=5",
    "b1 hq4 hkv1 sq220 skv900 d24 bf16 window=200,40 diag=30 saved grad seed=6",
    "b1 hq2 hkv1 sq400 skv400 d8 f32 softcap=5 sinks dropout=0.3 causal saved grad seed=7",
    "b2 hq2 hkv1 sq70 skv90 d16 f32 dropout=0.4 dropout_origin=-9,8,5,0 causal diag=4 saved grad",
    "b3 hq2 sq420 skv500 d8 f16 lens causal diag=br saved grad poison seed=8",
    // Wide heads.
    "b1 hq2 sq20 skv70 d192 f32 saved grad seed=9",
    "b1 hq2 hkv1 sq33 skv70 d256 bf16 causal diag=tl saved grad seed=10",
    "b1 hq1 sq9 skv65 d512 f32 saved grad seed=11",
    // Every edit.
    "b2 hq4 hkv2 sq33 skv70 d16 f32 mask bias=B,1,Sq,Skv saved grad poison seed=12",
    "b2 hq4 hkv2 sq33 skv70 d16 f32 bias=1,H,1,Skv causal diag=tl saved grad seed=13",
    "b2 hq4 hkv2 sq33 skv70 d16 f32 bias=B,1,Sq,1 softcap=2 saved grad seed=14",
    "b2 hq4 hkv2 sq33 skv70 d16 f32 alibi diag=br sinks lse grad seed=15",
    "b2 hq4 hkv2 sq33 skv70 d16 f32 segments lens saved grad poison seed=16",
    "b2 hq4 hkv2 sq33 skv70 d16 f32 dropout=0.5 bias=1,1,1,Skv saved grad seed=17",
    "b2 hq2 sq33 skv70 d16 f32 scale=-0.5 saved grad seed=18",
    "b2 hq2 sq33 skv70 d16 f32 scale=0 saved grad seed=19",
    "b2 hq2 sq17 skv70 d16 f32 data=large saved grad seed=20",
    "b2 hq2 sq17 skv70 d16 f32 bias data=finfo_min saved grad seed=21",
    "b2 hq4 hkv2 sq33 skv70 d16 f32 data=denormal saved grad seed=29",
    "b2 hq4 hkv2 sq33 skv70 d16 f16 data=denormal saved grad seed=30",
    // Row blocks that see nothing of a tile between those that do; behind them lies NaN.
    "b2 hq3 hkv1 sq121 skv121 d8 dv16 bf16 diag=53 window=40,-1 segments saved grad poison seed=10",
    // Scores whose rounding alone is more than exp2 takes: recomputed ones exceed their maximum.
    "b1 hq2 sq80 skv97 d128 f32 scale=1e8 saved grad seed=27",
    "b1 hq2 sq80 skv97 d64 f32 scale=1e7 lse grad seed=28",
    "b1 hq2 sq1 skv97 d64 bf16 scale=-1e8 bias saved grad seed=29",
    "b1 hq2 sq33 skv97 d64 f16 scale=1e8 sinks saved grad seed=30",
    "b1 hq2 sq80 skv97 d128 bf16 scale=1e30 saved grad seed=31",
    "b4 hq2 sq33 skv65 d16 f32 causal diag=seq saved grad poison seed=22",
    "b2 hq2 sq70 skv33 d16 f32 causal diag=br sinks saved grad poison seed=23",
    // Pairs of bf16: halves hidden behind every kind of mask, odd rows, keys and head dims.
    "b2 hq3 hkv1 sq33 skv71 d17 dv23 bf16 mask=1,1,1,Skv saved grad poison seed=32",
    "b2 hq4 hkv2 sq35 skv69 d16 bf16 mask=B,1,Sq,1 bias dropout=0.4 saved grad poison seed=33",
    "b3 hq1 sq77 skv131 d63 bf16 lens window=20,7 diag=br softcap=4 saved grad poison seed=34",
    "b1 hq5 sq1 skv129 d72 dv65 bf16 alibi diag=br sinks scale=-0.3 lse grad seed=35",
    "b1 hq2 sq95 skv63 d30 bf16 out=f32 causal diag=tl saved grad poison seed=36",
    "b2 hq2 sq17 skv70 d16 bf16 data=large saved grad seed=37",
    // Empty sizes.
    "b0 hq2 sq3 skv5 d16 bf16 saved grad seed=24",
    "b2 hq2 sq0 skv5 d16 f32 saved grad seed=25",
    "b2 hq2 sq5 skv0 d16 f32 sinks saved grad seed=26",
    // One score whose partial sums are nearly as large as the sum of its products' sizes.
    ("b3 hq2 hkv2 sq1 skv30 d22 dv44 f32 causal diag=br window=8,0 saved grad align_q=8 align_k=4 "
     "seed=13878491 data=outlier"),
};

const char* const kBlockCases[] = {
    "b1 hq1 sq1000 d16 f32 causal saved grad",
    "b1 hq4 hkv2 sq500 skv900 d8 f32 causal diag=br saved grad",
    "b3 hq1 sq900 skv500 d8 bf16 window=100,50 diag=br lens saved grad",
    "b1 hq3 sq385 skv385 d40 dv24 f16 dropout=0.25 saved grad",
    "b1 hq2 sq200 d16 bf16 window=15,15 saved grad",  // rows of few keys, over two tiles
    "b1 hq1 sq800 skv1 d8 f32 saved grad",
    "b1 hq1 sq1 skv800 d72 f32 saved grad",
    // Several ranges of keys, of rows, and of both.
    "b2 hq1 sq100 skv3000 d8 bf16 window=900,0 diag=br lens saved grad",
    "b1 hq1 sq2000 skv300 d8 f32 causal diag=br saved grad",
    "b2 hq1 sq2050 skv1900 d8 f32 causal diag=br lens saved grad",
    "b2 hq6 hkv1 sq130 skv769 d8 f32 mask segments softcap=5 sinks saved grad poison",
    "b1 hq2 sq390 skv400 d8 f32 bias alibi causal diag=br lse grad poison",
    // Masks that hide whole keys or whole rows, behind which NaN stands in either half of a pair.
    "b1 hq3 hkv1 sq261 skv389 d37 dv21 bf16 mask=1,1,Sq,1 dropout=0.25 saved grad poison",
    "b2 hq2 sq131 skv401 d10 dv40 bf16 mask=B,1,1,Skv softcap=5 sinks lens saved grad poison",
    "b1 hq1 sq391 skv101 d9 bf16 out=f32 bias saved grad poison",
};

const char* const kRoundingCases[] = {
    "b1 hq2 hkv1 sq65 skv130 d64 bf16 causal diag=br saved grad seed=41",
    "b1 hq2 hkv1 sq65 skv130 d64 f16 causal diag=br saved grad seed=42",
    "b2 hq16 hkv2 sq2 skv600 d128 bf16 lse seed=43",
    "b2 hq16 hkv2 sq2 skv600 d128 f16 lse seed=44",
};

}  // namespace

std::span<const char* const> rounding_cases() { return kRoundingCases; }

std::span<const char* const> forward_cases() { return kForwardCases; }

std::span<const char* const> grad_cases() { return kGradCases; }

std::span<const char* const> block_cases() { return kBlockCases; }

std::vector<std::string> types_of(const std::string& text, std::span<const char* const> types) {
  const std::size_t share =
      std::getenv("REGARD_DEV_EVERY") != nullptr ? types.size() : (types.size() + 1) / 2;
  const std::size_t first = std::accumulate(text.begin(), text.end(), std::size_t{0});
  std::vector<std::string> chosen;
  for (std::size_t n = 0; n < share; ++n) chosen.emplace_back(types[(first + n) % types.size()]);
  return chosen;
}

}  // namespace regard::test
