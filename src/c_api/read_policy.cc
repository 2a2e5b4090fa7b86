#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "c_api/errors.h"
#include "c_api/read.h"
#include "c_api/struct_size.h"

namespace regard::c_api {
namespace {

// A word that a parser of the library did not take; the message names the field.
Status bad_word(const char* where, const char* field, const Status& status) {
  return Status(status.code(),
                "[" + std::string(where) + "] " + field + " of policy: " + status.message());
}

// "flash,custom:mine".
Status read_backends(const char* where, const char* field, std::string_view list,
                     std::vector<BackendRef>* refs) {
  while (true) {
    const std::size_t comma = list.find(',');
    Expected<BackendRef> ref = parse_backend(list.substr(0, comma));
    if (!ref) return bad_word(where, field, ref.status());
    refs->push_back(*std::move(ref));
    if (comma == std::string_view::npos) return {};
    list.remove_prefix(comma + 1);
  }
}

Status read_on_fallback(const char* where, std::string_view word, Policy* policy) {
  for (const OnFallback value : {OnFallback::kAllow, OnFallback::kWarn, OnFallback::kError}) {
    if (word != to_string(value)) continue;
    policy->on_fallback = value;
    return {};
  }
  return invalid(
      where, "on_fallback of policy (\"" + std::string(word) + "\") must be allow, warn or error");
}

Status read_lists(const char* where, const regard_policy& given, Policy* policy) {
  if (given.only != nullptr) {
    Status s = read_backends(where, "only", given.only, &policy->only.emplace());
    if (!s.ok()) return s;
  }
  if (given.deny != nullptr) {
    if (Status s = read_backends(where, "deny", given.deny, &policy->deny); !s.ok()) return s;
  }
  if (given.prefer != nullptr) {
    return read_backends(where, "prefer", given.prefer, &policy->prefer.emplace());
  }
  return {};
}

Status read_flag(const char* where, const char* field, const std::int32_t* given,
                 std::optional<bool>* flag) {
  if (given == nullptr) return {};
  if (*given != 0 && *given != 1) {
    return invalid(
        where, std::string(field) + " of policy (" + std::to_string(*given) + ") must be 0 or 1");
  }
  *flag = *given == 1;
  return {};
}

}  // namespace

Status read_policy(const char* where, const regard_policy* given, Policy* policy) {
  if (given == nullptr) return {};
  Versioned<regard_policy> p;
  if (Status s = p.read(where, "policy", given); !s.ok()) return s;
  if (Status s = read_lists(where, *p, policy); !s.ok()) return s;
  if (p->require != nullptr) {
    const Expected<Determinism> level = parse_determinism(p->require);
    if (!level) return bad_word(where, "require", level.status());
    policy->require = *level;
  }
  if (p->on_fallback != nullptr) {
    if (Status s = read_on_fallback(where, p->on_fallback, policy); !s.ok()) return s;
  }
  if (p->max_error != nullptr) policy->max_error = *p->max_error;
  if (p->max_workspace_bytes != nullptr) policy->max_workspace_bytes = *p->max_workspace_bytes;
  if (p->self_check != nullptr) policy->self_check = *p->self_check;
  if (p->self_check_dir != nullptr) policy->self_check_dir = p->self_check_dir;
  if (Status s = read_flag(where, "assume_finite", p->assume_finite, &policy->assume_finite);
      !s.ok()) {
    return s;
  }
  if (Status s = read_flag(where, "self_check_deny", p->self_check_deny, &policy->self_check_deny);
      !s.ok()) {
    return s;
  }
  return validate(*policy, where);
}

}  // namespace regard::c_api
