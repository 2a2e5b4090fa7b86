// Puts the list of backends, the machine's facts and the core together.

#include "backends/backend_list.h"
#include "core/plan/context_impl.h"
#include "core/plan/freeze.h"
#include "core/select/tuning.h"
#include "cpu/threads/thread_pool.h"
#include "regard/context.h"
#include "regard/version.h"

namespace regard {
namespace {

#define REGARD_STRINGIZE_(x) #x
#define REGARD_STRINGIZE(x) REGARD_STRINGIZE_(x)

std::vector<BackendEntry> entries_of(DeviceType device, const Env& env) {
  std::vector<BackendEntry> entries;
  for (const Backend* backend : builtin_backends(device, env.sm_version)) {
    // Built-in backends live as long as the program: an aliased, empty owner.
    entries.push_back({backend->info().ref, {std::shared_ptr<const Backend>(), backend}});
  }
  return entries;
}

}  // namespace

const char* version() noexcept {
  return REGARD_STRINGIZE(REGARD_VERSION_MAJOR) "." REGARD_STRINGIZE(
      REGARD_VERSION_MINOR) "." REGARD_STRINGIZE(REGARD_VERSION_PATCH);
}

BuiltinBackends builtin_candidates(const Env& env) {
  return {entries_of(DeviceType::kCpu, env), entries_of(DeviceType::kCuda, env),
          &builtin_row_reference()};
}

Context::Context() : Context(read_env()) {}

Context::Context(Env env, std::size_t plan_cache_capacity) {
  auto executor = std::make_shared<ExecutorHolder>();
  executor->own = make_thread_pool(env.concurrency);
  executor->start_own = start_threads;
  executor->resize_own = resize_pool;
  const std::string tuning_file = env_value(env, "REGARD_TUNING");
  const bool is_named = !tuning_file.empty() && tuning_file != kNoTuning;
  Expected<TuningTable> tuning = is_named ? read_tuning_table(tuning_file) : TuningTable();
  // A file that cannot be used is an error of the Env, which every plan reports.
  for (EnvVariable& v : env.variables) {
    if (!tuning && v.error.empty() && v.name == "REGARD_TUNING")
      v.error = tuning.status().message();
  }
  BuiltinBackends builtin = builtin_candidates(env);
  impl_ = std::make_unique<ContextImpl>(std::move(env), plan_cache_capacity, std::move(builtin),
                                        std::move(executor));
  if (is_named) {
    if (tuning) set_tuning(*std::move(tuning));
  } else if (tuning_file.empty() && !impl_->env->variables.empty()) {
    // An Env that a program made up reads no file of the user's.
    impl_->update([](Settings& settings) { settings.looks_for_tuning = true; });
    impl_->look_for_tuning();
  }
  const std::string replay_file = env_value(*impl_->env, "REGARD_REPLAY");
  if (!replay_file.empty() && env_status(*impl_->env).ok()) {
    Expected<FrozenDecisions> frozen = read_frozen(replay_file);
    const Status same = frozen ? set_replay(*std::move(frozen)) : frozen.status();
    if (!same.ok()) impl_->refuse_variable("REGARD_REPLAY", same.message());
  }
  // As above; what went wrong since the Env was read is a warning of the first call.
  const std::string& record = env_value(*impl_->env, "REGARD_RECORD");
  if (!record.empty() && env_status(*impl_->env).ok()) {
    if (const Status s = set_record(record); !s.ok()) impl_->tracer->warn(s.message());
  }
}

Context& default_context() {
  // Never destroyed: calls from threads that outlive main stay valid.
  static Context* const context = new Context();
  return *context;
}

}  // namespace regard
