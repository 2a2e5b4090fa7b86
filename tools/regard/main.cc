#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <exception>
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

/// A first word that is no verb, and what is one; CLI11 reports only that a verb is missing.
std::string unknown_verb(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-' || !app.get_subcommands().empty()) return "";
  std::string verbs;
  for (const CLI::App* verb : app.get_subcommands(nullptr)) {
    verbs += (verbs.empty() ? "" : ", ") + verb->get_name();
  }
  return "unknown verb " + safetensors::quote(argv[1]) + ", expected one of " + verbs;
}

/// The first flag whose value is the empty string: most often an unset variable of a script, which
/// must not count as a flag left out. "" where there is none.
std::string empty_flag(const CLI::App& verb) {
  for (const CLI::Option* option : verb.get_options()) {
    if (option->get_positional()) continue;
    for (const std::string& value : option->results()) {
      if (value.empty()) return option->get_name();
    }
  }
  return "";
}

/// A line that could not be parsed: the complaint, and a document with --json.
int report_usage(const std::string& complaint, bool json) {
  Output output("", {.json = json});
  const std::string message = complaint + "; `regard --help` shows what is possible";
  return output.finish(output.fail(kExitUsage, "usage", message));
}

int run(int argc, char** argv) {
  CLI::App app("Scaled dot-product attention: which backend runs, why, how exact and how fast.",
               "regard");
  app.footer(kFooter);
  app.set_version_flag("--version", std::string("regard ") + version(), "Print the version");
  app.set_help_flag("-h,--help", "Print this help");
  use_short_help(app);
  app.require_subcommand(1);
  const std::vector<Command> commands = {add_devices(app), add_explain(app),    add_run(app),
                                         add_bench(app),   add_tune(app),       add_check(app),
                                         add_guide(app),   add_freeze(app),     add_diff(app),
                                         add_env(app),     add_completion(app), add_man(app)};
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    app.exit(success);
    return flush_stdout(kExitOk);  // std::cout has no buffer of its own
  } catch (const CLI::ParseError& error) {
    const std::string unknown = unknown_verb(app, argc, argv);
    return report_usage(unknown.empty() ? error.what() : unknown, wants_json(argc, argv));
  }
  for (const Command& command : commands) {
    if (!command.app->parsed()) continue;
    const std::string valueless = empty_flag(*command.app);
    if (valueless.empty()) return command.run();
    return report_usage(valueless + " '': expected a value", wants_json(argc, argv));
  }
  return kExitUsage;
}

/// Gives closed standard streams a descriptor that fails, or a file that is opened later would take
/// their number and what is printed would end up in it.
void occupy_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) != -1) continue;
    (void)!::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);  // the lowest free: fd
  }
}

int report_failure(bool json, const char* kind, const char* message) {
  Output output("", {.json = json});
  return output.finish(output.fail(kExitFailed, kind, message));
}

int run_guarded(int argc, char** argv) {
  const bool json = wants_json(argc, argv);
  try {
    const Output until_the_verb_has_its_own("",
                                            {.json = json});  // a signal's document comes from here
    install_signal_handlers();
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    return report_failure(json, "out_of_memory", "memory could not be had");
  } catch (const std::exception& error) {
    return report_failure(json, "internal", error.what());
  }
}

}  // namespace
}  // namespace regard::cli

int main(int argc, char** argv) {
  regard::cli::occupy_standard_streams();
  try {
    return regard::cli::run_guarded(argc, argv);
  } catch (...) {  // even the report of a failure failed
    return regard::cli::kExitFailed;
  }
}
