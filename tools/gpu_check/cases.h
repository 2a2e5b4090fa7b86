#pragma once

// What is run, in words.

namespace regard::gpu_check {

// What CUDNN claims is too little of the random cases to be met there often.
inline constexpr const char* kDirected[] = {
    "b2 hq4 hkv2 sq128 skv128 d64 bf16 lse",
    "b2 hq4 hkv2 sq127 skv257 d128 bf16 lse layout=bshd",
    "b1 hq2 sq65 skv65 d256 f16 causal diag=tl lse",
    "b2 hq4 hkv1 sq100 skv300 d64 f16 causal diag=br lse",
    "b1 hq2 sq300 skv100 d64 bf16 causal diag=tl lse",
    "b1 hq2 sq256 skv256 d64 bf16 window=0,0 diag=tl lse",
    "b1 hq2 sq256 skv256 d64 bf16 window=1,0 diag=tl lse",
    "b1 hq2 sq200 skv300 d72 bf16 window=31,7 diag=br lse",
    "b3 hq8 hkv2 sq1 skv777 d128 bf16 lse",
    "b1 hq2 sq64 skv64 d192 dv128 bf16 lse",
    "b2 hq4 hkv2 sq128 skv128 d64 bf16 lse grad",
    "b2 hq4 hkv2 sq127 skv257 d128 f16 layout=bshd lse grad",
    "b1 hq2 sq100 skv100 d64 bf16 causal diag=tl lse grad",
    "b1 hq4 hkv1 sq100 skv300 d80 f16 causal diag=br lse grad",
    "b1 hq2 sq256 skv256 d128 bf16 window=15,0 diag=tl lse grad",
    "b1 hq2 sq1000 skv1500 d64 bf16 causal diag=br lse",
    "b1 hq8 hkv2 sq500 skv1500 d128 bf16 mask=1,1,Sq,Skv lse poison",
    "b1 hq2 sq500 skv1500 d64 f16 bias=1,H,Sq,Skv dropout=0.1 lse",
    "b1 hq4 hkv2 sq700 skv500 d96 bf16 causal diag=tl bias=1,1,Sq,Skv saved grad",
    "b2 hq2 sq300 skv1000 d128 bf16 lens causal diag=br dropout=0.1 saved grad poison",
    "b3 hq8 hkv2 sq2 skv9000 d128 bf16 lens causal diag=br sinks lse poison",
    "b2 hq4 hkv2 sq16 skv1500 d64 f16 mask=B,1,1,Skv saved grad poison",
    "b3 hq4 hkv2 sq300 skv400 d128 bf16 packed total_q=150 total_kv=160 causal diag=br lse poison",
    "b3 hq4 hkv2 sq200 skv300 d96 f16 packed total_q=150 total_kv=160 saved grad poison",
    "b3 hq8 hkv2 sq1 skv2048 d128 bf16 paged page_size=16 causal diag=br lse poison",
    "b2 hq4 hkv2 sq130 skv512 d64 f16 paged page_size=64 causal diag=br cache_leftpad lse poison",
    "b2 hq4 hkv2 sq7 skv1100 d64 bf16 tree=7 causal diag=br lens=kv lse poison",
    "b2 hq3 hkv1 sq130 skv200 d96 f16 tree=70 lens=kv lse poison",
    "b3 hq8 hkv2 sq1 skv2048 d128 bf16 paged page_size=16 append=1 rotary=128 causal diag=br lse "
    "poison",
    "b2 hq4 hkv2 sq33 skv512 d64 f16 append=33 lens=kv rotary=32 rotary_interleaved positions lse "
    "poison",
    "b2 hq4 hkv2 sq5 skv600 d72 f32 cache_batch_idx append=5 lens=kv rotary=72 causal diag=br lse "
    "poison",
    "b3 hq8 hkv2 sq1 skv2048 d128 bf16 kv=i8 scales=token paged page_size=16 append=1 lens=kv "
    "rotary=128 causal diag=br lse poison",
    "b2 hq4 hkv2 sq33 skv512 d64 f16 kv=u4 append=33 lens=kv hadamard lse poison",
    "b2 hq4 hkv2 sq64 skv300 d128 bf16 kv=f8e4m3 scales=all channel_scales lse poison",
    "b2 hq4 hkv2 sq128 skv128 d64 f8e4m3 out=f8e4m3 lse",
    "b2 hq4 hkv2 sq128 skv128 d64 f8e4m3 out=f8e4m3 descales lse",
    "b1 hq4 hkv1 sq100 skv300 d128 f8e4m3 out=f8e4m3 causal diag=tl descales lse",
    "b1 hq2 sq256 skv256 d128 f8e4m3 out=f8e4m3 window=31,0 diag=tl lse layout=bshd",
    "b1 hq4 hkv2 sq100 skv300 d64 f8e4m3 out=bf16 causal diag=br descales=head lse",
};

inline constexpr const char* kSpeeds[] = {
    "b2 hq16 sq4096 d128 bf16",
    "b2 hq16 sq4096 d128 bf16 causal diag=tl",
    "b1 hq64 hkv8 sq8192 d128 bf16 causal diag=tl",
    "b2 hq32 sq4096 d64 bf16 causal diag=tl",
    "b1 hq16 sq8192 d256 bf16 causal diag=tl",
    "b2 hq16 sq4096 d128 f8e4m3 out=f8e4m3",
    "b2 hq16 sq4096 d128 f8e4m3 out=f8e4m3 causal diag=tl",
    "b2 hq16 sq4096 d128 bf16 lse grad",
    "b2 hq16 sq4096 d128 bf16 causal diag=tl lse grad",
    "b1 hq16 sq4096 d256 bf16 causal diag=tl lse grad",
    "b8 hq32 hkv8 sq1 skv8192 d128 bf16",
    "b1 hq32 hkv8 sq1 skv32768 d128 bf16",
    "b2 hq16 sq2048 d64 f32",
    "b1 hq8 sq64 d64 bf16",
};

// CUDNN beside cuDNN, forward and backward.
inline constexpr const char* kCompared[] = {
    "b2 hq16 sq4096 d128 bf16 lse grad",
    "b2 hq16 sq4096 d128 bf16 causal diag=tl lse grad",
    "b2 hq32 sq4096 d64 bf16 lse grad",
    "b2 hq32 sq4096 d64 bf16 causal diag=tl lse grad",
};

// What CUDNN does not claim, after three cases that it does.
inline constexpr const char* kUnclaimed[] = {
    "b4 hq8 hkv2 sq512 skv512 d64 bf16 lse grad",
    "b4 hq8 hkv2 sq512 skv512 d128 bf16 lse grad",
    "b4 hq8 hkv2 sq512 skv512 d256 bf16 lse grad",
    "b4 hq8 hkv2 sq512 skv512 d64 bf16 lens lse grad",
    "b4 hq8 hkv2 sq512 skv512 d128 bf16 lens lse grad",
    "b4 hq8 hkv2 sq512 skv512 d128 bf16 lens causal diag=tl lse grad",
    "b4 hq8 hkv2 sq512 skv512 d64 bf16 bias=1,H,Sq,Skv lse grad",
    "b4 hq8 hkv2 sq512 skv512 d128 bf16 bias=1,H,Sq,Skv lse grad",
    "b4 hq8 hkv2 sq512 skv512 d128 bf16 bias=1,H,Sq,Skv lens lse grad",
    "b4 hq8 hkv2 sq512 skv512 d64 bf16 sinks lse grad",
    "b4 hq8 hkv2 sq512 skv512 d128 bf16 sinks causal diag=tl lse grad",
    "b4 hq8 hkv2 sq512 skv512 d128 bf16 sinks lens lse grad",
};

// Under compute-sanitizer, which makes a kernel tens of times slower: every kind of kernel once.
inline constexpr const char* kSanitized[] = {
    "b2 hq2 hkv1 sq65 skv97 d64 bf16 causal diag=br lse",
    "b1 hq2 sq65 skv130 d128 f16 mask=B,1,1,Skv lse poison",
    "b1 hq2 sq33 skv40 d72 f32 bias=1,H,Sq,Skv dropout=0.1 lse",
    "b2 hq4 hkv1 sq1 skv1100 d128 bf16 lens lse",
    "b2 hq2 sq65 skv97 d128 bf16 lens causal diag=br saved grad",
    "b2 hq2 sq65 skv97 d64 bf16 packed total_q=90 total_kv=120 causal diag=br saved grad",
    "b2 hq4 hkv1 sq1 skv1088 d128 bf16 paged page_size=16 lse",
    "b2 hq4 hkv1 sq2 skv1088 d128 bf16 paged page_size=16 append=2 rotary=128 tree=2 lse",
    "b1 hq2 sq40 skv33 d64 f32 causal diag=tl lse grad",
    "b1 hq2 sq40 skv64 d64 f8e4m3 out=f8e4m3 descales lse",
};
inline constexpr const char* kSanitizerTools[] = {"memcheck", "racecheck", "synccheck"};

// PyTorch's tensors and autograd.
inline constexpr const char* kPython[] = {
    "b2 hq4 sq128 skv160 d64 bf16",
    "b2 hq4 sq128 skv160 d64 bf16 grad",
    "b2 hq4 hkv2 sq130 d128 f16 causal diag=tl grad",
    "b1 hq2 sq65 d40 f32 causal diag=tl grad",
    "b2 hq4 sq33 skv65 d64 bf16 mask=B,1,Sq,Skv grad",
    "compile: forward and backward",
    "streams: a call on a stream of its own",
    "graph: a captured call is replayed",
    "layouts: heads last, and slices of one projection",
    "cache: bf16 in pages, rows are appended",
    "cache: i8 with scales in pages, rows are appended",
    "cache: f8e4m3 with scales in pages, rows are appended",
};

// K and V, or Q and out, of more than 2^31 elements.
inline constexpr const char* kLarge[] = {
    "b3 hq8 sq16 skv700001 d128 bf16 lse",
    "b3 hq8 sq700001 skv64 d128 bf16 lse",
    "b3 hq8 sq64 skv700001 d128 bf16 lse grad",
};

// For a profiler: a forward, a backward and a decode.
inline constexpr const char* kProfiled[] = {
    "b2 hq16 sq4096 d128 bf16 causal diag=tl",
    "b2 hq16 sq4096 d128 bf16 causal diag=tl lse grad",
    "b8 hq32 hkv8 sq1 skv8192 d128 bf16",
};

// So small that the host takes longer than the device.
inline constexpr const char* kOverhead = "b1 hq4 sq16 d64 bf16";

}  // namespace regard::gpu_check
