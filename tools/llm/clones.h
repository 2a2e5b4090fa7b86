#pragma once

// A function of which the program chooses the copy for its instruction set when it starts, where
// the compiler can do that.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define LLM_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define LLM_CLONES
#endif
