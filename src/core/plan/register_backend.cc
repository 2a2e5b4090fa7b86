#include <algorithm>
#include <cctype>

#include "core/plan/context_impl.h"
#include "core/text/thrown_by.h"
#include "regard/context.h"

namespace regard {
namespace {

bool is_name(const std::string& name) {
  const auto allowed = [](unsigned char c) {
    return std::islower(c) != 0 || std::isdigit(c) != 0 || c == '_';
  };
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), allowed);
}

// Custom backends come last: registering one changes no decision until a policy names it.
void append_custom(Settings& settings, const BackendEntry& entry) {
  const bool cuda = entry.backend->info().device == DeviceType::kCuda;
  (cuda ? settings.cuda : settings.cpu).push_back(entry);
  ++settings.generations.registry;
}

// A candidate is tried in a Context of its own, where the environment forces nothing.
Env scratch_env(const Env& env) {
  Env scratch = env;
  for (EnvVariable& v : scratch.variables) v = {v.name, "", false, "", v.meaning};
  scratch.warnings.clear();
  return scratch;
}

}  // namespace

Expected<BackendRef> register_backend(Context& context, std::string name,
                                      std::shared_ptr<const Backend> backend,
                                      const ConformanceSuite& suite) try {
  if (!is_name(name)) {
    return Status(StatusCode::kInvalidArgument,
                  "[register_backend] name \"" + name + "\", expected 1 to 64 of a-z, 0-9 and _");
  }
  if (backend == nullptr) {
    return Status(StatusCode::kInvalidArgument, "[register_backend] backend (null) must be given");
  }
  const BackendEntry entry{{BackendId::kCustom, name}, std::move(backend)};
  Context scratch(scratch_env(context.env()));
  ContextImpl::of(scratch).update([&](Settings& settings) { append_custom(settings, entry); });
  if (Status status = suite.run(scratch, entry.ref); !status.ok()) {
    return Status(StatusCode::kConformanceFailed,
                  "[register_backend] " + to_string(entry.ref) + " failed: " + status.message());
  }
  bool taken = false;
  ContextImpl::of(context).update([&](Settings& settings) {
    for (const auto* list : {&settings.cpu, &settings.cuda}) {
      for (const BackendEntry& other : *list) taken = taken || other.ref == entry.ref;
    }
    if (!taken) append_custom(settings, entry);
  });
  if (taken) {
    return Status(StatusCode::kInvalidArgument,
                  "[register_backend] " + to_string(entry.ref) + " is registered already");
  }
  return entry.ref;
} catch (...) {
  return status_of_exception("register_backend");
}

}  // namespace regard
