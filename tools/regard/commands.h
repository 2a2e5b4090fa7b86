#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/regard/option_table.h"

namespace regard::cli {

/// One verb of the command line: its flags are added to the app when it is made, `run` is called
/// when it was typed and gives the exit code.
struct Command {
  CLI::App* app = nullptr;
  std::function<int()> run;
};

Command add_devices(CLI::App& app);
Command add_explain(CLI::App& app);
Command add_run(CLI::App& app);
Command add_bench(CLI::App& app);
Command add_tune(CLI::App& app);
Command add_check(CLI::App& app);
Command add_guide(CLI::App& app);
Command add_freeze(CLI::App& app);
Command add_diff(CLI::App& app);
Command add_env(CLI::App& app);
Command add_completion(CLI::App& app);
Command add_man(CLI::App& app);

}  // namespace regard::cli
