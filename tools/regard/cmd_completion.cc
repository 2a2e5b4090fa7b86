#include <memory>
#include <string>

#include "tools/regard/commands.h"
#include "tools/regard/completion.h"
#include "tools/regard/exit_codes.h"
#include "tools/regard/output.h"
#include "tools/regard/safetensors.h"

namespace regard::cli {
namespace {

int print_completion(const CLI::App& app, const std::string& shell) {
  Output output("completion", {});
  if (shell == "bash") {
    output.print(bash_completion(app));
  } else if (shell == "zsh") {
    output.print(zsh_completion(app));
  } else if (shell == "fish") {
    output.print(fish_completion(app));
  } else {
    return output.finish(output.fail(
        kExitUsage, "usage",
        "[completion] shell " + safetensors::quote(shell) + ": expected bash, zsh or fish"));
  }
  return output.finish(kExitOk);
}

}  // namespace

Command add_completion(CLI::App& app) {
  CLI::App* verb = add_verb(app, "completion", "The completion script of a shell");
  const auto shell = std::make_shared<std::string>();
  add_positional(*verb, "shell", *shell, true,
                 {"SHELL", "bash, zsh or fish", "", {"bash", "zsh", "fish"}});
  return {verb, [&app, shell] { return print_completion(app, *shell); }};
}

}  // namespace regard::cli
