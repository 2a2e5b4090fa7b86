#include <memory>

#include "regard/env.h"
#include "tools/regard/commands.h"
#include "tools/regard/exit_codes.h"
#include "tools/regard/options.h"
#include "tools/regard/output.h"

namespace regard::cli {
namespace {

int run_env(const OutputOptions& options) {
  Output output("env", options);
  const Env env = read_env();
  Table table({"variable", "value", "meaning"});
  Json variables = Json::array();
  for (const EnvVariable& v : env.variables) {
    const bool good = v.error.empty();
    table.add({v.name, v.set ? printable(v.value) : "(unset)", v.meaning},
              {Colour::kStrong, !v.set ? Colour::kPlain
                                : good ? Colour::kGood
                                       : Colour::kBad});
    Json entry = {{"name", v.name}, {"set", v.set}, {"meaning", v.meaning}};
    entry["value"] = v.set ? Json(printable(v.value)) : Json(nullptr);
    entry["error"] = good ? Json(nullptr) : Json(printable(v.error));
    variables.push_back(std::move(entry));
  }
  output.document()["variables"] = std::move(variables);
  output.document()["warnings"] = env.warnings;
  output.print(table.text(output));
  for (const std::string& warning : env.warnings) {
    output.print("warning: " + printable(warning) + "\n");
  }
  const Status status = env_status(env);
  return output.finish(status ? kExitOk : output.fail(status));
}

}  // namespace

Command add_env(CLI::App& app) {
  CLI::App* verb = add_verb(app, "env", "The environment variables that regard reads");
  const auto options = std::make_shared<OutputOptions>();
  add_output_flags(*verb, *options);
  return {verb, [options] { return run_env(*options); }};
}

}  // namespace regard::cli
