#include "core/policy/scope_stack.h"

#include <utility>

namespace regard {
namespace {
// The library's only state outside a Context: the policies of this thread's ScopedPolicy objects.
thread_local std::shared_ptr<const ScopeStack::Node> t_top;
}  // namespace

const std::shared_ptr<const ScopeStack::Node>& ScopeStack::top() noexcept { return t_top; }

ScopedPolicy::ScopedPolicy(Policy policy, Mode mode) : previous_(t_top) {
  t_top = std::make_shared<const Node>(Node{std::move(policy), mode, t_top});
}

// A captured stack becomes the whole stack of this thread: what is open here is hidden, as by
// kReplace, until the scope closes.
ScopedPolicy::ScopedPolicy(const CapturedPolicy& captured) : previous_(t_top) {
  t_top = captured.node_;
}

ScopedPolicy::~ScopedPolicy() { t_top = std::move(previous_); }

CapturedPolicy capture_policy() {
  CapturedPolicy captured;
  captured.node_ = t_top;
  return captured;
}

}  // namespace regard
