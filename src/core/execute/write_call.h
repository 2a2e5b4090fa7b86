#pragma once

#include <string>

#include "core/plan/context_impl.h"
#include "regard/request.h"

namespace regard {

/// A call in a file.
struct WrittenCall {
  std::string file;         // "" where it was not written
  std::string not_written;  // why; "" where it was
  std::string command;      // that repeats the call; "" where the command line cannot
};

/// Writes the inputs of a forward as a safetensors file into `folder`, "" being regard/self_check
/// in the user's cache. The file appears whole or not at all; at most 1 GiB.
WrittenCall write_call(const PlanImpl& plan, const AttentionParams& params, const Buffers& buffers,
                       const std::string& folder);

}  // namespace regard
