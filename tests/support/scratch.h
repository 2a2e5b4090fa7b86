#pragma once

#include <cstddef>
#include <cstdint>

#include "conformance/memory.h"
#include "regard/context.h"

namespace regard::test {

/// A launch with a workspace of exactly `bytes`, 64-byte aligned, that notices writes outside of
/// it.
class Scratch {
 public:
  explicit Scratch(std::int64_t bytes, unsigned char pattern = 0xff)
      : block_(static_cast<std::size_t>(bytes), 6, conformance::Guard::kCanaries) {
    block_.fill(pattern);
    launch.workspace = {block_.data(), block_.size()};
  }
  bool intact() const noexcept { return block_.intact(); }

 private:
  conformance::Block block_;

 public:
  Launch launch;
};

/// The plan of a request that describe() and plan() accept.
inline Plan plan_for(Context& context, const AttentionRequest& request, const Policy& policy = {}) {
  return plan(context, describe(request).value(), policy).value();
}

}  // namespace regard::test
