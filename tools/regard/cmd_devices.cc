#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "regard/context.h"
#include "regard/env.h"
#include "tools/regard/commands.h"
#include "tools/regard/exit_codes.h"
#include "tools/regard/options.h"
#include "tools/regard/output.h"

namespace regard::cli {
namespace {

/// As in a case: one word means out of the type that goes with q.
std::string dtype_text(const DtypeClaim& claim) {
  if (claim.q == claim.kv && claim.out == default_dtype_out(claim.q)) return to_string(claim.q);
  return fmt::format("{}/{}/{}", to_string(claim.q), to_string(claim.kv), to_string(claim.out));
}

std::vector<std::string> dtype_texts(const Claims& claims) {
  std::vector<std::string> texts;
  for (const DtypeClaim& claim : claims.dtypes) {
    const std::string text = dtype_text(claim);
    if (std::find(texts.begin(), texts.end(), text) == texts.end()) texts.push_back(text);
  }
  return texts;
}

Json claims_json(const Claims& claims) {
  if (!claims.offered) return nullptr;
  Json dtypes = Json::array();
  for (const DtypeClaim& claim : claims.dtypes) {
    dtypes.push_back({{"q", to_string(claim.q)},
                      {"kv", to_string(claim.kv)},
                      {"out", to_string(claim.out)},
                      {"error_bound", claim.error_bound},
                      {"min_isa", to_string(claim.min_isa)},
                      {"min_sm", claim.min_sm}});
  }
  Json features = Json::array();
  for (int i = 0; i < kFeatureCount; ++i) {
    const auto feature = static_cast<Feature>(i);
    if (claims.features.has(feature)) features.push_back(to_string(feature));
  }
  return {{"dtypes", dtypes},
          {"features", features},
          {"head_dim_qk", {claims.head_dim_qk.min, claims.head_dim_qk.max}},
          {"head_dim_v", {claims.head_dim_v.min, claims.head_dim_v.max}}};
}

Json backend_json(const BackendInfo& info) {
  return {{"backend", to_string(info.ref)},
          {"device", to_string(info.device)},
          {"built", info.built},
          {"not_built_reason", info.built ? Json(nullptr) : Json(info.not_built_reason)},
          {"min_isa", to_string(info.min_isa)},
          {"min_sm", info.min_sm},
          {"determinism", to_string(info.determinism)},
          {"summary", info.summary},
          {"forward", claims_json(info.forward)},
          {"backward", claims_json(info.backward)}};
}

void show_machine(Output& output, const Env& env) {
  output.document()["machine"] = Json::parse(to_json(env));
  output.print(fmt::format("cpu      {}\n", printable(env.cpu_model)));
  output.print(fmt::format("isa      {} (available: {})\n", to_string(env.isa),
                           to_string(env.isa_available)));
  output.print(fmt::format("caches   L1d {}, L2 {}, L3 {}\n", bytes_text(env.l1d_bytes),
                           bytes_text(env.l2_bytes), bytes_text(env.l3_bytes)));
  output.print(fmt::format("workers    {}\n", env.concurrency));
  if (env.sm_version != 0) {
    output.print(
        fmt::format("cuda     {}, compute capability {}.{}, driver for CUDA {}.{}, cuDNN {}\n",
                    printable(env.device_name), env.sm_version / 10, env.sm_version % 10,
                    env.cuda_driver / 1000, env.cuda_driver % 1000 / 10,
                    env.cudnn_version != 0 ? std::to_string(env.cudnn_version) : "not found"));
  }
  output.print(fmt::format("regard   {}, {}, CUDA {}\n\n", env.version, env.compiler,
                           env.built_with_cuda ? "built" : "not built"));
}

int run_devices(const OutputOptions& options) {
  Output output("devices", options);
  Env env = with_devices(read_env());
  if (const Status status = env_status(env); !status) return output.finish(output.fail(status));
  show_machine(output, env);
  Table table({"device", "backend", "built", "determinism", "dtypes", "what it is"});
  Json list = Json::array();
  for (const BackendInfo& info : Context(std::move(env)).backends()) {
    list.push_back(backend_json(info));
    const std::vector<std::string> dtypes = dtype_texts(info.forward);
    table.add({to_string(info.device), to_string(info.ref), info.built ? "yes" : "no",
               info.built ? to_string(info.determinism) : "-",
               info.built && !dtypes.empty() ? fmt::format("{}", fmt::join(dtypes, " ")) : "-",
               info.built ? info.summary : info.not_built_reason},
              {Colour::kPlain, Colour::kStrong, info.built ? Colour::kGood : Colour::kPlain});
  }
  output.document()["backends"] = std::move(list);
  output.print(table.text(output));
  return output.finish(kExitOk);
}

}  // namespace

Command add_devices(CLI::App& app) {
  CLI::App* verb = add_verb(app, "devices", "This machine and the backends of this build");
  const auto options = std::make_shared<OutputOptions>();
  add_output_flags(*verb, *options);
  return {verb, [options] { return run_devices(*options); }};
}

}  // namespace regard::cli
