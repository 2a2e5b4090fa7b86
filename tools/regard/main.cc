#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "regard/version.h"
#include "tools/regard/commands.h"
#include "tools/regard/exit_codes.h"
#include "tools/regard/interrupt.h"
#include "tools/regard/output.h"
#include "tools/regard/safetensors.h"

namespace regard::cli {
namespace {

constexpr const char* kFooter =
    "A case names a problem in words, in any order:\n"
    "  b2 hq8 hkv2 sq128 skv1024 d64 bf16 causal diag=br lens\n"
    "Exit codes: 0 ok, 1 a check failed, 2 bad usage or input, 3 no backend can run,\n"
    "130 interrupted. docs/cli.md says more.";

/// --json was typed, whatever else was wrong with the line.
bool wants_json(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--json") return true;
  }
  return false;
}

/// A first word that is no verb, and what is one; CLI11 would only say that a verb is missing.
std::string unknown_verb(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-' || !app.get_subcommands().empty()) return "";
  std::string verbs;
  for (const CLI::App* verb : app.get_subcommands(nullptr)) {
    verbs += (verbs.empty() ? "" : ", ") + verb->get_name();
  }
  return "unknown verb " + safetensors::quote(argv[1]) + ", expected one of " + verbs;
}

/// A line that could not be parsed: the complaint, and a document where --json asks for one.
int report_usage(const std::string& complaint, bool json) {
  Output output("", json);
  const std::string message = complaint + "; `regard --help` shows what is possible";
  return output.finish(output.fail(kExitUsage, "usage", message));
}

int run(int argc, char** argv) {
  CLI::App app("Scaled dot-product attention: which backend runs, why, how exact and how fast.",
               "regard");
  app.footer(kFooter);
  app.set_version_flag("--version", std::string("regard ") + version());
  app.require_subcommand(1);
  const std::vector<Command> commands = {add_devices(app), add_explain(app), add_run(app),
                                         add_check(app), add_env(app)};
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    app.exit(success);
    std::cout.flush();
    return std::cout.good() ? kExitOk : kExitFailed;
  } catch (const CLI::ParseError& error) {
    const std::string unknown = unknown_verb(app, argc, argv);
    return report_usage(unknown.empty() ? error.what() : unknown, wants_json(argc, argv));
  }
  for (const Command& command : commands) {
    if (command.app->parsed()) return command.run();
  }
  return kExitUsage;
}

}  // namespace
}  // namespace regard::cli

int main(int argc, char** argv) {
  using regard::cli::Output;
  regard::cli::install_signal_handlers();
  const bool json = regard::cli::wants_json(argc, argv);
  try {
    return regard::cli::run(argc, argv);
  } catch (const std::bad_alloc&) {
    Output output("", json);
    return output.finish(
        output.fail(regard::cli::kExitFailed, "out_of_memory", "memory could not be had"));
  } catch (const std::exception& error) {
    Output output("", json);
    return output.finish(output.fail(regard::cli::kExitFailed, "internal", error.what()));
  }
}
