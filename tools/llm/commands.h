#pragma once

#include "tools/llm/options.h"

// One function a verb; each returns the program's exit code.

namespace llm {

int run_generate(const Options& options);  // over its ranks where mpirun started the program
int run_chat(const Options& options);
int run_eval(const Options& options);
int run_bench(const Options& options);
int run_list();
int run_where(const Options& options);
/// Runs `python3 -m regard.llm export` with the arguments.
int run_export(int argc, char** argv);

}  // namespace llm
